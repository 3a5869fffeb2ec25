"""The metrics of training: what the graph's summaries show, batch after batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.trials.estimator._order import run_before_updates

__all__ = ["Summaries", "plain"]

# Operations whose first inputs are a tag and a value.
_SUMMARIES = ("ScalarSummary", "TensorSummaryV2")
_LOSS, _RENAMED_LOSS = "loss", "loss_1"


class Summaries:
    """What a session has to yield with each batch.

    Attributes:
        fetches: tensors for `Session.run`.
    """

    def __init__(self, graph: tf.Graph) -> None:
        """Takes a graph that is built but for this.

        Scalars are packed into one tensor: a session takes its time for each that it hands out.
        """
        tensors = _summarised(graph)
        self._packed = [name for name, tensor in tensors.items() if tensor.shape.rank == 0]
        self._others = [name for name in tensors if name not in self._packed]
        with graph.as_default(), tf.name_scope("summaries_of_a_batch"):
            scalars = [tf.cast(tensors[name], tf.float64) for name in self._packed]
            packed = [tf.stack(scalars)] if scalars else []
        self.fetches = [*packed, *(tensors[name] for name in self._others)]
        run_before_updates(graph, [tensor.op for tensor in self.fetches])

    def average(self, batches: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Returns the unweighted mean of each metric over batches, a number or nested lists.

        A metric whose shape is not the same in all batches has no mean and is left out.

        Args:
            batches: what a session yielded for `fetches`, for each batch.
        """
        if not batches:
            return {}
        columns = list(zip(*batches, strict=True))
        means = np.mean(columns.pop(0), axis=0).tolist() if self._packed else []
        found = dict(zip(self._packed, means, strict=True))
        for name, values in zip(self._others, columns, strict=True):
            if len({np.shape(value) for value in values}) == 1:
                found[name] = np.mean(values, axis=0).tolist()
        return found


def plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of an evaluation as JSON can hold them."""
    return {name: _plain(value) for name, value in metrics.items()}


def _summarised(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Returns tag → tensor for every scalar and tensor summary of a graph that is a number.

    An estimator adds a summary of its loss, which is called loss_1 where the name was taken; if
    there is no summary of the name then, it gets it back.
    """
    found = {}
    for summary in graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES):
        tag, value = _parts(summary.op)
        if tag is not None and value.graph is graph and _is_number(value.dtype):
            found[tag] = value
    if _LOSS not in found and _RENAMED_LOSS in found:
        found[_LOSS] = found.pop(_RENAMED_LOSS)
    return found


def _parts(operation: tf.Operation) -> tuple[str | None, Any]:
    if operation.type not in _SUMMARIES:
        return None, None
    tag, value = operation.inputs[0], operation.inputs[1]
    name = tf.get_static_value(tag)
    return (None if name is None else name.item().decode()), value


def _is_number(dtype: tf.DType) -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
