"""Generators of every kind go on from where they were."""

import functools
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.training.resume import ModelState
from generic_trainer.training.resume._callback_state import CallbackState
from generic_trainer.training.resume._randomness import set_state_of, state_of
from tests.training.resume import fit_in_child


def built_model(keras: Any) -> Any:
    """Returns a model whose layers draw from a generator of TensorFlow."""

    class Noise(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.random.Generator.from_seed(4)

        def call(self, inputs: Any) -> Any:
            return inputs + self.generator.normal([1])

    noise = Noise() if keras.__name__ == "keras" else fit_in_child.dropout_with_generator(keras)
    model = keras.Sequential([keras.Sequential([noise]), keras.layers.Flatten()])
    model(tf.ones([1, 4]), training=True)
    return model


def draws(keras: Any, model: Any) -> list[Any]:
    """Returns what all generators draw next."""
    tensors = [
        model(tf.ones([1, 4]), training=True),
        tf.random.get_global_generator().normal([2]),
        tf.random.normal([2]),
        keras.random.normal([2])
        if keras.__name__ == "keras"
        else keras.layers.Dense(2)(tf.ones([1, 1])),
    ]
    return [random.random(), np.random.random(), *(each.numpy().tolist() for each in tensors)]


def test_all_generators_go_on(tmp_path: Path, keras: Any) -> None:
    keras.utils.set_random_seed(1)
    model = built_model(keras)
    first = draws(keras, model)
    state = ModelState(model)
    state.find_variables()
    state.take({})(str(tmp_path))
    expected = draws(keras, model)
    assert all(one != other for one, other in zip(first, expected, strict=True))
    keras.utils.set_random_seed(1)
    state.read_weights(str(tmp_path))
    state.read()
    assert draws(keras, model) == expected


def test_generators_of_callbacks_go_on_in_their_place() -> None:
    class Draws:
        def __init__(self, seed: int) -> None:
            self.numpy, self.python = np.random.default_rng(seed), random.Random(seed)
            self.legacy = np.random.RandomState(seed)

        def draw(self) -> list[float]:
            return [self.numpy.random(), self.python.random(), self.legacy.random_sample()]

    first, second = Draws(1), Draws(2)
    kept = second.numpy
    first.draw()
    CallbackState([second]).assign(CallbackState([first]).values(), "path")
    assert second.numpy is kept
    assert second.draw() == first.draw()


def drawing(place: str, seed: int) -> tuple[Any, Callable[[], float]]:
    """Returns a callback, and a function that draws from what it holds at a place."""
    rng = np.random.default_rng(seed)
    generator = random.Random(seed)

    class Holder:
        shared = np.random.default_rng(seed)

        def __init__(self) -> None:
            self.rng = rng

        def draw(self, *args: Any) -> float:
            return float(self.rng.random())

    def draw(*args: Any) -> float:
        return float(rng.random())

    def late() -> float:
        callback.late = getattr(callback, "late", None) or random.Random(seed)
        return float(callback.late.random())

    callback: Any = Holder() if place == "class" else types.SimpleNamespace()
    draws: dict[str, Callable[[], float]] = {
        "list": lambda: float(callback.held[0].random() + callback.held[1].random()),
        "dict": lambda: float(callback.held["a"].random()),
        "tuple": lambda: float(callback.held[0].random()),
        "class": lambda: float(callback.shared.random()),
        "around": draw,
        "method": Holder().draw,
        "partial": functools.partial(lambda held: float(held.random()), generator),
        "late": late,
    }
    if place == "list":
        callback.held = [rng, generator]
    elif place == "dict":
        callback.held = {"a": generator}
    elif place == "tuple":
        callback.held = (rng,)
    elif place in ("around", "method", "partial"):
        callback.function = draws[place]
    return callback, draws[place]


@pytest.mark.parametrize(
    "place", ["list", "dict", "tuple", "class", "around", "method", "partial", "late"]
)
def test_generators_that_callbacks_hold_anywhere_go_on(place: str) -> None:
    (first, draw), (second, draw_again) = drawing(place, 1), drawing(place, 2)
    draw()
    CallbackState([second]).assign(CallbackState([first]).values(), "path")
    assert [draw_again(), draw_again()] == [draw(), draw()]


def test_a_generator_that_a_callback_gives_up_is_given_up() -> None:
    first, second = types.SimpleNamespace(rng=None), types.SimpleNamespace(rng=random.Random(1))
    CallbackState([second]).assign(CallbackState([first]).values(), "path")
    assert second.rng is None


def test_generators_without_a_state_are_left_alone() -> None:
    class Holder:
        shared = random.SystemRandom()

        def __init__(self) -> None:
            self.rng, self.held = random.SystemRandom(), [random.SystemRandom()]
            self.function = lambda rng=self.rng: rng.random()

    first, second = Holder(), Holder()
    kept = second.rng
    CallbackState([second]).assign(CallbackState([first]).values(), "path")
    assert second.rng is kept


def test_state_is_read_and_set_where_code_of_tensorflow_1_disabled_eager_execution() -> None:
    generator = tf.random.Generator.from_seed(3)
    with tf.Graph().as_default():
        state = state_of(generator)
    expected = generator.normal([3]).numpy().tolist()
    with tf.Graph().as_default():
        set_state_of(generator, state)
    assert generator.normal([3]).numpy().tolist() == expected
