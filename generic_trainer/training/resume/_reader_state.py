"""Where an iterator stands in its data, and how another one gets there."""

from __future__ import annotations

import logging
import os
from typing import Any

import tensorflow as tf

from generic_trainer.files import gfile

__all__ = ["move_to", "write_position"]

_STATE = "reader"

_logger = logging.getLogger(__name__)


def write_position(directory: str, iterator: Any) -> bool:
    """Saves the state of a `tf.data` iterator, if it has one that can be saved.

    That state holds the seeds of its shuffles, in this epoch and the ones to come, and the elements
    that are read and not yet used.

    Returns:
        Whether it was saved. The iterators of a distribution strategy, those over Python
        generators and those with stateful functions cannot be: their batches are counted.
    """
    path = os.path.join(directory, _STATE)
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
        return False
    return True


def move_to(iterator: Any, directory: str, *, num_batches: int) -> None:
    """Moves an iterator to where another one was when it was saved.

    Args:
        iterator: of the same dataset.
        directory: that `write_position` wrote into.
        num_batches: how many elements are to be skipped where the state was not saved.
    """
    path = os.path.join(directory, _STATE)
    if gfile().exists(path + ".index"):
        tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
        return
    for _ in range(num_batches):
        next(iterator)
