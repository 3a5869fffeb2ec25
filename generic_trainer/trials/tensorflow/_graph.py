"""The graph of a `TensorFlowTrial`, on all of a batch or on the share of one of several workers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ModuleFileError
from generic_trainer.training import distributed
from generic_trainer.trials._trial import TrialRun

LOSS = "loss"
SHARE = ""  # no name of the user's


@dataclasses.dataclass(frozen=True)
class Built:
    """What was built.

    Attributes:
        record: the argument of `build_graph`.
        outputs: its results, and as `SHARE` the share of the batch, from 0 to 1.
        train_op: a step, of all workers together.
    """

    record: Any
    outputs: dict[str, Any]
    train_op: tf.Operation


def build(trial: Any, record: Any, is_training: tf.Tensor, run: TrialRun) -> Built:
    """Builds the graph of a trial.

    In training each of several workers takes its rows of the batch. The gradients are, for a loss
    that is a mean over rows, those of one worker on all of it.

    Args:
        trial: a `TensorFlowTrial`.
        record: a batch, nested tensors [N, ...].
        is_training: bool scalar.
        run: the trial.

    Raises:
        ModuleFileError: the result of `build_graph` has no loss.
    """
    rows = whole = tf.constant(1)
    averaging = _as_it_is
    if run.workers > 1:
        record, rows, whole = _share(record, is_training, distributed.rank(), run.workers)
        averaging = distributed.averaging_optimizers
    counter = tf.compat.v1.train.get_or_create_global_step()
    outputs = _checked(trial.build_graph(record, is_training))
    # Metrics are those of the weights that the step begins with.
    metrics = [updated(outputs[name]) for name in trial.training_metrics() if name in outputs]
    with tf.control_dependencies(metrics), averaging(rows) as completed:
        optimizer = trial.optimizer()
        # Batch normalisation keeps its moving averages in this collection.
        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            step = completed(optimizer.minimize(outputs[LOSS], global_step=counter))
    return Built(record, {**outputs, SHARE: rows / whole}, step)


def _share(record: Any, is_training: tf.Tensor, index: Any, count: int) -> tuple[Any, Any, Any]:
    """Returns one worker's rows of a batch, their number, and that of the batch.

    There is one row at least, which may have no weight: the mean over no rows is not a number.
    """
    first = tf.nest.flatten(record)[0]
    is_sparse = isinstance(first, tf.SparseTensor)
    rows = tf.cast(first.dense_shape[0], tf.int32) if is_sparse else tf.shape(first)[0]
    start = tf.where(is_training, index * rows // count, 0)
    end = tf.where(is_training, (index + 1) * rows // count, rows)
    first_row, last_row = tf.minimum(start, rows - 1), tf.maximum(end, start + 1)

    def share(tensor: Any) -> Any:
        if not isinstance(tensor, tf.SparseTensor):
            return tensor[first_row:last_row]
        places = tf.cast([first_row, last_row], tf.int64)
        rest = tensor.dense_shape[1:]
        begin = tf.concat([places[:1], tf.zeros_like(rest)], 0)
        return tf.sparse.slice(tensor, begin, tf.concat([places[1:] - places[:1], rest], 0))

    return tf.nest.map_structure(share, record), end - start, rows


@contextlib.contextmanager
def _as_it_is(rows: Any) -> Iterator[Callable[[Any], Any]]:
    yield lambda step: step


def updated(metric: Any) -> Any:
    """Returns the tensor that a batch yields: that of a pair (value, update) is the update."""
    return metric[1] if isinstance(metric, tuple) else metric


def _checked(outputs: Any) -> dict[str, tf.Tensor]:
    if not isinstance(outputs, dict) or LOSS not in outputs:
        raise ModuleFileError(
            f"build_graph must return a dict of tensors with the key {LOSS!r}, but got "
            f"{sorted(outputs) if isinstance(outputs, dict) else outputs!r}"
        )
    return {name: tuple(one) if isinstance(one, list) else one for name, one in outputs.items()}
