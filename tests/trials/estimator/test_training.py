"""What `EstimatorTrial` trains, measures and keeps."""

import importlib
import random
import sys

import numpy as np
import pytest

from generic_trainer.estimator import tf
from generic_trainer.trials._trial import TrialRun
from tests.trials.by_hand import X, config, steps
from tests.trials.estimator.one_weight import OneWeight, WithMomentum

tf1 = tf.compat.v1


def test_training_metrics_are_all_scalar_summaries_averaged_over_batches(open_trial):
    metrics = open_trial().train(5)
    by_hand = list(steps(5))
    assert metrics.keys() == {"loss", "weight"}
    assert metrics["loss"] == pytest.approx(sum(loss for _, loss in by_hand) / 5, rel=1e-5)
    # As it is before each update.
    assert metrics["weight"] == pytest.approx(sum(w for w, _ in by_hand) / 5, rel=1e-5)


def test_validation_metrics_are_those_of_the_estimator(open_trial):
    metrics = open_trial().validate()
    # At w = 0 the batches (1, 2) and (3) have losses (4 + 16) / 2 and 36; the metric is per record.
    assert metrics == {
        "loss": pytest.approx((10 + 36) / 2),
        "error": pytest.approx((2 + 4 + 6) / 3),
        "global_step": 0,
    }


@pytest.mark.parametrize(("trial_class", "shuffle"), [(OneWeight, True), (WithMomentum, False)])
def test_a_restored_trial_goes_on_as_the_straight_one(resumed, trial_class, shuffle):
    def batch(trial):
        return trial.train(1)["loss"], trial.validate()

    data = {"shuffle": shuffle}
    expected, found = resumed(trial_class, batch=batch, data=data, hparams={"rate": 0.0005})
    assert found == expected
    assert found[-1][0] > 0


def test_the_files_of_a_checkpoint(open_trial, tmp_path):
    trial = open_trial()
    trial.train(3)
    trial.save(str(tmp_path))
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    [export] = (tmp_path / "plain").iterdir()
    assert {
        "checkpoint",
        "model.ckpt-3.index",
        "model.ckpt-3.meta",
        "model.ckpt-3.data-00000-of-00001",
        "rng_state.pickle",
        f"plain/{export.name}/saved_model.pb",
    } <= names
    assert not [name for name in names if name.startswith("events")]


class Draws(OneWeight):
    """Adds noise of every kind that can be saved, also while its graph is built."""

    def build_estimator(self):
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))  # seeds do not reset it
        return super().build_estimator()

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


def drawing_batch(trial):
    """Returns a loss, and what other code draws from the global generators before the next."""
    loss = trial.train(1)["loss"]
    drawn = tf.random.get_global_generator().uniform([], maxval=10**6, dtype=tf.int64)
    drawn += tf.random.uniform([], maxval=10**6, dtype=tf.int64)  # by the seeds of operations
    return loss, np.random.random(), random.random(), int(drawn)


def test_what_draws_goes_on_as_in_the_straight_run(resumed, caplog):
    expected, found = resumed(Draws, batch=drawing_batch, hparams={"rate": 0.0005})
    assert found == expected
    assert len({loss for loss, *_ in found}) == len(found)
    assert "draws other random numbers" not in caplog.text


def test_building_the_graph_once_more_draws_nothing(resumed):
    hparams = {"rate": 0.0005, "scaled": True}
    expected, found = resumed(Draws, batch=drawing_batch, hparams=hparams)
    assert found == expected


class Permuting(OneWeight):
    """Its input function draws the order of the records, and a generator their noise.

    Its validations draw, too.
    """

    def train_data(self):
        way = self.context.get_hparams()["way"]
        order = np.random.permutation(3)
        if way == "permutation":
            data = tf.data.Dataset.from_tensor_slices(X[order])
        elif way == "generator":
            data = tf.data.Dataset.from_generator(self.rows, tf.float32, tf.TensorShape([1]))
        else:
            data = tf.data.Dataset.from_tensor_slices(X).map(self.noisy)
        data = self.context.wrap_dataset(data.map(lambda x: ({"x": x}, 2 * x)))
        return data.batch(1)

    def rows(self):
        for number in np.random.permutation(3):
            yield X[number] + np.float32(np.random.normal() / 10)

    def noisy(self, x):
        def draw(x):
            return x + np.float32(random.random())

        return tf.ensure_shape(tf.numpy_function(draw, [x], tf.float32), [1])

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(self.train_data, steps=None)


@pytest.mark.parametrize("way", ["permutation", "generator", "map"])
def test_what_the_input_function_draws_is_drawn_again(resumed, way):
    def batch(trial):
        return trial.train(1)["loss"], trial.validate()

    hparams = {"rate": 0.005, "way": way}
    expected, found = resumed(Permuting, batch=batch, before=4, after=5, hparams=hparams)
    assert found == expected


def test_what_cannot_be_resumed_exactly_is_named(open_trial, caplog):
    open_trial(Draws, hparams={"global_batch_size": 1, "stateful": True}).train(1)
    assert "draws other random numbers than it would have in dropped/dropout" in caplog.text


def test_an_input_function_may_take_what_estimators_pass(open_trial):
    class Asks(OneWeight):
        def build_train_spec(self):
            def input_fn(params, mode, config):
                assert (params, mode, config.tf_random_seed) == ({}, "train", 3)
                return self.train_data()

            return tf.estimator.TrainSpec(input_fn, max_steps=1)

    assert open_trial(Asks).train(2)["loss"] == pytest.approx((4 + 10.24) / 2)


def test_a_saver_of_the_model_function(open_trial, tmp_path):
    class Saves(OneWeight):
        def model_fn(self, features, labels, mode):
            spec = super().model_fn(features, labels, mode)
            names = {f"their/{one.op.name}": one for one in tf1.global_variables()}
            saver = tf1.train.Saver(names, save_relative_paths=False, max_to_keep=3)
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


def test_a_validation_ends_although_its_metrics_read_no_record(open_trial):
    class Apart(OneWeight):
        def model_fn(self, features, labels, mode):
            w = tf.compat.v1.get_variable("w", [], initializer=tf.zeros_initializer())
            step = tf.compat.v1.assign_add(tf.compat.v1.train.get_global_step(), 1)
            return tf.estimator.EstimatorSpec(mode, loss=(w - 1) ** 2, train_op=step)

    assert open_trial(Apart).validate()["loss"] == 1


FIRST_API = """
from generic_trainer.estimator import tf1 as tf
from generic_trainer.trials.estimator import EstimatorTrial
from generic_trainer.trials.tensorflow import EstimatorTrial as OfPedl

class OfDetermined(EstimatorTrial):
    def __init__(self, context):
        look()

    def build_estimator(self, *hparams):
        look()

    build_train_spec = build_validation_spec = build_serving_input_receiver_fns = build_estimator

class OfPedl(OfPedl):
    def __init__(self, hparams):
        look()

    build_estimator = build_train_spec = build_validation_spec = OfDetermined.build_estimator
    build_serving_input_receiver_fns = build_estimator

seen = []

def look():
    seen.append((tf.executing_eagerly(), tf.placeholder(tf.float32, [None, 3]).shape[1].value))
"""


@pytest.mark.parametrize("name", ["OfDetermined", "OfPedl"])
def test_methods_of_a_trial_for_tensorflow_1_run_as_there(tmp_path, monkeypatch, name):
    (tmp_path / "first_api.py").write_text(FIRST_API)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("first_api")
    run = TrialRun(trial_id=1, config={}, hparams={"global_batch_size": 1}, seed=0)
    with pytest.raises(AttributeError, match=r"'hooks'"):
        getattr(module, name).open_controller(run)  # there is no estimator in the end
    assert module.seen == [(False, 3)] * 5
    assert tf.executing_eagerly()
    del sys.modules["first_api"]


def test_the_estimator_that_was_trained_is_exported(run_experiment, tmp_path):
    class Once(OneWeight):
        def build_estimator(self):
            (tmp_path / "made").mkdir()
            return super().build_estimator()

    run_experiment(Once, config(2))
    assert (tmp_path / "Format-Serving" / "saved_model.pb").exists()
