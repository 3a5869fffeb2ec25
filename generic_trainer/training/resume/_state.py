"""The state of a `fit` in a checkpoint: of the model, the callbacks and all random generators."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError
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
    in_turn,
    names_in,
    read_variables,
)

# Files: the values of variables, what no step changes, and all else.
_VARIABLES, _MODEL, _FIT = "variables", "model", "fit"
_MOST_NAMED = 5
# Attributes that `fit` sets, also in the run that resumes.
_SET_BY_FIT = {"model", "_model", "params", "validation_data"}

_logger = logging.getLogger(__name__)


class FitState:
    """What the training of a model changes: its variables, generators and callbacks.

    Of callbacks these are the numbers, strings, arrays and generators, and containers of them.
    Other attributes (open files, models, functions) are made anew by the run that resumes. So are
    those with paths: the new run may have another directory.
    """

    def __init__(self, model: Any, callbacks: Sequence[Any]) -> None:
        """Looks at callbacks before their training begins."""
        self._model, self._callbacks = model, callbacks
        self._paths = dict(self._with_paths())
        self._is_logged = False

    def find_variables(self) -> None:
        """Finds the variables, before the first `take` and whenever some may have been made."""
        groups = variables_of(self._model, self._callbacks)
        self._variables = _named(groups)
        self._taken = TakenVariables(self._variables)
        self._own = _own_of_replicas(self._model, self._variables)

    def take(self, logs: Any) -> Writer:
        """Returns a writer of the present state; all workers of a cluster call this.

        Args:
            logs: what the last step returned. If they are not a model's metrics, Keras has them
                nowhere else, and callbacks get them at the end of an epoch.
        """
        if not self._is_logged:
            changed = [name for name, each in self._with_paths() if self._paths.get(name) != each]
            self._is_logged = bool(changed)
            if changed:
                _logger.warning(
                    "If this fit is resumed, these attributes of callbacks start anew, because "
                    "they hold paths: %s",
                    ", ".join(changed),
                )
        state = {
            "replicas": self._own.values(),
            "callbacks": [[type(each).__name__, _plain_state(each)] for each in self._callbacks],
            "random": random_state(self._model),
            "logs": _numbers(logs),
        }
        return in_turn(self._taken.take(_VARIABLES), self._write_model, taken_state(_FIT, state))

    def read(self, directory: str) -> None:
        """Restores the state, when all variables have been made.

        Raises:
            ConfigurationError: other callbacks were saved.
            TrainingError: the model has another number of layers that draw.
            ValueError: the model has other variables than were saved.
        """
        self.find_variables()
        path = os.path.join(directory, _VARIABLES)
        differing = sorted(self._variables.keys() ^ names_in(path))
        if differing:
            raise ValueError(
                f"only one of them has {', '.join(differing[:_MOST_NAMED])} (a variable that a "
                "validation makes, for example, has to be made before fit)"
            )
        read_variables(path, self._variables)
        state = read_state(directory, _FIT)
        self._own.assign(state["replicas"])
        set_adapted_state(self._model, read_state(directory, _MODEL)["adapted"])
        set_random_state(self._model, state["random"])
        expected = [name for name, _ in state["callbacks"]]
        actual = [type(each).__name__ for each in self._callbacks]
        if expected != actual:
            raise ConfigurationError(
                f"The checkpoint {directory} does not fit resume_callbacks(callbacks=...): it was "
                f"saved with the callbacks {expected}, and now there are {actual}. Pass the same "
                "callbacks in the same order, or delete it to start afresh."
            )
        for callback, (_, values) in zip(self._callbacks, state["callbacks"], strict=True):
            _set_plain_state(callback, values)

    def logs_like(self, logs: Any, directory: str) -> Any:
        """Returns what the last step before a checkpoint returned, in the structure of `logs`.

        Raises:
            ValueError: the step has returned something else.
        """
        numbers = read_state(directory, _FIT)["logs"]
        if numbers is None:
            return logs
        flat = zip(tf.nest.flatten(logs), numbers, strict=True)
        values = [tf.cast(number, tf.convert_to_tensor(like).dtype) for like, number in flat]
        return tf.nest.pack_sequence_as(logs, values)

    @functools.cached_property
    def _write_model(self) -> Writer:
        build_config = self._model.get_build_config()
        state = {"adapted": adapted_state(self._model), "build_config": build_config}
        return taken_state(_MODEL, state)

    def _with_paths(self) -> Iterator[tuple[str, str]]:
        for callback in self._callbacks:
            for name, value in vars(callback).items():
                if _holds_path(value):
                    yield f"{type(callback).__name__}.{name}", repr(value)


def read_weights(model: Any, directory: str) -> list[str]:
    """Restores the variables that a model is made of; builds it first if it has not been.

    Returns:
        The names of variables that the model has and the checkpoint has not.
    """
    state = read_state(directory, _MODEL)
    if not model.built and state["build_config"]:
        model.build_from_config(state["build_config"])
    groups = variables_of(model)
    del groups["training"]
    path = os.path.join(directory, _VARIABLES)
    variables, saved = _named(groups), names_in(path)
    read_variables(path, {name: each for name, each in variables.items() if name in saved})
    _own_of_replicas(model, variables).assign(read_state(directory, _FIT)["replicas"])
    set_adapted_state(model, state["adapted"])
    return sorted(variables.keys() - saved)


def _named(groups: dict[str, Variables]) -> Variables:
    return {
        f"{name}/{path}": part for name, group in groups.items() for path, part in group.items()
    }


def _numbers(logs: Any) -> list[np.ndarray] | None:
    with contextlib.suppress(TypeError, ValueError):  # a step may return anything
        return [np.asarray(each, float) for each in tf.nest.flatten(logs)]
    return None


def _own_of_replicas(model: Any, variables: Variables) -> OwnOfReplicas:
    return OwnOfReplicas(model.distribute_strategy, variables.values())


def _plain_state(callback: Any) -> dict[str, Any]:
    values = {
        name: state_of(value) if is_generator(value) else value
        for name, value in vars(callback).items()
        if name not in _SET_BY_FIT and not _holds_path(value)
    }
    return {name: value for name, value in values.items() if is_plain(value)}


def _set_plain_state(callback: Any, state: dict[str, Any]) -> None:
    if getattr(callback, "monitor_op", True) is None and state.get("best") is not None:
        # Keras 3 does so at the end of the first epoch, and forgets the best value then.
        internals.KERAS_3_SET_MONITOR_OP.of(callback)()
    for name, value in state.items():
        own = getattr(callback, name, None)
        if is_generator(own):  # in its place: others may hold it too
            set_state_of(own, value)
        else:
            setattr(callback, name, value)


def _holds_path(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)):
        return any(map(_holds_path, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "/" in value
