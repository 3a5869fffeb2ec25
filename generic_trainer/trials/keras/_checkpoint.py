"""The files of a Keras trial's checkpoint.

::

    determined-keras-model-weights.{index,data-…}   the model's variables
    determined-keras-optimizer-weights.h5           the optimizers' variables: a group for each
                                                    optimizer, in it a dataset for each variable;
                                                    `sums` are gradients of a step to come
    replicas.npz                                    moving statistics of each slot, if several
    rng_state.{json,npz}                            random generators, those of layers included
    callbacks.{json,npz}                            what callbacks keep
    code/                                           the trial's module

With Keras 2 the weights are what ``model.load_weights("determined-keras-model-weights")`` reads.
Keras 3 reads no such files; there they are a `tf.train.Checkpoint` of the list
``[variable.value for variable in model.variables]`` under the name "weights".
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import read_whole, write_whole
from generic_trainer._core.keras import is_keras_3
from generic_trainer.errors import TrainingError
from generic_trainer.training.resume import (
    OwnOfReplicas,
    random_state,
    read_state,
    set_random_state,
    write_state,
)

_WEIGHTS = "determined-keras-model-weights"
_OPTIMIZERS = "determined-keras-optimizer-weights.h5"
_REPLICAS = "replicas.npz"
_GENERATORS, _CALLBACKS = "rng_state", "callbacks"


def write_checkpoint(
    directory: str,
    model: Any,
    optimizers: Sequence[Any],
    *,
    sums: Sequence[Any],
    callbacks: Any,
    code: Collection[str],
    generators: tuple[Any, Any] | None,
) -> None:
    """Writes what training depends on into an empty directory.

    Args:
        directory: local or remote.
        model: all of whose variables have been made.
        optimizers: likewise.
        sums: of gradients that are not applied yet.
        callbacks: what they keep.
        code: modules whose classes may be in it.
        generators: the state of Python's and NumPy's; None if it is the present one.

    Raises:
        ValueError: `callbacks` has objects of other classes.
    """
    import h5py

    _tracked(model).write(os.path.join(directory, _WEIGHTS))
    own = OwnOfReplicas(model.distribute_strategy, model.variables)
    own.take(_REPLICAS)(directory)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, variables in _groups(optimizers, sums).items():
            group = file.create_group(name)
            for index, variable in enumerate(variables):
                group.create_dataset(str(index), data=np.asarray(variable))
    write_whole(os.path.join(directory, _OPTIMIZERS), buffer.getvalue())
    state = random_state(model)
    if generators is not None:
        state["random_rng_state"], state["np_rng_state"] = generators
    write_state(directory, _GENERATORS, state)
    write_state(directory, _CALLBACKS, callbacks, code=code)


def read_weights(directory: str, model: Any) -> None:
    """Restores the variables of a model, which must have been made."""
    path = os.path.join(directory, _WEIGHTS)
    try:
        _tracked(model).read(path).assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise TrainingError(
            f"The checkpoint {path} does not fit the model of build_model: {error}. Build what was "
            "saved, or delete it to start afresh."
        ) from error
    own = OwnOfReplicas(model.distribute_strategy, model.variables)
    own.read(os.path.join(directory, _REPLICAS))


def read_base_model(directory: str, model: Any) -> None:
    """Gives a model, whose variables have been made, the weights of a SavedModel."""
    base = tf.saved_model.load(directory)
    weights = [np.asarray(weight) for weight in getattr(base, "model_weights", ())]
    saved, actual = [w.shape for w in weights], [tuple(w.shape) for w in model.weights]
    if saved != actual:
        raise TrainingError(
            f"The base model {directory} does not fit the model of build_model: it has weights of "
            f"shapes {saved}, and that has {actual}. Build what was trained, or train from scratch."
        )
    model.set_weights(weights)


def read_generators(directory: str, model: Any) -> None:
    """Restores the random generators that are no variables of the model.

    Raises:
        TrainingError: the model has another number of layers that draw.
    """
    set_random_state(model, _read_kept(directory, _GENERATORS))


def read_callbacks(directory: str, code: Collection[str]) -> Any:
    """Returns what callbacks keep; `code` are modules whose classes may be in it."""
    return _read_kept(directory, _CALLBACKS, code)


def _read_kept(directory: str, name: str, code: Collection[str] = ()) -> Any:
    try:
        return read_state(directory, name, code=code)
    except ValueError as error:
        raise TrainingError(
            f"The checkpoint {directory} is not restored: what it keeps as {name} is not read, "
            f"because {error}. If you trust who has written it, have get_state() return numbers, "
            "texts and arrays and train anew; else delete it."
        ) from error


def _tracked(model: Any) -> tf.train.Checkpoint:
    if is_keras_3(model):
        return tf.train.Checkpoint(weights=[variable.value for variable in model.variables])
    return tf.train.Checkpoint(root=model)


def read_optimizers(directory: str, optimizers: Sequence[Any], sums: Sequence[Any]) -> None:
    """Restores the variables of optimizers and sums of gradients; all must have been made."""
    import h5py

    with h5py.File(io.BytesIO(read_whole(os.path.join(directory, _OPTIMIZERS))), "r") as file:
        for name, variables in _groups(optimizers, sums).items():
            group = file.get(name) or {}
            values = [group[str(index)][()] for index in range(len(group))]
            saved, actual = [np.shape(v) for v in values], [tuple(v.shape) for v in variables]
            if saved != actual:
                raise TrainingError(
                    f"The checkpoint {os.path.join(directory, _OPTIMIZERS)} does not fit {name}: "
                    f"variables of shapes {saved} were saved, and it has {actual}. Train what was "
                    "saved, or delete the checkpoint to start afresh."
                )
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)


def _groups(optimizers: Sequence[Any], sums: Sequence[Any]) -> dict[str, Sequence[Any]]:
    named = {f"optimizer_{number}": _variables(each) for number, each in enumerate(optimizers)}
    return {**named, "sums": sums}


def _variables(optimizer: Any) -> list[tf.Variable]:
    """Returns TensorFlow's variables of an optimizer of Keras 2, Keras 3 or Keras 2's legacy."""
    listed = optimizer.variables
    listed = list(listed() if callable(listed) else listed)
    variables = [one if isinstance(one, tf.Variable) else one.value for one in listed]
    rate = getattr(optimizer, "learning_rate", None)  # Keras 2 does not list it
    if isinstance(rate, tf.Variable) and all(rate is not variable for variable in variables):
        variables.append(rate)
    return variables
