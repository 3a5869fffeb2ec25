"""The state of the callbacks of a `fit`, and what the last step before a checkpoint returned."""

import collections
import contextlib
import copy
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError
from generic_trainer.training._plain import is_plain
from generic_trainer.training.resume._randomness import is_generator, set_state_of, state_of

# Attributes that `fit` sets, also in the run that resumes.
_SET_BY_FIT = {"model", "_model", "params", "validation_data"}

_logger = logging.getLogger(__name__)


class CallbackState:
    """The numbers, strings, arrays and generators of callbacks, and containers of them.

    Other attributes (open files, models, functions) are made anew by the run that resumes. So are
    those with paths: the new run may have another directory.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        """Looks at callbacks before their training begins."""
        self._callbacks = callbacks
        self._paths = dict(self._with_paths())
        self._is_logged = False

    def values(self) -> list[Any]:
        """Returns the present state as plain data."""
        if not self._is_logged:
            changed = [name for name, each in self._with_paths() if self._paths.get(name) != each]
            self._is_logged = bool(changed)
            if changed:
                _logger.warning(
                    "If this fit is resumed, these attributes of callbacks start anew, because "
                    "they hold paths: %s",
                    ", ".join(changed),
                )
        return [[type(each).__name__, _plain_state(each)] for each in self._callbacks]

    def assign(self, values: list[Any], path: str, is_chief: bool = True) -> None:
        """Restores the result of `values`, which comes from the checkpoint with a path.

        It is that of the chief, which may have more callbacks than other workers: TensorBoard's.

        Raises:
            ConfigurationError: other callbacks were saved.
        """
        expected = [name for name, _ in values]
        actual = [type(each).__name__ for each in self._callbacks]
        if is_chief and expected != actual:
            raise ConfigurationError(
                f"The checkpoint {path} does not fit the callbacks of fit: it was saved with "
                f"{expected}, and now there are {actual}. Pass the same callbacks in the same "
                "order, or delete it to start afresh."
            )
        # Copied, because callbacks change it, and it may be assigned again.
        states = iter(copy.deepcopy(values))
        for callback, own in zip(self._callbacks, actual, strict=True):
            state: dict[str, Any] = next((state for name, state in states if name == own), {})
            _set_plain_state(callback, state)

    def _with_paths(self) -> Iterator[tuple[str, str]]:
        for callback in self._callbacks:
            for name, value in vars(callback).items():
                if _holds_path(value):
                    yield f"{type(callback).__name__}.{name}", repr(value)


def numbers_of(logs: Any) -> list[np.ndarray] | None:
    """Returns what a step has returned as plain data.

    If they are not a model's metrics, Keras has them nowhere else, and callbacks get them at the
    end of an epoch.
    """
    with contextlib.suppress(TypeError, ValueError):  # a step may return anything
        return [np.asarray(each, float) for each in tf.nest.flatten(logs)]
    return None


def logs_like(logs: Any, numbers: list[np.ndarray] | None) -> Any:
    """Returns a result of `numbers_of` in the structure of `logs`.

    Raises:
        ValueError: it is that of another structure.
    """
    if numbers is None:
        return logs
    flat = zip(tf.nest.flatten(logs), numbers, strict=True)
    values = [tf.cast(number, tf.convert_to_tensor(like).dtype) for like, number in flat]
    return tf.nest.pack_sequence_as(logs, values)


def _plain_state(callback: Any) -> dict[str, Any]:
    values = {
        name: state_of(value) if is_generator(value) else value
        for name, value in vars(callback).items()
        if name not in _SET_BY_FIT and not _holds_path(value)
    }
    return {name: value for name, value in values.items() if is_plain(value)}


def _set_plain_state(callback: Any, state: dict[str, Any]) -> None:
    if getattr(callback, "monitor_op", True) is None and "monitor_op" not in state:
        # A function, which is not saved. Keras 3 sets it, once, at the end of an epoch, and then
        # changes the sign of `min_delta`, which is saved.
        internals.KERAS_3_SET_MONITOR_OP.of(callback)()
    for name, value in state.items():
        own = getattr(callback, name, None)
        # In its place: others may hold it too, such as a `run_fn` that reads its list after `fit`.
        if is_generator(own):
            set_state_of(own, value)
        elif isinstance(own, (list, dict, set, collections.deque)) and type(own) is type(value):
            own.clear()
            (own.update if isinstance(own, (dict, set)) else own.extend)(value)
        else:
            setattr(callback, name, value)


def _holds_path(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)):
        return any(map(_holds_path, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "/" in value
