"""What `TensorFlowTrial` trains, measures and keeps."""

import pytest
import tensorflow as tf

from tests.trials.by_hand import config, steps
from tests.trials.tensorflow import one_weight
from tests.trials.tensorflow.one_weight import OneWeight, WithMomentum


@pytest.fixture(name="one_weight")
def opened_by_default():
    return OneWeight


def test_training_metrics_are_averaged_over_batches(run_experiment):
    [trial] = run_experiment(OneWeight, config(5))
    metrics = trial["history"][0]["training"]
    by_hand = list(steps(5))
    assert metrics["loss"] == pytest.approx(sum(loss for _, loss in by_hand) / 5, rel=1e-5)
    assert metrics["w"] == pytest.approx(sum(w for w, _ in by_hand) / 5, rel=1e-5)
    assert metrics["training"] == 1


def test_validation_is_one_pass_averaged_over_batches(run_experiment):
    [trial] = run_experiment(OneWeight, config(0))
    metrics = trial["history"][0]["validation"]
    # At w = 0 the batches (1, 2) and (3) have losses (4 + 16) / 2 and 36: their mean, unweighted.
    assert metrics["loss"] == pytest.approx((10 + 36) / 2)
    assert metrics["training"] == 0
    assert metrics["vector"] == pytest.approx([(1.5 + 3) / 2, 3 + 1.5])


@pytest.mark.parametrize(("trial_class", "shuffle"), [(OneWeight, True), (WithMomentum, False)])
def test_a_restored_trial_goes_on_as_the_straight_one(resumed, trial_class, shuffle):
    expected, found = resumed(trial_class, data={"shuffle": shuffle})
    assert found == expected


def test_validations_do_not_change_what_training_data_draw(resumed):
    def batch(trial):
        loss = trial.train(1)["loss"]
        trial.validate()
        return loss

    expected, found = resumed(OneWeight, data={"noisy": True}, before=4, after=5, batch=batch)
    assert found == expected


def test_metrics_are_there_for_tensorboard(run_experiment, tmp_path):
    from generic_trainer._core.event_files import last_scalars

    run_experiment(OneWeight, config(2))
    found = last_scalars(str(tmp_path / "run"))
    assert {"trials/1/training/loss", "trials/1/validation/loss"} <= found.keys()


class Apart(OneWeight):
    """Its metrics depend on no record."""

    def validation_metrics(self):
        return ["w", "counter"]


Apart.__module__ = OneWeight.__module__  # where make_data_loaders is


def test_a_validation_ends_although_its_metrics_read_no_record(open_trial):
    assert open_trial(Apart).validate() == {"w": 0, "counter": 0}


def test_a_function_of_the_users_is_not_the_hook_of_that_name(run_experiment, monkeypatch):
    def download_data(directory):
        raise AssertionError(directory)

    monkeypatch.setattr(one_weight, "download_data", download_data, raising=False)
    run_experiment(OneWeight, config(1))


def test_the_graph_that_was_trained_is_exported(run_experiment, tmp_path):
    class Once(OneWeight):
        __module__ = OneWeight.__module__

        def build_graph(self, record, is_training):
            (tmp_path / "made").mkdir()
            return super().build_graph(record, is_training)

    periods = {"min_validation_period": {"batches": 1}, "scheduling_unit": 1}
    [trial] = run_experiment(Once, config(3, hyperparameters={"rate": 0.3}, **periods))
    served = tf.saved_model.load(str(tmp_path / "Format-Serving")).signatures["serving_default"]
    [prediction] = served(x=tf.constant([[1.0]])).values()
    [best] = [
        entry["validation"]["w"]
        for entry in trial["history"]
        if entry["batches"] == trial["best_at"] and "validation" in entry
    ]
    assert prediction.numpy() == pytest.approx(best, rel=1e-5)
    assert trial["best_at"] < trial["batches"]  # the best checkpoint, not the last state


class Unmeasured(OneWeight):
    def validation_metrics(self):
        return []


Unmeasured.__module__ = OneWeight.__module__  # where make_data_loaders is


def test_a_trial_that_measures_nothing_in_validation(run_experiment):
    [trial] = run_experiment(Unmeasured, config(5, searcher={"max_length": {"batches": 5}}))
    assert trial["history"][-1] == {"batches": 5, "validation": {}}
