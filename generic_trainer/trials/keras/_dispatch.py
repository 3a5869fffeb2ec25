"""The callbacks of a Keras trial, called at the times of the trial API; metrics as numbers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.trials.errors import CheckFailedError, InvalidArgumentsError
from generic_trainer.trials.keras.callbacks import Callback
from generic_trainer.user_code import loaded_modules

_logger = logging.getLogger(__name__)

_NOT_METRICS = ("batch", "size")


def numbers_of(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the metrics that Keras gives out as tensors: a float each, or nested lists."""
    return {
        name: _number(value) for name, value in (logs or {}).items() if name not in _NOT_METRICS
    }


def _number(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _number(part) for name, part in value.items()}
    number = np.asarray(value).tolist()
    return float(number) if isinstance(number, (bool, int)) else number


class Dispatch:
    """The callbacks of a trial.

    In a workload: `on_train_workload_begin`, for each batch (`on_epoch_begin`)
    `on_train_batch_begin`, `on_train_batch_end` (`on_epoch_end`), then `on_train_workload_end`. In
    a validation: `on_test_begin`, for each batch `on_test_batch_begin` and `on_test_batch_end`,
    then `on_test_end`. After a checkpoint: `on_checkpoint_end`.
    """

    def __init__(
        self, callbacks: Any, batches_per_epoch: int, model: Any, params: Mapping[str, Any]
    ) -> None:
        """Takes the callbacks; `batches_per_epoch` is 0 where epochs are unknown.

        Raises:
            CheckFailedError: it is not a list of Keras callbacks.
            InvalidArgumentsError: one wants the end of epochs, and epochs are unknown.
        """
        if not isinstance(callbacks, list) or not all(
            isinstance(c, tf.keras.callbacks.Callback) for c in callbacks
        ):
            raise CheckFailedError(
                "keras_callbacks() must return a list of tf.keras.callbacks.Callback, but got "
                f"{callbacks!r}"
            )
        self._callbacks: list[Any] = callbacks
        self._batches_per_epoch = batches_per_epoch
        _check_epochs(callbacks, batches_per_epoch)
        for callback in callbacks:
            callback.set_model(model)
            callback.set_params(dict(params))
        self._end = [c for c in callbacks if _has(c, "on_train_batch_end")]
        self._ours = [c for c in callbacks if isinstance(c, Callback)]

    def call(self, hook: str, *arguments: Any) -> None:
        """Calls a hook of all callbacks; one that Keras does not have, of those of this API."""
        is_keras_hook = hasattr(tf.keras.callbacks.Callback, hook)
        for callback in self._callbacks if is_keras_hook else self._ours:
            getattr(callback, hook)(*arguments)

    def batch_begin(self, total: int) -> None:
        """Tells that a batch begins, after `total` others; and an epoch with it, if one does."""
        epoch, batch = self._position(total)
        if batch == 0:  # also of the only epoch, where its length is unknown
            self.call("on_epoch_begin", epoch, {})
        self.call("on_train_batch_begin", batch, {})

    def batch_end(self, total: int, logs: Any) -> None:
        """Tells that a batch has ended, after `total` others; and an epoch with it, if one does."""
        epoch, batch = self._position(total)
        numbers = numbers_of(logs) if self._end else {}  # reading them waits for the device
        for callback in self._end:
            callback.on_train_batch_end(batch, numbers)
        if self._batches_per_epoch and batch + 1 == self._batches_per_epoch:
            self.call("on_epoch_end", epoch, {})

    def testing(self) -> _Testing:
        """Returns the callbacks for `model.evaluate`, of all hooks but that of the end."""
        return _Testing(self._callbacks)

    @property
    def code(self) -> set[str]:
        """The modules whose classes may be in the callbacks' states: theirs, and the trial's."""
        return {*(type(c).__module__ for c in self._ours), *(m.__name__ for m in loaded_modules())}

    def state(self) -> list[tuple[str, Any]]:
        """Returns the states of the callbacks."""
        return [(type(c).__name__, c.get_state()) for c in self._ours]

    def load(self, states: Sequence[tuple[str, Any]]) -> None:
        """Gives the callbacks their states back."""
        expected = [name for name, _ in states]
        actual = [type(c).__name__ for c in self._ours]
        if expected != actual:
            raise CheckFailedError(
                f"The checkpoint was written with the callbacks {expected}, and keras_callbacks() "
                f"now returns {actual}. Return the same, in the same order."
            )
        for callback, (_, kept) in zip(self._ours, states, strict=True):
            callback.load_state(kept)

    def _position(self, total: int) -> tuple[int, int]:
        return divmod(total, self._batches_per_epoch) if self._batches_per_epoch else (0, total)


class _Testing(tf.keras.callbacks.CallbackList):  # type: ignore[misc]
    """Calls the hooks of an evaluation, and counts its batches."""

    batches = 0

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        super().on_test_batch_end(batch, logs)

    def on_test_end(self, logs: Any = None) -> None:
        self.callbacks: list[Any] = []  # they get the metrics of all workers, under other names
        super().on_test_end(logs)


def _has(callback: Any, hook: str) -> bool:
    """Whether a callback does something in a hook; LambdaCallback sets it on the object.

    Keras' own hooks of batches call those of their old names: `on_batch_end`.
    """
    names = {hook, hook.replace("on_train_batch", "on_batch")}
    return any(
        inspect.getattr_static(callback, name, None)
        is not getattr(tf.keras.callbacks.Callback, name, None)
        for name in names
    )


def _check_epochs(callbacks: Sequence[Any], batches_per_epoch: int) -> None:
    of_board = tf.keras.callbacks.TensorBoard.on_epoch_begin  # ours does well without
    for callback in callbacks:
        hooks = [hook for hook in ("on_epoch_begin", "on_epoch_end") if _has(callback, hook)]
        if hooks == ["on_epoch_begin"] and type(callback).on_epoch_begin is of_board:
            continue
        if batches_per_epoch or not hooks:
            continue
        text = (
            f"{type(callback).__name__} overrides {' and '.join(hooks)}: "
            "without records_per_epoch, the number of training records, at the top level of the "
            "experiment configuration, on_epoch_begin is called once, before the first batch, and "
            "on_epoch_end never."
        )
        if isinstance(callback, Callback) and "on_epoch_end" in hooks:
            raise InvalidArgumentsError(text)
        _logger.warning("%s", text)
