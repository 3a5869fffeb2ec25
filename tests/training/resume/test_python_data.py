"""A fit whose data draw from Python's and NumPy's generators resumes exactly, with either Keras."""

import functools
import random
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import training
from generic_trainer.training import resume
from generic_trainer.training.distributed import DataParallelStrategy
from generic_trainer.training.resume import _randomness
from generic_trainer.training.resume._draws import Draws
from tests.training.resume.fits import Ended, ending, fn_args, values

X = np.arange(12, dtype=np.float32)[:, None] / 12


def sequence(keras: Any) -> Any:
    """Returns keras.io's DataGenerator in small: it shuffles per epoch and augments each row."""

    class DataGenerator(keras.utils.Sequence):
        def __init__(self) -> None:
            super().__init__()
            self.indexes = np.arange(len(X))
            self.on_epoch_end()

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            rows = X[self.indexes[3 * index : 3 * index + 3]]
            rows = rows + np.random.normal(0, 0.1, rows.shape).astype("float32")
            return rows * random.choice([1, -1]), 2 * rows

        def on_epoch_begin(self) -> None:  # called by Keras 3 alone
            np.random.shuffle(self.indexes)

        def on_epoch_end(self) -> None:
            np.random.shuffle(self.indexes)

    return DataGenerator()


def _batches() -> Iterator[tuple[Any, Any]]:
    for rows in np.split(X[np.random.permutation(len(X))], 4):
        rows = rows + np.random.normal(0, 0.1, rows.shape).astype("float32")
        yield rows, 2 * rows


def from_generator(keras: Any) -> Any:
    spec = tf.TensorSpec([None, 1])
    return tf.data.Dataset.from_generator(_batches, output_signature=(spec, spec))


def shuffled(keras: Any) -> Any:
    return from_generator(keras).shuffle(3, seed=2)


def endless(keras: Any) -> Any:
    return from_generator(keras).repeat()


def generator(keras: Any) -> Any:
    def forever() -> Iterator[Any]:
        while True:
            yield from _batches()

    return forever()


def mapped(keras: Any) -> Any:
    def augment(x: Any) -> Any:
        return x + np.random.normal(0, 0.1, x.shape).astype("float32")

    def both(x: Any) -> Any:
        x = tf.ensure_shape(tf.numpy_function(augment, [x], tf.float32), [3, 1])
        return x, 2 * x

    return tf.data.Dataset.from_tensor_slices(X).batch(3).map(both)


def trained(keras: Any, make: Any, directory: Path, end: int, **arguments: Any) -> Any:
    """Returns weights and losses of a fit that ends after some steps; 0: that does not."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    data = make(keras)
    arguments = {name: each(keras) if callable(each) else each for name, each in arguments.items()}
    resume = training.resume_callbacks(fn_args(directory), every_steps=1)
    history = model.fit(
        data, epochs=4, verbose=0, callbacks=[*resume, ending(keras, end)], **arguments
    )
    return values(model), history.history["loss"]


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sequences": (sequence, {"validation_data": sequence}),
    "shuffled": (shuffled, {}),
    "endless": (endless, {"steps_per_epoch": 3}),
    "generator": (generator, {"steps_per_epoch": 4}),
    "map": (mapped, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_resumes_in_the_draws_of_its_data(keras: Any, kind: str, tmp_path: Path) -> None:
    make, arguments = KINDS[kind]
    expected = trained(keras, make, tmp_path / "straight", 0, **arguments)
    for end in (2, 2, 3, 2):  # within the first epoch, at its end, within the second and third
        with pytest.raises(Ended):
            trained(keras, make, tmp_path / "ended", end, **arguments)
    assert trained(keras, make, tmp_path / "ended", 0, **arguments) == expected


DATASETS = {
    "map": lambda drawn: tf.data.Dataset.range(9).map(drawn),
    "map, batch": lambda drawn: tf.data.Dataset.range(9).map(drawn).batch(1),
    "batch, map": lambda drawn: tf.data.Dataset.range(9).batch(1).map(drawn),
    "map, batch, repeat": lambda drawn: tf.data.Dataset.range(9).map(drawn).batch(1).repeat(),
    "generator": lambda drawn: tf.data.Dataset.from_generator(
        lambda: map(drawn.__wrapped__, range(9)), output_signature=tf.TensorSpec([])
    ),
}


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("kind", DATASETS)
def test_no_thread_draws_ahead(kind: str, stateful: bool) -> None:
    draws: list[float] = []

    def draw(_: Any) -> np.float32:
        draws.append(np.random.normal())
        return np.float32(draws[-1])

    @functools.wraps(draw)
    def drawn(number: Any) -> Any:
        return tf.numpy_function(draw, [number], tf.float32, stateful=stateful)

    data = iter(resume.not_ahead(DATASETS[kind](drawn)))
    for step in range(1, 4):
        next(data)
        time.sleep(0.1)  # time for a thread that there should not be
        assert len(draws) == step


def test_what_the_data_keep_for_themselves_is_named(
    keras: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Ended):
        trained(keras, sequence, tmp_path, 6)
    assert "start anew" not in caplog.text
    trained(keras, sequence, tmp_path, 0)
    assert "Generators of the data's own, such as default_rng" in caplog.text


def test_data_of_a_fit_that_ended_after_an_epoch_learn_of_all_ends_once_more(
    keras: Any, tmp_path: Path
) -> None:
    class Counting(keras.utils.Sequence):
        ends = 0

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            return X[:2], X[:2]

        def on_epoch_end(self) -> None:
            self.ends += 1

    class Stopping(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 2

    def ended() -> tuple[int, bool]:
        data, model = Counting(), keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        callbacks = [*training.resume_callbacks(fn_args(tmp_path)), Stopping()]
        model.fit(data, epochs=5, verbose=0, callbacks=callbacks)
        return data.ends, model.stop_training

    first = ended()
    assert first[1]
    assert ended() == first


@pytest.mark.parametrize("kind", ["of Python", "of TensorFlow"])
def test_all_workers_shuffle_what_they_read_before_the_first_pass_as_the_chief_had(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = object.__new__(DataParallelStrategy)
    data = tf.data.Dataset.range(1)
    if kind == "of Python":
        data = DATASETS["generator"](functools.wraps(float)(lambda each: each))
    chief, other = (Draws(types.SimpleNamespace(distribute_strategy=strategy)) for _ in range(2))
    random.seed(1)
    chief.begin_epoch(0)
    drawn = random.random()
    chief.begin_pass(iter(data))
    expected = random.random()
    monkeypatch.setattr(_randomness, "is_chief", lambda: False)
    random.seed(2)
    own = random.Random(2).random()
    other.restore(chief.values())
    other.begin_epoch(0)
    assert random.random() == drawn
    other.begin_pass(iter(data))
    assert random.random() == (expected if kind == "of Python" else own)
