"""The files of a Keras trial's checkpoint.

::

    determined-keras-model-weights.{index,data-…}   the model's variables
    determined-keras-optimizer-weights.{…}          the optimizers' variables
    replicas.pickle                                 statistics of which each slot has its own
    adapted.pickle                                  vocabularies of layers, if there are any
    rng_state.pickle                                random generators, those of layers included
    callbacks.pickle                                what callbacks keep

With Keras 2 the weights are what ``model.load_weights("determined-keras-model-weights")`` reads.
Keras 3 reads no such files; there they are a `tf.train.Checkpoint` of the list
``[variable.value for variable in model.variables]`` under the name "weights",
and of the model's own variables of TensorFlow under "own".
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import is_keras_3
from generic_trainer.errors import TrainingError
from generic_trainer.training.resume import (
    WEIGHTS,
    OwnOfReplicas,
    adapted_state,
    random_state,
    read_state,
    set_adapted_state,
    variables_of,
    write_state,
)

_WEIGHTS = "determined-keras-model-weights"
_OPTIMIZERS = "determined-keras-optimizer-weights"
_REPLICAS = "replicas"
GENERATORS, CALLBACKS, _ADAPTED = "rng_state", "callbacks", "adapted"


def write_checkpoint(
    directory: str,
    model: Any,
    optimizers: Sequence[Any],
    *,
    callbacks: Any,
    code: Collection[str],
    generators: tuple[Any, Any] | None,
) -> None:
    """Writes what training depends on into an empty directory.

    Args:
        directory: local or remote.
        model: all of whose variables have been made.
        optimizers: likewise.
        callbacks: their states.
        code: modules whose classes may be in it.
        generators: the state of Python's and NumPy's; None if it is the present one.

    Raises:
        ValueError: `callbacks` has objects of other classes.
    """
    _tracked(model).write(os.path.join(directory, _WEIGHTS))
    _variables_of(optimizers).write(os.path.join(directory, _OPTIMIZERS))
    own = OwnOfReplicas(model.distribute_strategy, model.variables)
    write_state(directory, _REPLICAS, own.values())
    write_state(directory, _ADAPTED, adapted_state(model))
    state = random_state(model)
    if generators is not None:
        state["random_rng_state"], state["np_rng_state"] = generators
    write_state(directory, GENERATORS, state)
    write_state(directory, CALLBACKS, callbacks, code=code)


def read_variables(directory: str, model: Any, optimizers: Sequence[Any] = ()) -> None:
    """Restores the variables of a model and of optimizers, which must have been made."""
    _read(_tracked(model), os.path.join(directory, _WEIGHTS), "the model of build_model")
    own = OwnOfReplicas(model.distribute_strategy, model.variables)
    own.assign(read_kept(directory, _REPLICAS))
    set_adapted_state(model, read_kept(directory, _ADAPTED))
    if optimizers:
        path = os.path.join(directory, _OPTIMIZERS)
        _read(_variables_of(optimizers), path, "the optimizers of the trial")


def read_kept(directory: str, name: str, code: Collection[str] = ()) -> Any:
    """Returns the random generators or what callbacks keep.

    Args:
        directory: of the checkpoint.
        name: `GENERATORS` or `CALLBACKS`.
        code: modules whose classes may be in it.

    Raises:
        TrainingError: there is something else in it.
    """
    try:
        return read_state(directory, name, code=code)
    except ValueError as error:
        raise TrainingError(
            f"The checkpoint {directory} is not restored: {name} cannot be read, "
            f"because {error}. If you trust its author, have get_state() return numbers, "
            "texts and arrays and train anew; else delete it."
        ) from error


def _tracked(model: Any) -> tf.train.Checkpoint:
    if not is_keras_3(model):
        return tf.train.Checkpoint(root=model)
    weights = [variable.value for variable in model.variables]
    listed = {id(each) for each in weights}
    # Those of TensorFlow, which Keras 3 does not list.
    others = ((name, each) for name, each in variables_of(model).items() if id(each) not in listed)
    own = [each for name, each in others if name.startswith(WEIGHTS)]
    return tf.train.Checkpoint(weights=weights, own=own)


def _variables_of(optimizers: Sequence[Any]) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(optimizers=[*map(_variables, optimizers)])


def _read(checkpoint: tf.train.Checkpoint, path: str, subject: str) -> None:
    try:
        checkpoint.read(path).assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise TrainingError(
            f"The checkpoint {path} does not fit {subject}: {error}. Build the same model, or "
            "delete it to start afresh."
        ) from error


def _variables(optimizer: Any) -> list[tf.Variable]:
    """Returns TensorFlow's variables of an optimizer of Keras 2, Keras 3 or Keras 2's legacy."""
    listed = optimizer.variables
    listed = list(listed() if callable(listed) else listed)
    variables = [one if isinstance(one, tf.Variable) else one.value for one in listed]
    rate = getattr(optimizer, "learning_rate", None)  # Keras 2 does not list it
    if isinstance(rate, tf.Variable) and all(rate is not variable for variable in variables):
        variables.append(rate)
    return variables


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the variables of an optimizer, where they are not there yet."""
    if not hasattr(optimizer, "build"):
        internals.KERAS_2_LEGACY_BUILD.of(optimizer)(variables)
    elif not (is_keras_3(optimizer) and optimizer.built):
        optimizer.build(variables)
