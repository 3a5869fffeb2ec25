"""What `TensorFlowTrial` trains, measures and keeps."""

from __future__ import annotations

import pytest
import tensorflow as tf

from generic_trainer.trials._trial import TrialRun, current, get_experiment_config
from tests.trials.by_hand import steps
from tests.trials.tensorflow.one_weight import OneWeight, WithMomentum


def config(batches=5, **changes):
    return {
        "data": {},
        "hyperparameters": {"rate": 0.1},
        "searcher": {"metric": "loss", "max_length": {"batches": batches}},
        **changes,
    }


def open_trial(trial_class=OneWeight, **fields):
    run = {"trial_id": 1, "config": {"data": {}}, "hparams": {}, "seed": 3, **fields}
    return trial_class.open_controller(TrialRun(**run))


def test_losses_are_those_computed_by_hand(run_experiment):
    [trial] = run_experiment(OneWeight, config(5, scheduling_unit=1))
    losses = [entry["training"]["loss"] for entry in trial["history"] if "training" in entry]
    assert losses == pytest.approx([loss for _, loss in steps(5)], rel=1e-5)


def test_training_metrics_are_averaged_over_batches(run_experiment):
    [trial] = run_experiment(OneWeight, config(5))
    metrics = trial["history"][0]["training"]
    by_hand = list(steps(5))
    assert metrics["loss"] == pytest.approx(sum(loss for _, loss in by_hand) / 5, rel=1e-5)
    assert metrics["w"] == pytest.approx(sum(w for w, _ in by_hand) / 5, rel=1e-5)
    assert metrics["training"] == 1


@pytest.mark.parametrize("average", [True, False])
def test_a_step_may_be_of_several_batches(tmp_path, average):
    optimizations = {"aggregation_frequency": 2, "average_aggregated_gradients": average}
    config, rate = {"data": {}, "optimizations": optimizations}, 0.04
    first = open_trial(config=config, hparams={"rate": rate})
    losses = [first.train(1)["loss"] for _ in range(5)]
    first.save(str(tmp_path))  # within a step
    restart = {"batches_trained": 5, "checkpoint_dir": str(tmp_path)}
    second = open_trial(config=config, hparams={"rate": rate}, **restart)
    losses += [second.train(1)["loss"] for _ in range(4)]
    expected = [loss for _, loss in steps(9, rate=rate, every=2, average=average)]
    assert losses == pytest.approx(expected, rel=1e-3)
    assert second.validate()["counter"] == 9


def test_validation_is_one_pass_averaged_over_batches(run_experiment):
    [trial] = run_experiment(OneWeight, config(0))
    metrics = trial["history"][0]["validation"]
    # At w = 0 the batches (1, 2) and (3) have losses (4 + 16) / 2 and 36: their mean, unweighted.
    assert metrics["loss"] == pytest.approx((10 + 36) / 2)
    assert metrics["training"] == 0
    assert metrics["vector"] == pytest.approx([(1.5 + 3) / 2, 3 + 1.5])


def test_the_counter_counts_batches():
    trial = open_trial()
    trial.train(3)
    trial.train(4)
    assert trial.validate()["counter"] == 7


@pytest.mark.parametrize("trial_class", [OneWeight, WithMomentum])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_restored_trial_goes_on_as_the_straight_one(tmp_path, trial_class, shuffle):
    config = {"data": {"shuffle": shuffle}}
    straight = open_trial(trial_class, config=config)
    losses = [straight.train(1)["loss"] for _ in range(14)]
    first = open_trial(trial_class, config=config)
    before = [first.train(1)["loss"] for _ in range(7)]
    first.save(str(tmp_path))
    after = open_trial(trial_class, config=config, batches_trained=7, checkpoint_dir=str(tmp_path))
    assert before + [after.train(1)["loss"] for _ in range(7)] == losses


def test_validation_in_between_changes_nothing():
    with_validation, without = open_trial(), open_trial()
    for _ in range(4):
        with_validation.validate()
        assert with_validation.train(1) == without.train(1)


def test_equal_seeds_give_equal_histories(run_experiment, tmp_path):
    shuffled = config(6, data={"shuffle": True}, scheduling_unit=1)
    [first] = run_experiment(OneWeight, shuffled, checkpoint_dir=str(tmp_path / "a"))
    [second] = run_experiment(OneWeight, shuffled, checkpoint_dir=str(tmp_path / "b"))
    assert first["history"] == second["history"]


def test_tuned_values_win(run_experiment):
    [trial] = run_experiment(OneWeight, config(1), hyperparameters={"values": {"rate": 0.5}})
    assert trial["hparams"]["rate"] == 0.5


def test_a_search_exports_the_best_trial(run_experiment, tmp_path):
    ranges = {"rate": {"type": "categorical", "vals": [0.0001, 0.05]}}
    searcher = {"name": "grid", "metric": "loss", "max_length": {"batches": 6}}
    slow, fast = run_experiment(OneWeight, config(hyperparameters=ranges, searcher=searcher))
    assert (slow["exported"], fast["exported"]) == (False, True)
    serve = tf.saved_model.load(str(tmp_path / "Format-Serving")).signatures["serving_default"]
    [prediction] = serve(x=tf.constant([[1.0]])).values()
    assert prediction.numpy() == pytest.approx(fast["history"][-1]["validation"]["w"], rel=1e-5)


def test_the_configuration_can_be_a_file(run_experiment, tmp_path):
    path = tmp_path / "const.yaml"
    path.write_text(
        "data: {}\nhyperparameters: {rate: 1e-1}\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    )
    [trial] = run_experiment(OneWeight, {"experiment_config": str(path)})
    assert trial["hparams"] == {"rate": 0.1}


def test_metrics_are_there_for_tensorboard(run_experiment, tmp_path):
    from generic_trainer._core.event_files import last_scalars

    run_experiment(OneWeight, config(2))
    found = last_scalars(str(tmp_path / "run"))
    assert {"trials/1/training/loss", "trials/1/validation/loss"} <= found.keys()


def test_a_trial_can_ask_for_its_configuration():
    with current(TrialRun(trial_id=1, config={"data": {"a": 1}}, hparams={}, seed=0)):
        assert get_experiment_config()["data"] == {"a": 1}


def test_more_slots_than_devices_are_no_error(run_experiment, caplog):
    [trial] = run_experiment(OneWeight, config(1, resources={"slots_per_trial": 2}))
    assert trial["batches"] == 1
    assert "fewer devices: one trains on whole batches" in caplog.text


class Unmeasured(OneWeight):
    def validation_metrics(self):
        return []


Unmeasured.__module__ = OneWeight.__module__  # where make_data_loaders is


def test_a_trial_that_measures_nothing_in_validation(run_experiment):
    [trial] = run_experiment(Unmeasured, config(5))
    assert trial["history"][-1] == {"batches": 5, "validation": {}}
