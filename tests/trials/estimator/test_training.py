"""What `EstimatorTrial` trains, measures and keeps."""

from __future__ import annotations

import random

import numpy as np
import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator import tf
from tests.trials.by_hand import steps
from tests.trials.estimator.one_weight import OneWeight, WithMomentum, examples

tf1 = tf.compat.v1


def config(batches=5, **changes):
    return {
        "hyperparameters": {"global_batch_size": 1},
        "searcher": {"metric": "loss", "max_length": {"batches": batches}},
        **changes,
    }


def test_losses_are_those_computed_by_hand(run_experiment):
    [trial] = run_experiment(OneWeight, config(5, scheduling_unit=1))
    losses = [entry["training"]["loss"] for entry in trial["history"] if "training" in entry]
    assert losses == pytest.approx([loss for _, loss in steps(5)], rel=1e-5)


def test_training_metrics_are_all_scalar_summaries_averaged_over_batches(open_trial):
    metrics = open_trial().train(5)
    by_hand = list(steps(5))
    assert metrics.keys() == {"loss", "weight"}
    assert metrics["loss"] == pytest.approx(sum(loss for _, loss in by_hand) / 5, rel=1e-5)
    # As it is before each update.
    assert metrics["weight"] == pytest.approx(sum(w for w, _ in by_hand) / 5, rel=1e-5)


def aggregating(**optimizations):
    return {"optimizations": {"aggregation_frequency": 2, **optimizations}}


@pytest.mark.parametrize("average", [True, False])
def test_a_step_may_be_of_several_batches(open_trial, tmp_path, average):
    fields = {
        "config": aggregating(average_aggregated_gradients=average),
        "hparams": {"global_batch_size": 1, "rate": 0.04},
    }
    first = open_trial(**fields)
    losses = [first.train(1)["loss"] for _ in range(5)]
    first.save(str(tmp_path))  # within a step
    second = open_trial(**fields, batches_trained=5, checkpoint_dir=str(tmp_path))
    losses += [second.train(1)["loss"] for _ in range(4)]
    expected = [loss for _, loss in steps(9, rate=0.04, every=2, average=average)]
    assert losses == pytest.approx(expected, rel=1e-3)
    assert second.validate()["global_step"] == 9


def test_optimizers_of_keras_count_batches_where_these_are_the_global_step(open_trial):
    class Ready(OneWeight):
        def build_estimator(self):
            optimizer = self.context.wrap_optimizer(tf.keras.optimizers.legacy.Adam(0.1))
            columns = [tf.feature_column.numeric_column("x")]
            return tf.estimator.LinearRegressor(columns, optimizer=optimizer)

    trial = open_trial(Ready, config=aggregating())
    losses = [trial.train(1)["loss"] for _ in range(6)]
    assert losses[:2] == pytest.approx([4, 16], rel=1e-5)
    assert losses[5] < 36 - 1
    assert trial.validate()["global_step"] == 6


def test_several_batches_need_the_optimizer_itself(open_trial):
    class Nothing(OneWeight):
        def build_estimator(self):
            self.context.wrap_optimizer(None)

    with pytest.raises(ConfigurationError, match="needs the optimizer itself"):
        open_trial(Nothing, config=aggregating())


def test_validation_metrics_are_those_of_the_estimator(open_trial):
    metrics = open_trial().validate()
    # At w = 0 the batches (1, 2) and (3) have losses (4 + 16) / 2 and 36; the metric is per record.
    assert metrics == {
        "loss": pytest.approx((10 + 36) / 2),
        "error": pytest.approx((2 + 4 + 6) / 3),
        "global_step": 0,
    }


@pytest.mark.parametrize("trial_class", [OneWeight, WithMomentum])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_restored_trial_goes_on_as_the_straight_one(open_trial, tmp_path, trial_class, shuffle):
    hparams = {"global_batch_size": 1, "rate": 0.0005}
    settings = {"data": {"shuffle": shuffle}, "hparams": hparams}
    straight = open_trial(trial_class, **settings)
    losses = [straight.train(10)["loss"] for _ in range(20)]
    first = open_trial(trial_class, **settings)
    before = [first.train(10)["loss"] for _ in range(10)]
    first.save(str(tmp_path))
    at = {"batches_trained": 100, "checkpoint_dir": str(tmp_path)}
    after = open_trial(trial_class, **settings, **at)
    assert after.validate() == first.validate()
    assert before + [after.train(10)["loss"] for _ in range(10)] == losses
    assert losses[-1] > 0


def test_validation_in_between_changes_nothing(open_trial):
    with_validation, without = open_trial(), open_trial()
    for _ in range(4):
        with_validation.validate()
        assert with_validation.train(1) == without.train(1)


def test_equal_seeds_give_equal_histories(run_experiment, tmp_path):
    shuffled = config(6, data={"shuffle": True}, scheduling_unit=1)
    [first] = run_experiment(OneWeight, shuffled, checkpoint_dir=str(tmp_path / "a"))
    [second] = run_experiment(OneWeight, shuffled, checkpoint_dir=str(tmp_path / "b"))
    assert first["history"] == second["history"]


def test_the_best_checkpoint_is_published(run_experiment, tmp_path):
    ranges = {"global_batch_size": 1, "rate": {"type": "categorical", "vals": [0.0001, 0.05]}}
    searcher = {"name": "grid", "metric": "error", "max_length": {"batches": 6}}
    slow, fast = run_experiment(OneWeight, config(hyperparameters=ranges, searcher=searcher))
    assert (slow["exported"], fast["exported"]) == (False, True)
    serve = tf.saved_model.load(str(tmp_path / "Format-Serving")).signatures["serving_default"]
    [prediction] = serve(x=tf.constant([[1.0]])).values()
    # The error of y = w x is |w - 2| times the mean of x, which is 2.
    expected = 2 - fast["history"][-1]["validation"]["error"] / 2
    assert prediction.numpy() == pytest.approx(expected, rel=1e-4)


def test_an_untrained_trial_is_published_too(run_experiment, tmp_path):
    run_experiment(OneWeight, config(0, checkpoint_policy="none"))
    serve = tf.saved_model.load(str(tmp_path / "Format-Serving")).signatures["serving_default"]
    [prediction] = serve(x=tf.constant([[1.0]])).values()
    assert prediction.numpy() == 0


def test_the_files_of_a_checkpoint(open_trial, tmp_path):
    trial = open_trial()
    trial.train(3)
    trial.save(str(tmp_path))
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    [export] = (tmp_path / "plain").iterdir()
    assert {
        "checkpoint",
        "graph.pbtxt",
        "model.ckpt-3.index",
        "model.ckpt-3.meta",
        "model.ckpt-3.data-00000-of-00001",
        "rng_state.json",
        "rng_state.npz",
        "code/one_weight.py",
        f"plain/{export.name}/saved_model.pb",
    } <= names
    assert not [name for name in names if name.startswith("events")]


def test_generators_go_on_where_the_checkpoint_was_written(open_trial, tmp_path):
    trial = open_trial()
    trial.train(1)
    trial.save(str(tmp_path))
    expected = np.random.random()
    open_trial(checkpoint_dir=str(tmp_path), batches_trained=1).train(1)
    assert np.random.random() == expected


class Draws(OneWeight):
    """Adds noise of every kind that can be saved, also while its graph is built."""

    def model_fn(self, features, labels, mode):
        if mode == tf.estimator.ModeKeys.TRAIN:
            scale = 1 + np.random.random() / 100 if self.hparam("scaled") else 1.0
            noise = tf.random.Generator.from_seed(7).normal([1, 1])
            step = tf1.train.get_global_step()
            noise += tf.random.stateless_normal([1, 1], tf.stack([1, tf.cast(step, tf.int32)]))
            if self.hparam("stateful"):
                noise += tf1.layers.dropout(noise, training=True, name="dropped")
            features = {"x": scale * features["x"] + noise / 100}
        return super().model_fn(features, labels, mode)

    def hparam(self, name):
        return self.context.get_hparams().get(name)


def losses_of(open_trial, tmp_path, trial_class, before=4, after=4, **hparams):
    """Returns those of a run that goes on after it was saved, and of its copy, with what they draw.

    Other code draws from the global generators between two workloads of both.
    """

    def opened(**at):
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))  # seeds do not reset it
        return open_trial(trial_class, **hparams, **at)

    def batch(trial):
        return trial.train(1)["loss"], np.random.random(), random.random(), int(eager_draw())

    hparams = {"hparams": {"global_batch_size": 1, "rate": 0.0005, **hparams}}
    straight = opened()
    found = [batch(straight) for _ in range(before)]
    straight.save(str(tmp_path))
    expected = found + [batch(straight) for _ in range(after)]
    restored = opened(batches_trained=before, checkpoint_dir=str(tmp_path))
    return expected, found + [batch(restored) for _ in range(after)]


def eager_draw():
    """Returns a number that TensorFlow's global generator and its seeds of operations decide."""
    drawn = tf.random.get_global_generator().uniform([], maxval=10**6, dtype=tf.int64)
    return drawn + tf.random.uniform([], maxval=10**6, dtype=tf.int64)


def test_what_draws_goes_on_as_in_the_straight_run(open_trial, tmp_path, caplog):
    expected, found = losses_of(open_trial, tmp_path, Draws)
    assert found == expected
    assert len({loss for loss, *_ in found}) == len(found)
    assert "draws other random numbers" not in caplog.text


def test_building_the_graph_once_more_draws_nothing(open_trial, tmp_path):
    expected, found = losses_of(open_trial, tmp_path, Draws, scaled=True)
    assert [drawn for _, *drawn in found] == [drawn for _, *drawn in expected]


def test_what_cannot_be_resumed_exactly_is_named(open_trial, caplog):
    open_trial(Draws, hparams={"global_batch_size": 1, "stateful": True}).train(1)
    assert "draws other random numbers than it would have in dropped/dropout" in caplog.text


def test_the_seed_is_there_before_the_users_code(open_trial):
    drawn = []

    class Draws(OneWeight):
        def __init__(self, context):
            super().__init__(context)
            drawn.append(np.random.random())

    for _ in range(2):
        open_trial(Draws)
    assert drawn[0] == drawn[1] == np.random.RandomState(3).random_sample()


class Cached(OneWeight):
    def train_data(self):
        @self.context.experimental.cache_train_dataset("records", "1", shuffle=True)
        def make():
            return examples()

        return make().batch(self.context.get_per_slot_batch_size())


def test_cached_data_are_resumed_by_the_cache(open_trial, tmp_path):
    config = {"data_layer": {"type": "shared_fs", "host_storage_path": str(tmp_path / "cache")}}
    straight = open_trial(Cached, config=config)
    losses = [straight.train(1)["loss"] for _ in range(8)]
    assert losses != pytest.approx([loss for _, loss in steps(8)], rel=1e-3)
    first = open_trial(Cached, config=config)
    before = [first.train(1)["loss"] for _ in range(4)]
    first.save(str(tmp_path / "saved"))
    after = open_trial(
        Cached, config=config, batches_trained=4, checkpoint_dir=str(tmp_path / "saved")
    )
    assert before + [after.train(1)["loss"] for _ in range(4)] == losses


def test_an_input_function_may_take_what_estimators_pass(open_trial):
    class Asks(OneWeight):
        def build_train_spec(self):
            def input_fn(params, mode, config):
                assert (params, mode, config.tf_random_seed) == ({}, "train", 3)
                return self.train_data()

            return tf.estimator.TrainSpec(input_fn, max_steps=1)

    assert open_trial(Asks).train(2)["loss"] == pytest.approx((4 + 10.24) / 2)


def test_a_killed_trial_goes_on_as_the_straight_one(run_experiment, tmp_path):
    class Killed(OneWeight):
        kills_at = 7

        def train_hooks(self):
            class Kills(tf.compat.v1.train.SessionRunHook):
                runs = 0

                def after_run(self, run_context, run_values):
                    self.runs += 1
                    if self.runs == Killed.kills_at:
                        raise KeyboardInterrupt

            return [Kills()]

    settings = config(
        12,
        data={"shuffle": True},
        scheduling_unit=3,
        min_validation_period={"batches": 4},
        min_checkpoint_period={"batches": 3},
    )
    with pytest.raises(KeyboardInterrupt):
        run_experiment(Killed, settings)
    Killed.kills_at = None
    [resumed] = run_experiment(Killed, settings)
    [straight] = run_experiment(Killed, settings, checkpoint_dir=str(tmp_path / "other"))
    assert resumed["history"] == straight["history"]
    assert resumed["batches"] == 12


def test_a_saver_of_the_model_function(open_trial, tmp_path):
    class Saves(OneWeight):
        def model_fn(self, features, labels, mode):
            spec = super().model_fn(features, labels, mode)
            saver = tf.compat.v1.train.Saver(save_relative_paths=False, max_to_keep=3)
            return spec._replace(scaffold=tf.compat.v1.train.Scaffold(saver=saver))

    trial = open_trial(Saves)
    trial.train(2)
    (tmp_path / "unfinished").mkdir()
    trial.save(str(tmp_path / "unfinished"))
    (tmp_path / "unfinished").rename(tmp_path / "saved")
    found = trial.validate()
    trial.close()
    after = open_trial(Saves, batches_trained=2, checkpoint_dir=str(tmp_path / "saved"))
    assert after.validate() == found
