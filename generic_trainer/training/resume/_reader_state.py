"""The position of an iterator in its data: saved, and taken by another iterator."""

from __future__ import annotations

import logging
import os
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.files import gfile
from generic_trainer._core.keras import is_keras_3

_STATE = "reader"
_DRAWN_BY_RESTORING = 1

_logger = logging.getLogger(__name__)


def write_position(directory: str, iterator: Any) -> None:
    """Saves the state of a `tf.data` iterator, if it has one that can be saved.

    That state holds the seeds of its shuffles, in this epoch and the ones to come, and the elements
    that are read and not yet used. The iterators of a distribution strategy, those over Python
    generators and those with stateful functions have none: their batches are counted.
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
    path = os.path.join(directory, _STATE)
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
