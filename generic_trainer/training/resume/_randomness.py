"""Random state of all generators that a training draws from.

Their places differ: Python's and NumPy's in their modules, TensorFlow's in a global variable and in
the seeds that it gives to single operations, each Keras's in a variable. Generators of layers have
variables too, which `variables_of` finds.
"""

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import is_chief
from generic_trainer._core.keras import is_keras_3
from generic_trainer.training._walk import walk

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, tf.random.Generator)
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
    """Returns the state of the generators that all trainings of this process share.

    It holds numbers, texts, arrays, and tuples, lists and dicts of them; None for a generator that
    there is not.

    Args:
        model: decides which Keras; None for that of `tf.keras`.
    """
    return {name: each and state_of(each) for name, each in _shared(model).items()}


def set_random_state(model: Any, state: Mapping[str, Any]) -> None:
    """Sets the state that `random_state` has returned, in the chief, whose state it is.

    Args:
        model: see `random_state`.
        state: missing names change nothing.
    """
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
