"""The state of a `fit` in a checkpoint: of the model, the callbacks and the reader."""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.files import gfile
from generic_trainer.errors import TrainingError
from generic_trainer.training._plain import is_plain, read_state, taken_state
from generic_trainer.training.resume._adapted import adapted_state, set_adapted_state
from generic_trainer.training.resume._parts import Variables, variables_of
from generic_trainer.training.resume._randomness import (
    is_generator,
    random_state,
    set_random_state,
    set_state_of,
    state_of,
)
from generic_trainer.training.resume._replicas import OwnOfReplicas
from generic_trainer.training.resume._taken import (
    TakenVariables,
    Writer,
    draws_in,
    in_turn,
    names_in,
    read_iterator,
    read_variables,
    take_iterator,
)

_VARIABLES, _STATE, _CALLBACKS, _READER = "variables", "model", "callbacks", "reader"
_REPLICAS = "replicas"
_MOST_NAMED = 5
# Attributes that `fit` sets, also in the run that resumes.
_SET_BY_FIT = {"model", "_model", "params", "validation_data"}

_logger = logging.getLogger(__name__)


class ModelState:
    """The variables of a compiled model, of its optimizers, metrics and callbacks."""

    def __init__(self, model: Any, callbacks: Sequence[Any] = ()) -> None:
        """Looks at a model, all of whose variables must have been made."""
        self._model, self._all_callbacks = model, callbacks
        groups = variables_of(model, callbacks)
        self._variables = _named(groups)
        self._taken = TakenVariables(self._variables)
        self._own = _own_of_replicas(model, groups)
        self._write_state = taken_state(
            _STATE,
            {"adapted": adapted_state(model), "build_config": model.get_build_config()},
        )

    def has_all(self) -> bool:
        """Returns whether no variables were made since."""
        return (
            _named(variables_of(self._model, self._all_callbacks)).keys() <= self._variables.keys()
        )

    def take(self) -> Writer:
        """Returns a writer of the present state; all workers of a cluster call this."""
        own = {name: each.values() for name, each in self._own.items()}
        write_own = taken_state(_REPLICAS, own)
        return in_turn(self._taken.take(_VARIABLES), self._write_state, write_own)

    def read(self, directory: str) -> None:
        """Restores the state.

        Raises:
            ValueError: the model has other variables than were saved.
        """
        path = os.path.join(directory, _VARIABLES)
        differing = sorted(self._variables.keys() ^ names_in(path))
        if differing:
            raise ValueError(
                f"only one of them has {', '.join(differing[:_MOST_NAMED])} (a variable that a "
                "validation makes, for example, has to be made before fit)"
            )
        read_variables(path, self._variables)
        _read_own(self._own, directory)
        set_adapted_state(self._model, read_state(directory, _STATE)["adapted"])


def read_weights(model: Any, directory: str) -> list[str]:
    """Restores the variables that a model is made of; builds it first if it has not been.

    Returns:
        The names of variables that the model has and the checkpoint has not.
    """
    state = read_state(directory, _STATE)
    if not model.built and state["build_config"]:
        model.build_from_config(state["build_config"])
    groups = variables_of(model)
    del groups["training"]
    path = os.path.join(directory, _VARIABLES)
    variables, saved = _named(groups), names_in(path)
    read_variables(path, {name: each for name, each in variables.items() if name in saved})
    _read_own(_own_of_replicas(model, groups), directory)
    set_adapted_state(model, state["adapted"])
    return sorted(variables.keys() - saved)


def _named(groups: dict[str, Variables]) -> Variables:
    return {
        f"{name}/{path}": part for name, group in groups.items() for path, part in group.items()
    }


def _own_of_replicas(model: Any, groups: dict[str, Variables]) -> dict[str, OwnOfReplicas]:
    return {
        name: OwnOfReplicas(model.distribute_strategy, group.values())
        for name, group in groups.items()
        if name != "tables"
    }


def _read_own(own: dict[str, OwnOfReplicas], directory: str) -> None:
    values = read_state(directory, _REPLICAS)
    for name, each in own.items():
        each.assign(values[name])


class CallbacksState:
    """The numbers, strings, arrays and generators that callbacks hold, and containers of them.

    Other attributes (open files, models, functions) are made anew by the run that resumes. So are
    those with paths: the new run may have another directory.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Looks at callbacks before their training begins."""
        self._callbacks = callbacks
        self._paths = dict(self._with_paths())
        self._is_logged = False

    def take(self, model: Any) -> Writer:
        """Returns a writer of the present state, and of that of all random generators."""
        if not self._is_logged:
            changed = [name for name, each in self._with_paths() if self._paths.get(name) != each]
            self._is_logged = bool(changed)
            if changed:
                _logger.warning(
                    "If this fit is resumed, these attributes of callbacks start anew, because "
                    "they hold paths: %s",
                    ", ".join(changed),
                )
        states = [[type(each).__name__, _state(each)] for each in self._callbacks]
        return taken_state(_CALLBACKS, {"callbacks": states, "random": random_state(model)})

    def read(self, directory: str, model: Any) -> None:
        """Restores the state.

        Raises:
            ValueError: other callbacks were saved.
            TrainingError: the model has another number of layers that draw.
        """
        saved = read_state(directory, _CALLBACKS)
        set_random_state(model, saved["random"])
        expected = [name for name, _ in saved["callbacks"]]
        actual = [type(each).__name__ for each in self._callbacks]
        if expected != actual:
            raise ValueError(
                f"it was saved with the callbacks {expected}, and now there are {actual}"
            )
        for callback, (_, state) in zip(self._callbacks, saved["callbacks"], strict=True):
            if getattr(callback, "monitor_op", True) is None and state.get("best") is not None:
                # Keras 3 does so at the end of the first epoch, and forgets the best value then.
                internals.KERAS_3_SET_MONITOR_OP.of(callback)()
            for name, value in state.items():
                own = getattr(callback, name, None)
                if is_generator(own):  # in its place: others may hold it too
                    set_state_of(own, value)
                else:
                    setattr(callback, name, value)

    def _with_paths(self) -> Iterator[tuple[str, Any]]:
        for callback in self._callbacks:
            for name, value in vars(callback).items():
                if _holds_path(value):
                    changes = isinstance(value, (list, set, collections.deque))
                    kept = list(value) if changes else value
                    yield f"{type(callback).__name__}.{name}", kept


def _state(callback: Any) -> dict[str, Any]:
    values = {
        name: state_of(value) if is_generator(value) else value
        for name, value in vars(callback).items()
        if name not in _SET_BY_FIT and not _holds_path(value)
    }
    return {name: value for name, value in values.items() if is_plain(value)}


def _holds_path(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)):
        return any(map(_holds_path, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "/" in value


def take_position(iterator: Any, batches: int, consumed: int, *, is_last: bool) -> Writer:
    """Takes the state of an iterator, if it has one that can be saved and is of use.

    That state holds the seeds of its shuffles and the elements that are read and not yet used. The
    iterators of a distribution strategy, those over Python generators and those with stateful
    functions have none: their batches are counted. So are those of data that are iterated anew in
    the next epoch, whose shuffles then draw new seeds: how often they have drawn is not part of
    the state, unless they have more to read.

    Args:
        iterator: gives a `fit` its batches.
        batches: number of batches that it has given in this epoch.
        consumed: the same of all epochs; more if it serves several.
        is_last: whether no epoch follows.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return lambda directory: None
    dataset = internals.TF_ITERATOR_DATASET.of(iterator)
    if not (is_last or consumed > batches or dataset.cardinality() == tf.data.INFINITE_CARDINALITY):
        return lambda directory: None
    try:
        return take_iterator(iterator, _READER)
    except (ValueError, OSError, tf.errors.OpError) as error:  # mostly: it has none
        _logger.info("The position in the data is kept as a number of batches: %s", error)
        return lambda directory: None


def shuffles_within_a_pass(iterator: Any, is_over: bool) -> bool:
    """Returns whether a replayed pass has drawn several seeds, which passes after it continue.

    A shuffle draws one with the first element, and another whenever its data are repeated, as
    after `repeat(2)`.

    Args:
        iterator: of the pass.
        is_over: whether the fit had ended: then another fit may begin a pass after an endless one.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return False
    dataset = internals.TF_ITERATOR_DATASET.of(iterator)
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY and not is_over:  # the only pass
        return False
    kinds = " ".join(node.op for node in _nodes(iterator))
    return "Shuffle" in kinds and "Repeat" in kinds


def move_to(iterator: Any, directory: str, batches: int) -> None:
    """Moves an iterator to the position at which a checkpoint was taken.

    Args:
        iterator: over the same dataset.
        directory: that the writer of `take_position` wrote into.
        batches: that it has to be moved by, if the checkpoint has no state of it.

    Raises:
        TrainingError, tf.errors.OpError: the dataset is another one.
    """
    path = os.path.join(directory, _READER)
    # Setting the state draws another seed, then restores the number of draws. Batching, prefetching
    # and zipping drop a shuffle that they have read to its end, and with it that number: the
    # passes that follow would get other seeds.
    if gfile().exists(path + ".index") and draws_in(path) == _number_of_shuffles(iterator):
        read_iterator(path, iterator)
        return
    _logger.info("Reading the %d batches before that position again", batches)
    skip(iterator, batches)


def _number_of_shuffles(iterator: Any) -> int:
    nodes = _nodes(iterator)
    return sum(node.op.startswith(("RandomDataset", "Shuffle")) for node in nodes)


def _nodes(iterator: Any) -> Any:
    """Returns the nodes of the graph of an iterator's dataset, without those of its functions."""
    variant = tf.data.experimental.to_variant(internals.TF_ITERATOR_DATASET.of(iterator))
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)
    return tf.compat.v1.GraphDef.FromString(graph.numpy()).node


def skip(iterator: Any, batches: int) -> None:
    """Takes batches from an iterator.

    Raises:
        TrainingError: it has fewer.
    """
    for _ in range(batches):
        try:
            next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError) as error:  # which would end the epoch
            raise data_differ() from error


def data_differ() -> TrainingError:
    """Returns the error of a checkpoint whose data were longer, or shorter."""
    return TrainingError(
        "The data, or the epochs and steps of fit, are not those of the checkpoint in use: they "
        "end at another batch. Restore them, or delete the checkpoints to start afresh."
    )
