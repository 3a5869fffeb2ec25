"""Whether a summary shows a variable as it is before a step or after it.

A learning rate that is computed from the step counter, or the norm of a weight, is read in the same
`Session.run` that changes the counter and the weight, and nothing says which comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import tensorflow as tf

__all__ = ["run_before_updates"]

# What optimizers, counters and moving averages do to variables; initialisers and savers assign.
_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply|(Resource)?Scatter|Assign(Add|Sub)")


def run_before_updates(graph: tf.Graph, operations: Iterable[tf.Operation]) -> None:
    """Has operations run before variables change, so that equal seeds give equal summaries.

    Updates that the operations need themselves, such as those of a streaming metric, come first as
    they did. So may those inside of conditions and loops of TensorFlow 1.

    Args:
        graph: not finalised yet.
        operations: of the graph.
    """
    operations = list(operations)
    needed = _upstream(operations)
    for update in graph.get_operations():
        if (
            _UPDATE.match(update.type)
            and update not in needed
            and update._get_control_flow_context() is None
        ):
            update._add_control_inputs(operations)


def _upstream(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    found: set[tf.Operation] = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return found
