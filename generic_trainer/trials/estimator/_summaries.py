"""The metrics of training: what the graph's summaries show, batch after batch.

A learning rate that is computed from the step counter, or the norm of a weight, is read in the same
`Session.run` that changes the counter and the weight, and nothing says which comes first. Here the
summaries do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals

# Operations whose first inputs are a tag and a value.
_SUMMARIES = ("ScalarSummary", "TensorSummaryV2")
_LOSS, _RENAMED_LOSS = "loss", "loss_1"
# What optimizers, counters and moving averages do to variables; initialisers and savers assign.
_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply|(Resource)?Scatter|Assign(Add|Sub)")


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
        _run_before_updates(graph, [tensor.op for tensor in self.fetches])

    def average(self, batches: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Returns the unweighted mean over batches of what a session yielded for `fetches`.

        A metric, a number or nested lists, whose shape is not the same in all batches is left out.
        """
        if not batches:
            return {}
        columns = list(zip(*batches, strict=True))
        means = np.mean(columns.pop(0), axis=0).tolist() if self._packed else []
        averages = dict(zip(self._packed, means, strict=True))
        for name, values in zip(self._others, columns, strict=True):
            if len({np.shape(value) for value in values}) == 1:
                averages[name] = np.mean(values, axis=0).tolist()
        return averages


def plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of an evaluation as JSON can hold them."""

    def one(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value

    return {name: one(value) for name, value in metrics.items()}


def _summarised(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Returns tag → tensor for every scalar and tensor summary of a graph that is a number.

    An estimator adds a summary of its loss, which is called loss_1 where the name was taken; if
    there is no summary of the name then, it gets it back.
    """
    values = {}
    for summary in graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES):
        if summary.op.type not in _SUMMARIES:
            continue
        tag, value = tf.get_static_value(summary.op.inputs[0]), summary.op.inputs[1]
        dtype = value.dtype
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
        if tag is not None and value.graph is graph and is_number:
            values[tag.item().decode()] = value
    if _LOSS not in values and _RENAMED_LOSS in values:
        values[_LOSS] = values.pop(_RENAMED_LOSS)
    return values


def _run_before_updates(graph: tf.Graph, operations: list[tf.Operation]) -> None:
    """Has operations run before variables change, so that equal seeds give equal summaries.

    Updates that the operations need themselves, such as those of a streaming metric, come first as
    they did. So may those inside of conditions and loops of TensorFlow 1.
    """
    needed: set[tf.Operation] = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    for update in graph.get_operations():
        if (
            _UPDATE.match(update.type)
            and update not in needed
            and internals.TF_CONTROL_FLOW_CONTEXT.of(update)() is None
        ):
            internals.TF_ADD_CONTROL_INPUTS.of(update)(operations)
