"""Random state of all generators that a training draws from.

Their places differ: Python's and NumPy's in their modules, TensorFlow's in a global
variable and in the seeds that it gives to single operations, Keras 3's in variables of layers and
one more, Keras 2's in layers, which leave theirs out of checkpoints on purpose.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import is_chief
from generic_trainer._core.keras import is_keras_3
from generic_trainer.errors import TrainingError
from generic_trainer.training._walk import walk

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, tf.random.Generator)
_LAYERS = "layer_rng_states"
_GLOBAL = "tf2_rng_global_state"
_KERAS = "keras_seeds"


def is_generator(thing: Any) -> bool:
    """Returns whether something is a generator of Python's, NumPy's or TensorFlow's."""
    return isinstance(thing, _GENERATORS)


def state_of(generator: Any) -> Any:
    """Returns the state of a generator, or of the module `random` or `numpy.random`."""
    if hasattr(generator, "getstate"):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.state.numpy()


def set_state_of(generator: Any, state: Any) -> None:
    """Sets what `state_of` has returned."""
    if hasattr(generator, "setstate"):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.state.assign(state)


def random_state(model: Any = None) -> dict[str, Any]:
    """Returns the state of all generators that the training of a model may draw from.

    Without a model, of those that all trainings of a process share. It holds numbers, texts,
    arrays, and tuples, lists and dicts of them; None for a generator that there is not. What
    `model.variables` and `tf.train.Checkpoint` have is not repeated.
    """
    state = {name: each and state_of(each) for name, each in _shared(model).items()}
    return {**state, _LAYERS: [state_of(each) for each in _of_layers(model)]}


def set_random_state(model: Any, state: Mapping[str, Any]) -> None:
    """Sets the state that `random_state` has returned; missing names change nothing.

    Workers other than the chief, whose state it is, set what is part of the model.

    Args:
        model: all of whose layers have been built; None for a training without one of Keras.
        state: of a model of the same layers.

    Raises:
        TrainingError: the model has another number of layers that draw.
    """
    generators = _of_layers(model)
    states = state.get(_LAYERS, [])
    if len(states) != len(generators):
        raise TrainingError(
            f"The checkpoint has the random state of {len(states)} layers, and the model has "
            f"{len(generators)} that draw. Restore the model that was saved, or delete the "
            "checkpoint to start afresh."
        )
    for generator, kept in zip(generators, states, strict=True):
        set_state_of(generator, kept)
    if not is_chief():
        return
    # What the other run had is made where it is missing, which draws from Python's generator.
    if state.get(_GLOBAL) is not None:
        tf.random.get_global_generator()
    if state.get(_KERAS) is not None and is_keras_3(model):
        sys.modules["keras"].random.uniform(())  # its first draw makes it
    for name, generator in _shared(model).items():
        if generator is not None and state.get(name) is not None:
            set_state_of(generator, state[name])


def _shared(model: Any) -> dict[str, Any]:
    """Returns name → generator, or None, of those that all models share.

    The first three names are Determined's.
    """
    if is_keras_3(model):
        of_keras = internals.KERAS_3_GLOBAL_ATTRIBUTE.get()("global_seed_generator")
    else:
        of_keras = getattr(internals.KERAS_2_SEEDS.get(), "generator", None)
    return {
        "random_rng_state": random,
        "np_rng_state": np.random,
        _GLOBAL: internals.TF_GLOBAL_GENERATOR.get(),
        "tf_op_seeds": getattr(
            internals.TF_EAGER_CONTEXT.get()(), internals.TF_OP_SEEDS.name, None
        ),
        _KERAS: of_keras,
    }


def shared_variables(model: Any) -> list[tf.Variable]:
    """Returns the variables of the generators that all models share."""
    parts = walk([*_shared(model).values()])
    return [part for _, part in parts if isinstance(part, tf.Variable)]


def _of_layers(model: Any) -> list[tf.random.Generator]:
    """Returns the generators of a model and its layers, which Keras leaves out of checkpoints."""
    return [part for _, part in walk(model) if isinstance(part, tf.random.Generator)]
