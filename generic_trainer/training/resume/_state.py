"""The state of a `fit`: what a checkpoint holds of the model, the callbacks and the reader."""

from __future__ import annotations

import contextlib
import dataclasses
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
from generic_trainer.training.resume._plain import (
    NotPlain,
    decoded,
    encoded,
    read_arrays,
    write_arrays,
)
from generic_trainer.training.resume._randomness import (
    is_generator,
    random_state,
    set_random_state,
    set_state_of,
    state_of,
)
from generic_trainer.training.resume._replicas import OwnOfReplicas
from generic_trainer.training.resume._taken import TakenVariables, Writer, take_iterator

_MODEL = "model"
_BUILD_CONFIG_FILE = "build_config.json"
_CALLBACKS_FILE = "callbacks.json"
_ARRAYS_FILE = "callbacks.npz"  # of both
_RANDOMNESS_FILE = "random.json"
# Of what replicas have of their own: the weights', and those of all that training has besides.
_REPLICAS_FILES = {"weights": "replicas.npz", "metrics": "replicas-metrics.npz"}
# What `fit` sets, and sets again in the run that resumes.
_SET_BY_FIT = {"model", "_model", "params", "validation_data"}
_READER = "reader"

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
        self._variables = TakenVariables.of(groups)
        self._build_config = json.dumps(model.get_build_config())
        self._own = {
            "weights": OwnOfReplicas(model.distribute_strategy, model.variables),
            "metrics": OwnOfReplicas(
                model.distribute_strategy,
                (each for metric in model.metrics for each in metric.variables),
            ),
        }

    @property
    def can_be_taken(self) -> bool:
        """Whether what `take` returns may be called when training goes on already."""
        return self._variables is not None

    def take(self) -> Writer:
        """Returns what writes the state into a directory; all workers of a cluster call this."""
        writers = [own.take(_REPLICAS_FILES[name]) for name, own in self._own.items()]
        write_variables = None if self._variables is None else self._variables.take(_MODEL)

        def write(directory: str) -> None:
            if write_variables is not None:
                write_variables(directory)
            else:
                self._checkpoint.write(os.path.join(directory, _MODEL))
            for write_own in writers:
                write_own(directory)
            write_whole(os.path.join(directory, _BUILD_CONFIG_FILE), self._build_config)

        return write

    def read(self, directory: str) -> None:
        """Restores the state.

        Raises:
            AssertionError: the model has a variable that was not saved.
            ValueError: a variable was saved with another shape.
        """
        self._checkpoint.read(os.path.join(directory, _MODEL)).assert_existing_objects_matched()
        for name, own in self._own.items():
            own.read(os.path.join(directory, _REPLICAS_FILES[name]))

    @staticmethod
    def read_weights(model: Any, directory: str) -> Any:
        """Restores what the model is made of, at once or when a variable is made.

        A model that has no variables yet, because it has seen no data, is built first. Returns
        TensorFlow's status of it, which can be asked whether everything was found.
        """
        if not model.built:
            config = json.loads(read_whole(os.path.join(directory, _BUILD_CONFIG_FILE)))
            model.build_from_config(config or {})
        groups = {"weights": _values(model.variables)} if is_keras_3(model) else {"model": model}
        checkpoint = tf.train.Checkpoint(**groups)
        status = checkpoint.read(os.path.join(directory, _MODEL)).expect_partial()
        own = OwnOfReplicas(model.distribute_strategy, model.variables)
        own.read(os.path.join(directory, _REPLICAS_FILES["weights"]))
        return status


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


# ---- the callbacks and the generators ------------------------------------------------------------


def take_callbacks(callbacks: Sequence[Any], model: Any) -> Writer:
    """Takes the random state, and what callbacks hold of numbers, texts, arrays and generators.

    Also lists and dicts of them. Others (open files, models, functions) are made anew by the run
    that resumes.
    """
    arrays: dict[str, np.ndarray] = {}
    states = [[type(each).__name__, _state(each, arrays)] for each in callbacks]
    randomness = encoded(random_state(model), arrays)
    arrays = {name: np.array(array) for name, array in arrays.items()}  # others may be changed

    def write(directory: str) -> None:
        write_arrays(os.path.join(directory, _ARRAYS_FILE), arrays)
        for name, value in ((_CALLBACKS_FILE, states), (_RANDOMNESS_FILE, randomness)):
            write_whole(os.path.join(directory, name), json.dumps(value))

    return write


def read_callbacks(directory: str, callbacks: Sequence[Any]) -> None:
    """Gives callbacks the attributes that `take_callbacks` found on them.

    Raises:
        ValueError: they are not the callbacks that were written.
    """
    states = _read_json(directory, _CALLBACKS_FILE)
    expected, actual = [name for name, _ in states], [type(each).__name__ for each in callbacks]
    if expected != actual:
        raise ValueError(f"it was saved with the callbacks {expected}, and now there are {actual}")
    arrays = read_arrays(os.path.join(directory, _ARRAYS_FILE))
    for callback, (_, state) in zip(callbacks, states, strict=True):
        if getattr(callback, "monitor_op", True) is None and state.get("best") is not None:
            # Keras 3 does so at the end of the first epoch, and forgets the best value then.
            internals.KERAS_3_SET_MONITOR_OP.of(callback)()
        for name, value in state.items():
            kept, own = decoded(value, arrays), getattr(callback, name, None)
            if is_generator(own):  # in its place: others may hold it too
                set_state_of(own, kept)
            else:
                setattr(callback, name, kept)


def read_randomness(directory: str, model: Any) -> None:
    """Sets the generators to where they were; see `set_random_state`.

    Raises:
        TrainingError: the model has another number of layers that draw.
    """
    if gfile().exists(os.path.join(directory, _RANDOMNESS_FILE)):  # not an earlier release's
        arrays = read_arrays(os.path.join(directory, _ARRAYS_FILE))
        state = decoded(_read_json(directory, _RANDOMNESS_FILE), arrays)
        set_random_state(model, state)


def _read_json(directory: str, name: str) -> Any:
    return json.loads(read_whole(os.path.join(directory, name)))


def _state(callback: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    state = {}
    for name, value in vars(callback).items():
        if name not in _SET_BY_FIT:
            with contextlib.suppress(NotPlain):
                state[name] = encoded(state_of(value) if is_generator(value) else value, arrays)
    return state


# ---- the reader ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReaderPosition:
    """Where the iterator of a `fit` stands in its data.

    Attributes:
        epoch: number of the epoch, from 0.
        batches: batches of this epoch that are done.
        consumed: batches taken from the iterator; more where it serves many epochs.
        is_last: whether no epoch follows.
    """

    epoch: int
    batches: int
    consumed: int
    is_last: bool

    def is_iterated_again(self, iterator: Any) -> bool:
        """Returns whether the dataset of an iterator is to be iterated anew after this epoch.

        Its shuffles then draw new seeds. How often they have drawn is no part of what TensorFlow
        saves, but for those that have not come to the end of what they read.
        """
        if self.is_last or self.consumed > self.batches:
            return False
        return not _is_plain(iterator) or (
            internals.TF_ITERATOR_DATASET.of(iterator).cardinality() != tf.data.INFINITE_CARDINALITY
        )


def take_position(iterator: Any, position: ReaderPosition) -> Writer:
    """Takes the state of a `tf.data` iterator, if it has one that can be saved and is of use.

    That state holds the seeds of its shuffles and the elements that are read and not yet used. The
    iterators of a distribution strategy, those over Python generators and those with stateful
    functions have none: their batches are counted, as are those of data that are iterated again.
    """
    if position.is_iterated_again(iterator) or not _is_plain(iterator):
        return _write_nothing
    try:
        return take_iterator(iterator, _READER)
    except (ValueError, OSError, tf.errors.OpError) as error:  # mostly: it has none
        _logger.info("The position in the data is kept as a number of batches: %s", error)
        return _write_nothing


def _write_nothing(directory: str) -> None:
    pass


def move_to(
    iterator: Any, directory: str, position: ReaderPosition, *, model: Any, read: int
) -> Any:
    """Returns an iterator that stands where another one stood when it was saved.

    The shuffles of a dataset draw new seeds whenever it is iterated, some of them with the first
    element. Where `fit` iterates it anew in every epoch, it is iterated as often as the run without
    interruption had, so that this epoch and those to come are shuffled as they would have been.

    Args:
        iterator: of the same dataset, in the first epoch of a `fit` that starts in that epoch.
        directory: that `write_position` wrote into.
        position: where the other iterator stood.
        model: whose `fit` has made the iterator.
        read: batches that have been taken from this one.

    Raises:
        AssertionError, ValueError, tf.errors.OpError: the dataset is another one.
    """
    path = os.path.join(directory, _READER)
    again = position.is_iterated_again(iterator)
    if not again and gfile().exists(path + ".index"):
        tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
        return iterator
    if again and _is_plain(iterator) and position.epoch > 0:
        dataset = internals.TF_ITERATOR_DATASET.of(iterator)
        # Keras 3 makes an iterator in vain at the end of an epoch whose length it can tell.
        in_vain = is_keras_3(model) and dataset.cardinality() >= 0
        for _ in range(position.epoch):  # the iterator itself was the first
            if in_vain:
                iter(dataset)
            iterator, read = iter(dataset), 1
            next(iterator)
    for _ in range(position.consumed - read):
        next(iterator)
    return iterator


def _is_plain(iterator: Any) -> bool:
    """Returns whether an iterator goes through a dataset itself, and not through replicas'."""
    return isinstance(iterator, tf.data.Iterator)
