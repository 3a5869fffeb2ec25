"""The state of a `fit`: what a checkpoint holds of the model, the callbacks and the reader."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.files import gfile, read_whole, write_whole
from generic_trainer._core.keras import is_keras_3

_MODEL = "model"
_BUILD_CONFIG_FILE = "build_config.json"
_CALLBACKS_FILE = "callbacks.json"
_ARRAYS_FILE = "callbacks.npz"
# What `fit` sets, and sets again in the run that resumes.
_SET_BY_FIT = {"model", "_model", "params", "validation_data"}
_READER = "reader"
_DRAWN_BY_RESTORING = 1

_logger = logging.getLogger(__name__)

# ---- the model -----------------------------------------------------------------------------------


class ModelState:
    """The variables of a compiled model, of its optimizer, metrics and random generators.

    Keras 3 lists them; Keras 2 leaves some to `tf.train.Checkpoint`, which follows attributes.
    """

    def __init__(self, model: Any) -> None:
        """Looks at a model, all of whose variables must have been made."""
        groups: dict[str, Any] = {"model": model}
        if is_keras_3(model):
            groups = {
                "weights": _values(model.variables),
                "optimizer": _values(model.optimizer.variables),
                "metrics": _values(model.metrics_variables),
            }
        else:
            groups["metrics"] = list(model.metrics)
            groups["steps"] = internals.KERAS_2_TRAIN_COUNTER.of(model)
        self._checkpoint = tf.train.Checkpoint(**groups)
        self._build_config = model.get_build_config()

    def write(self, directory: str) -> None:
        self._checkpoint.write(os.path.join(directory, _MODEL))
        write_whole(os.path.join(directory, _BUILD_CONFIG_FILE), json.dumps(self._build_config))

    def read(self, directory: str) -> None:
        """Restores the state.

        Raises:
            AssertionError: the model has a variable that was not saved.
            ValueError: a variable was saved with another shape.
        """
        self._checkpoint.read(os.path.join(directory, _MODEL)).assert_existing_objects_matched()

    @staticmethod
    def read_weights(model: Any, directory: str) -> None:
        """Restores what the model is made of, at once or when a variable is made.

        A model that has no variables yet, because it has seen no data, is built first.
        """
        if not model.built:
            config = json.loads(read_whole(os.path.join(directory, _BUILD_CONFIG_FILE)))
            model.build_from_config(config or {})
        groups = {"weights": _values(model.variables)} if is_keras_3(model) else {"model": model}
        tf.train.Checkpoint(**groups).read(os.path.join(directory, _MODEL)).expect_partial()


def set_first_epoch(model: Any, epoch: int | None) -> None:
    """Makes the `fit` that has just begun start at an epoch, as Keras's BackupAndRestore does.

    The epochs count from 0; None stands for what the arguments of `fit` say.
    """
    if is_keras_3(model):
        internals.KERAS_3_INITIAL_EPOCH.set(model, epoch)
    else:
        state = None if epoch is None else _FirstEpoch(epoch)
        internals.KERAS_2_TRAINING_STATE.set(model, state)


class _FirstEpoch:
    """What Keras 2 asks for the epoch and the step to start at."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self._epoch, 0


def _values(variables: Any) -> list[Any]:
    return [variable.value for variable in variables]


# ---- the callbacks -------------------------------------------------------------------------------


class _NotPlain(Exception):
    """A value is something else than plain data."""


def write_callbacks(directory: str, callbacks: Sequence[Any]) -> None:
    """Writes what callbacks hold of numbers, texts and arrays, and lists and dicts of them.

    Others (open files, models, functions) are made anew by the run that resumes.
    """
    arrays: dict[str, np.ndarray] = {}
    states = [[type(each).__name__, _state(each, arrays)] for each in callbacks]
    buffer = io.BytesIO()  # NumPy seeks, which remote files do not
    np.savez(buffer, **arrays)
    write_whole(os.path.join(directory, _ARRAYS_FILE), buffer.getvalue())
    write_whole(os.path.join(directory, _CALLBACKS_FILE), json.dumps(states))


def read_callbacks(directory: str, callbacks: Sequence[Any]) -> None:
    """Gives callbacks the attributes that `write_callbacks` found on them.

    Raises:
        ValueError: they are not the callbacks that were written.
    """
    states = json.loads(read_whole(os.path.join(directory, _CALLBACKS_FILE)))
    expected, actual = [name for name, _ in states], [type(each).__name__ for each in callbacks]
    if expected != actual:
        raise ValueError(f"it was saved with the callbacks {expected}, and now there are {actual}")
    arrays = dict(np.load(io.BytesIO(read_whole(os.path.join(directory, _ARRAYS_FILE)))))
    for callback, (_, state) in zip(callbacks, states, strict=True):
        if getattr(callback, "monitor_op", True) is None and state.get("best") is not None:
            # Keras 3 does so at the end of the first epoch, and forgets the best value then.
            internals.KERAS_3_SET_MONITOR_OP.of(callback)()
        for name, value in state.items():
            setattr(callback, name, _decoded(value, arrays))


def _state(callback: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    state = {}
    for name, value in vars(callback).items():
        if name not in _SET_BY_FIT:
            with contextlib.suppress(_NotPlain):
                state[name] = _encoded(value, arrays)
    return state


def _encoded(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):  # some logs of Keras 3 are
        value = value.numpy()
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)
    ):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        name = f"array_{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name, "scalar": isinstance(value, np.generic)}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encoded(each, arrays) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_encoded(k, arrays), _encoded(v, arrays)] for k, v in value.items()]}
    raise _NotPlain


def _decoded(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[value["array"]]
        return array[()] if value["scalar"] else array
    if "dict" in value:
        return {_decoded(k, arrays): _decoded(v, arrays) for k, v in value["dict"]}
    (kind,) = value
    decoded = [_decoded(each, arrays) for each in value[kind]]
    return tuple(decoded) if kind == "tuple" else decoded


# ---- the reader ----------------------------------------------------------------------------------


def write_position(directory: str, iterator: Any) -> None:
    """Saves the state of a `tf.data` iterator, if it has one that can be saved.

    That state holds the seeds of its shuffles, in this epoch and the ones to come, and the elements
    that are read and not yet used. The iterators of a distribution strategy, those over Python
    generators and those with stateful functions have none: their batches are counted.
    """
    path = os.path.join(directory, _READER)
    try:
        tf.train.Checkpoint(iterator=iterator).write(path)
    except (
        ValueError,
        tf.errors.UnimplementedError,
        tf.errors.FailedPreconditionError,
        tf.errors.InvalidArgumentError,
    ) as error:
        for left in gfile().glob(path + "*"):
            gfile().rmtree(left) if gfile().isdir(left) else gfile().remove(left)
        _logger.info("The position in the data is kept as a number of batches: %s", error)


def move_to(
    iterator: Any, directory: str, *, model: Any, epoch: int, consumed: int, read: int
) -> None:
    """Moves an iterator to where another one was when it was saved.

    The shuffles of a dataset draw new seeds whenever it is iterated. TensorFlow saves the draws of
    an iterator, and not how many there were before: where `fit` iterates the dataset anew in every
    epoch, as many are made as the run without interruption had made.

    Args:
        iterator: of the same dataset, in the first epoch of a `fit` that starts in epoch `epoch`.
        directory: that `write_position` wrote into.
        model: whose `fit` has made the iterator.
        epoch: number of the epoch, from 0.
        consumed: batches that had been taken from the other iterator.
        read: batches that have been taken from this one.
    """
    path = os.path.join(directory, _READER)
    if not gfile().exists(path + ".index"):
        _skip(iterator, consumed - read)
        return
    dataset = internals.TF_ITERATOR_DATASET.of(iterator)
    anew_in_each_epoch = dataset.cardinality() != tf.data.INFINITE_CARDINALITY
    if anew_in_each_epoch and epoch == 0:
        _skip(iterator, consumed - read)  # restoring would draw
        return
    tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
    if anew_in_each_epoch:
        # Keras 3 makes one iterator in vain in each epoch.
        iterations_per_epoch = 2 if is_keras_3(model) else 1
        for _ in range(epoch * iterations_per_epoch - _DRAWN_BY_RESTORING):
            iter(dataset)


def _skip(iterator: Any, num_batches: int) -> None:
    for _ in range(num_batches):
        next(iterator)
