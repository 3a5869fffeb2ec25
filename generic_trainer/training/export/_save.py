"""Writes the SavedModel, outside of any distribution strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import tensorflow as tf

from generic_trainer.errors import ExportError
from generic_trainer.training.export._devices import clear_devices

__all__ = ["outside_of_strategy", "save"]

T = TypeVar("T")


def save(root: tf.Module, directory: str, signatures: Mapping[str, Any]) -> None:
    """Saves `root`.

    The signatures are traced within `tf.saved_model.save`, and there alone does TensorFlow read a
    distributed variable as a plain one, without its devices and without collectives.

    Raises:
        ExportError: a signature uses a table or variable that is not part of `root`.
    """
    try:
        tf.saved_model.save(root, directory, signatures=dict(signatures))
    except AssertionError as error:
        if "untracked" not in str(error):
            raise
        raise ExportError(
            "the model uses a variable, lookup table or asset that it does not own; make it an "
            f"attribute of the model or of one of its layers (self.table = ...): {error}"
        ) from error
    clear_devices(directory)


def outside_of_strategy(function: Callable[[], T]) -> T:
    """Calls `function` where no distribution strategy is in scope.

    A scope belongs to its thread and cannot be left from within, so inside one this is another
    thread.
    """
    if not tf.distribute.has_strategy():
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
