"""Whatever a fit trains, and however its data end, it resumes exactly: with either Keras.

Most models run eagerly, as tracing them would take most of the time; `test_resume_callbacks`, the
data that end between epochs and the campaign train compiled ones.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import training
from generic_trainer.errors import TrainingError

PACKAGES = pytest.mark.parametrize("package", ["keras", "tf_keras"])


@pytest.fixture(autouse=True)
def _fast_keras_2() -> Iterator[None]:
    importlib.import_module("tf_keras")
    tf.random.set_seed(1)  # data are made before models, and shuffles draw from this seed too
    with training.keras_2_left_alone():  # as in a `run_fn`
        yield


class Ended(Exception):
    """Ends a fit as an error of the user's would."""


def callbacks(package: str, directory: Path, end: int, **arguments: Any) -> list[Any]:
    """Returns callbacks that save after each step, and end the fit after some; 0 for never."""
    keras = importlib.import_module(package)
    steps = itertools.count(1)

    def on_end(batch: int, logs: Any) -> None:
        if next(steps) == end:
            raise Ended

    fn_args = types.SimpleNamespace(checkpoint_dir=str(directory))
    resume = training.resume_callbacks(fn_args, every_steps=1, **arguments)
    return [*resume, keras.callbacks.LambdaCallback(on_train_batch_end=on_end)]


def batches(count: int = 6) -> tf.data.Dataset:
    x = tf.reshape(tf.range(2 * count, dtype=tf.float32), [2 * count, 1]) / 12
    return tf.data.Dataset.from_tensor_slices((x, 2 * x)).shuffle(2 * count, seed=3).batch(2)


def values(model: Any) -> list[Any]:
    return [np.asarray(each).tolist() for each in model.get_weights()]


def plain(keras: Any, *, eager: bool = True) -> Any:
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=eager)
    return model


def compiled(keras: Any) -> Any:
    return plain(keras, eager=False)


def own(keras: Any) -> Any:
    """Returns keras.io's GAN in small, with variables of its own.

    Two optimizers are in a list and an object; a counter is an attribute, a moving target in a
    dict.
    """

    class Pair:
        def __init__(self) -> None:
            self.discriminate = keras.optimizers.Adam(0.02)

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.layers.Dense(1)
            self.discriminator = keras.layers.Dense(1)
            self.seen = tf.Variable(0.0, trainable=False)
            self.targets = {"moving": (tf.Variable([[0.5]], trainable=False),)}

        def compile(self) -> None:
            super().compile(loss="mse", run_eagerly=True)
            self.generate = [keras.optimizers.RMSprop(0.01, momentum=0.5)]
            self.pair = Pair()

        def call(self, x: Any) -> Any:
            return self.discriminator(self.generator(x))

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            moving = self.targets["moving"][0]
            self.seen.assign_add(1.0)
            moving.assign(0.9 * moving + 0.1 * tf.reduce_mean(y))
            for part, optimizer in (
                (self.discriminator, self.pair.discriminate),
                (self.generator, self.generate[0]),
            ):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x + self.seen) - y - moving) ** 2)
                gradients = tape.gradient(loss, part.trainable_variables)
                optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
            return {"loss": loss}

    model = Own()
    model.compile()
    return model


KINDS: dict[str, Callable[[Any], Any]] = {each.__name__: each for each in (plain, compiled, own)}


def trained(
    package: str,
    kind: str,
    directory: Path,
    end: int = 0,
    *,
    second: int = -1,
    **arguments: Any,
) -> tuple[list[Any], list[Any]]:
    """Returns weights and losses of one fit, or of two."""
    keras = importlib.import_module(package)
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model, data = KINDS[kind](keras), arguments.pop("data", None) or batches()
    arguments = {"epochs": 2, "verbose": 0, **arguments}
    first = model.fit(data, callbacks=callbacks(package, directory, end), **arguments)
    losses = first.history["loss"]
    if second >= 0:
        fine = callbacks(package, directory, second, name="fine_tuning")
        losses = losses + model.fit(data, callbacks=fine, **arguments).history["loss"]
    return values(model), losses


@PACKAGES
def test_optimizers_and_variables_of_a_model_are_saved(
    tmp_path: Path, package: str, caplog: pytest.LogCaptureFixture
) -> None:
    straight = trained(package, "own", tmp_path / "straight")
    assert "start anew" not in caplog.text
    with pytest.raises(Ended):
        trained(package, "own", tmp_path / "ended", end=8)
    assert trained(package, "own", tmp_path / "ended") == straight

    class Unbuilt(importlib.import_module(package).Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = importlib.import_module(package).layers.Dense(1)

        def build(self, input_shape: Any) -> None:
            pass

    fn_args = types.SimpleNamespace(checkpoint_dir=str(tmp_path / "straight"))
    with pytest.raises(TrainingError, match="has no weights yet: call it on a batch"):
        training.restore_weights(Unbuilt(), fn_args)


@pytest.mark.parametrize(
    ("package", "kind", "second"),
    [
        ("keras", "plain", 1),
        ("tf_keras", "own", 8),
        pytest.param("keras", "own", 8, marks=pytest.mark.campaign("training")),
        pytest.param("tf_keras", "plain", 1, marks=pytest.mark.campaign("training")),
    ],
)
def test_a_second_fit_begins_with_the_optimizer_of_the_first(
    tmp_path: Path, package: str, kind: str, second: int
) -> None:
    straight = trained(package, kind, tmp_path / "straight", second=0)
    with pytest.raises(Ended):
        trained(package, kind, tmp_path / "ended", second=second)
    if second == 1:  # killed before anything of it was saved
        for path in (tmp_path / "ended" / "fine_tuning").glob("step-*"):
            path.rename(tmp_path / path.name)
    assert trained(package, kind, tmp_path / "ended", second=0) == straight


# Keras 2 ends with the data.
@pytest.mark.parametrize(
    ("package", "count", "size", "end"),
    [
        ("keras", 7, "unknown", 11),
        ("tf_keras", 7, "unknown", 5),
        *(
            pytest.param(package, count, size, end, marks=pytest.mark.campaign("training"))
            for package, count, size, end in [
                *(("keras", 6, "known", 5), ("keras", 6, "known", 11), ("keras", 7, "unknown", 5)),
                *(("tf_keras", 6, "known", end) for end in (2, 5)),
                ("tf_keras", 7, "unknown", 2),
            ]
        ),
    ],
)
def test_data_that_end_between_epochs_or_within_one(
    tmp_path: Path, package: str, count: int, size: str, end: int
) -> None:
    def data() -> tf.data.Dataset:
        made = batches(count)
        return made if size == "known" else made.filter(lambda x, y: True)

    arguments: dict[str, Any] = {"epochs": 6, "steps_per_epoch": 3}
    straight = trained(package, "compiled", tmp_path / "straight", data=data(), **arguments)
    with pytest.raises(Ended):
        trained(package, "compiled", tmp_path / "ended", end, data=data(), **arguments)
    assert trained(package, "compiled", tmp_path / "ended", data=data(), **arguments) == straight


@PACKAGES
def test_other_data_than_were_saved_are_refused(tmp_path: Path, package: str) -> None:
    with pytest.raises(Ended):
        trained(package, "plain", tmp_path, 11)
    for other in ({"data": batches(4)}, {"epochs": 1}):
        with pytest.raises(TrainingError, match=r"end at another batch\. Restore them"):
            trained(package, "plain", tmp_path, **other)


@PACKAGES
def test_data_that_are_shuffled_more_than_once_in_an_epoch(tmp_path: Path, package: str) -> None:
    def data() -> tf.data.Dataset:
        return batches().unbatch().shuffle(12, seed=4).repeat(2).batch(8)

    straight = trained(package, "plain", tmp_path / "straight", data=data())
    with pytest.raises(Ended):
        trained(package, "plain", tmp_path / "ended", 5, data=data())
    assert trained(package, "plain", tmp_path / "ended", data=data()) == straight


@PACKAGES
def test_a_second_fit_shuffles_endless_data_as_without_the_interruption(
    tmp_path: Path, package: str
) -> None:
    def data() -> tf.data.Dataset:
        options = tf.data.Options()  # what is read ahead may draw a seed, or not yet
        options.experimental_optimization.inject_prefetch = False
        return batches().unbatch().shuffle(12, seed=4).repeat().batch(2).with_options(options)

    arguments: dict[str, Any] = {"steps_per_epoch": 4}
    straight = trained(package, "plain", tmp_path / "straight", second=0, data=data(), **arguments)
    with pytest.raises(Ended):
        trained(package, "plain", tmp_path / "ended", second=1, data=data(), **arguments)
    for path in (tmp_path / "ended" / "fine_tuning").glob("step-*"):
        path.rename(tmp_path / path.name)  # so that the second fit begins anew
    found = trained(package, "plain", tmp_path / "ended", second=0, data=data(), **arguments)
    assert found == straight


@PACKAGES
def test_variables_that_cannot_be_saved_are_named(
    tmp_path: Path, package: str, caplog: pytest.LogCaptureFixture
) -> None:
    keras = importlib.import_module(package)
    apart = tf.Variable(1.0, trainable=False, name="apart")
    still = tf.Variable(1.0, trainable=False, name="still")

    class Using(keras.Sequential):
        @tf.autograph.experimental.do_not_convert
        def train_step(self, batch: Any) -> Any:
            apart.assign_add(still)
            return super().train_step(batch)

    model = Using([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with caplog.at_level(logging.WARNING):
        model.fit(batches(), verbose=0, callbacks=callbacks(package, tmp_path, 0))
    (message,) = [each for each in caplog.messages if "these variables start anew" in each]
    assert "apart" in message
    assert "still" not in message
    assert "dense" not in message


@PACKAGES
def test_adapted_layers_are_restored(tmp_path: Path, package: str) -> None:
    keras = importlib.import_module(package)
    texts = np.array([["b a"], ["b"], ["c d"], ["b"]])
    data = {
        "idf": texts,
        "words": texts,
        "text": texts,
        "numbers": np.array([[3], [7], [7], [5]]),
        "bins": np.array([[3.0], [7.0], [8.0], [5.0]], "float32"),
        "scaled": np.array([[100.0], [120.0], [150.0], [90.0]], "float32"),
    }

    class Model(keras.Model):
        def __init__(self, adapts: bool) -> None:
            super().__init__()
            self.parts = [
                keras.layers.StringLookup(output_mode="tf_idf"),
                keras.layers.StringLookup(),
                keras.layers.TextVectorization(),
                keras.layers.IntegerLookup(),
                keras.layers.Discretization(num_bins=2),
                keras.layers.Normalization(),
            ]
            self.dense = keras.layers.Dense(1)
            for layer, values in zip(self.parts, data.values(), strict=True):
                if adapts:
                    layer.adapt(values)
                elif values.dtype == "float32":
                    layer.build((None, 1))

        @tf.autograph.experimental.do_not_convert
        def call(self, x: Any, training: Any = None) -> Any:
            parts = zip(self.parts, data, strict=True)
            learned = [tf.cast(layer(x[name]), tf.float32) for layer, name in parts]
            sums = [tf.reduce_sum(each, -1, keepdims=True) for each in learned]
            return self.dense(tf.concat(sums, -1))

    first, other = Model(True), Model(False)
    first.compile("adam", "mse")
    first.fit(
        tf.data.Dataset.from_tensors((data, np.ones([4, 1], "float32"))),
        verbose=0,
        callbacks=callbacks(package, tmp_path, 0),
    )
    other.dense.build((None, 6))
    other.built = True
    assert training.restore_weights(other, types.SimpleNamespace(checkpoint_dir=str(tmp_path)))
    inputs = {name: tf.constant(each) for name, each in data.items()}
    assert np.asarray(other(inputs)).tolist() == np.asarray(first(inputs)).tolist()
