"""The files of a checkpoint, and models with parts of their own."""

import dataclasses
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import ModuleFileError, TrainingError
from generic_trainer.training.resume import read_state
from generic_trainer.trials.keras import callbacks
from tests.trials.by_hand import X
from tests.trials.conftest import make_fn_args
from tests.trials.keras.one_weight import OneWeight


class Kept(callbacks.Callback):
    """Counts batches, and adds a file to checkpoints."""

    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1

    def on_checkpoint_end(self, checkpoint_dir):
        files = {path.name for path in Path(checkpoint_dir).iterdir()}
        assert "values.pickle" in files
        Path(checkpoint_dir, "mine.txt").write_text("mine")

    def get_state(self):
        return {"count": self.count}

    def load_state(self, state):
        self.count = state["count"]


def test_the_layout(open_trial, tmp_path):
    trial = open_trial(callbacks=[Kept()])
    trial.train(2)
    trial.save(str(tmp_path))
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")) == [
        "mine.txt",
        "tensors.data-00000-of-00001",
        "tensors.index",
        "values.pickle",
    ]


@dataclasses.dataclass
class Best:
    """What a callback may keep: an object of a class of the trial's own module."""

    weights: np.ndarray
    names: set[str]
    generator: np.random.Generator


class KeepsBest(callbacks.Callback):
    """Has state that is more than numbers."""

    def __init__(self, kept=None):
        super().__init__()
        self.kept = kept

    def get_state(self):
        return {"best": self.kept, 1: (2.5, None)}

    def load_state(self, state):
        self.kept, self.pair = state["best"], state[1]


def test_objects_of_the_trials_own_come_back(open_trial, tmp_path):
    first, second = KeepsBest(Best(np.ones(2), {"a"}, np.random.default_rng(1))), KeepsBest()
    trial = open_trial(callbacks=[first])
    trial.train(1)
    trial.save(str(tmp_path))
    open_trial(callbacks=[second], checkpoint_dir=str(tmp_path)).train(1)
    assert (second.kept.weights.tolist(), second.kept.names) == ([1.0, 1.0], {"a"})
    assert second.kept.generator.random() == np.random.default_rng(1).random()
    assert second.pair == (2.5, None)


@pytest.mark.parametrize("kept", [print, lambda: 1])
def test_what_could_not_be_read_back_is_told_when_it_is_saved(open_trial, tmp_path, kept):
    trial = open_trial(callbacks=[KeepsBest(kept)])
    with pytest.raises(ModuleFileError, match=r"get_state\(\) of a callback returns"):
        trial.save(str(tmp_path))


class Harm:
    """Makes a directory where its pickle is read."""

    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize("is_of_callbacks", [True, False])
def test_what_somebody_else_has_pickled_is_not_run(
    open_trial, tmp_path, monkeypatch, is_of_callbacks
):
    open_trial(callbacks=[Kept()]).save(str(tmp_path))
    content = pickle.dumps(Harm())
    if is_of_callbacks:
        values = {**read_state(str(tmp_path), "values"), "callbacks": content}
        content = pickle.dumps(values)
    (tmp_path / "values.pickle").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    resumed = open_trial(callbacks=[Kept()], checkpoint_dir=str(tmp_path))
    with pytest.raises(TrainingError, match="mkdir, which is no data"):
        resumed.train(1)
    assert not (tmp_path / "made").exists()


def test_a_model_that_has_seen_no_data_is_exported(open_trial, tmp_path):
    class Deferred(OneWeight):
        def make_model(self):
            return tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])

    trial = open_trial(Deferred)
    trial.export(make_fn_args(tmp_path))
    serve = served(tmp_path)
    assert serve(inputs=tf.constant(X))["outputs"].numpy() == pytest.approx(X)


@pytest.mark.parametrize("state", ["present", "checkpoint", "restored"])
@pytest.mark.parametrize("scales_loss", [False, True])
def test_average_weights_are_published_as_fit_ends_with_them(
    open_trial, tmp_path, state, scales_loss
):
    class Averaged(OneWeight):
        def make_optimizer(self):
            own = tf.keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5)
            return tf.keras.mixed_precision.LossScaleOptimizer(own) if scales_loss else own

        def build_alone(self):
            model = self.make_model()
            model.compile(self.make_optimizer(), "mse", jit_compile=False)
            return model

    model = Averaged(None).build_alone()
    model.fit(X, 2 * X, batch_size=1, shuffle=False, verbose=0)
    directory = str(tmp_path / "checkpoint")
    trial = open_trial(Averaged)
    trial.train(3)
    trial.save(directory)
    if state == "restored":
        trial = open_trial(Averaged, batches_trained=3, checkpoint_dir=directory)
    elif state == "checkpoint":
        trial.train(1)
    trial.export(make_fn_args(tmp_path), None if state == "present" else directory)
    found = served(tmp_path)(inputs=tf.constant(X))["outputs"].numpy()
    assert found == pytest.approx(model.predict(X, verbose=0), rel=1e-5)


def test_named_inputs_are_those_of_the_signature(open_trial, tmp_path):
    class Named(OneWeight):
        def make_model(self):
            inputs = {name: tf.keras.Input([1], name=name) for name in ("b", "a")}
            return tf.keras.Model(inputs, tf.keras.layers.Subtract()([inputs["b"], inputs["a"]]))

        def build_training_data_loader(self):
            return {"a": X, "b": 3 * X}, X

        build_validation_data_loader = build_training_data_loader

    open_trial(Named).export(make_fn_args(tmp_path))
    found = served(tmp_path)(a=tf.constant([[1.0]]), b=tf.constant([[5.0]]))
    assert next(iter(found.values())).numpy() == pytest.approx(4.0)


def served(directory):
    model = tf.saved_model.load(str(directory / "Format-Serving"))
    return model.signatures["serving_default"]
