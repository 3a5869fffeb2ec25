"""Training of TensorFlow 1 graphs, as estimators build them, on several workers.

Each worker has a separate session without a connection to the others. Patched optimizers average
the gradients within the graph. Between two calls of a session, functions of this module copy or sum
the values of its variables over all workers.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._agreement import agree_on_variables
from generic_trainer.training.distributed._collectives import (
    all_reduce,
    average_gradients,
    broadcast,
    has_collectives,
    is_number,
)
from generic_trainer.training.distributed._runtime import eager_mode, runtime

_logger = logging.getLogger(__name__)

_tf1 = tf.compat.v1
_ASSIGNS = ("Assign", "ResourceScatter", "Scatter")
_PASSES = ("Enter", "Identity", "Switch")


@contextlib.contextmanager
def averaging_optimizers(rows: Any = None) -> Iterator[Callable[[Any], tf.Operation]]:
    """Makes optimizers average gradients over all workers within the context.

    ::

        with averaging_optimizers(tf.shape(x)[0]) as completed:
            step = completed(optimizer.minimize(loss))

    1. Optimizers of `tf.compat.v1.train` average the result of `compute_gradients`, that is, before
       the caller can clip it. If gradients were computed elsewhere, `apply_gradients` averages
       them.
    2. Keras 2's optimizers for such graphs average before they clip.
    3. `completed` returns a training step that also averages the other variables that the step
       changes, such as the moving statistics of batch normalization.

    Args:
        rows: integer [], the number of rows over which the loss is a mean; None to give all workers
            the same weight.

    `completed` raises:
        ConfigurationError: no gradients were averaged.
    """
    averaged: set[int] = set()
    state: list[Any] = []
    graph = _tf1.get_default_graph()

    def means(pairs: Any) -> list[tuple[Any, Any]]:
        pairs = list(pairs)
        if not state:  # optimizers have not created their variables yet
            state.extend(_tf1.global_variables())
        gradients = average_gradients([gradient for gradient, _ in pairs], rows=rows)
        return [(gradient, pair[1]) for gradient, pair in zip(gradients, pairs, strict=True)]

    def compute(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        averaged.add(id(optimizer))
        return means(original(optimizer, *args, **kwargs))

    def apply(original: Any, optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if id(optimizer) not in averaged:
            _logger.warning(
                "%s received gradients that it did not compute. They are averaged over all "
                "workers now, perhaps after clipping. Compute them with its compute_gradients, or "
                "average them with training.distributed.average_gradients before clipping.",
                type(optimizer).__name__,
            )
            grads_and_vars = means(grads_and_vars)
        return original(optimizer, grads_and_vars, *args, **kwargs)

    def aggregate(original: Any, optimizer: Any, grads_and_vars: Any) -> Any:
        return original(optimizer, means(grads_and_vars))

    def completed(step: Any) -> tf.Operation:
        if not has_collectives(graph):
            raise ConfigurationError(
                "The training step does not average gradients over the workers, because they do "
                "not come from an optimizer of TensorFlow. Average them with "
                "training.distributed.average_gradients before they are applied."
            )
        step = getattr(step, "op", step)
        trained = {variable.ref() for variable in _tf1.trainable_variables()}
        changed = [
            variable
            for variable in state
            if variable.ref() not in trained
            and variable.dtype.is_floating
            and _is_assigned(variable)
        ]
        with tf.control_dependencies([step]):
            values = average_gradients([variable.read_value() for variable in changed], rows=rows)
        pairs = zip(changed, values, strict=True)
        return tf.group(step, *(variable.assign(value) for variable, value in pairs))

    with contextlib.ExitStack() as stack:
        optimizer = _tf1.train.Optimizer
        stack.enter_context(internals.replaced_method(optimizer, "compute_gradients", compute))
        stack.enter_context(internals.replaced_method(optimizer, "apply_gradients", apply))
        legacy = internals.KERAS_2_API.get().optimizers.legacy.Optimizer
        name = internals.KERAS_2_AGGREGATE.name
        stack.enter_context(internals.replaced_method(legacy, name, aggregate))
        yield completed


def _is_assigned(variable: Any) -> bool:
    """Returns whether an operation other than its initializer changes a variable."""
    return _is_changed(variable.op.outputs[0], variable.initializer)


def _is_changed(handle: Any, initializer: Any) -> bool:
    for operation in handle.consumers():
        if operation.type.startswith(_ASSIGNS) and operation is not initializer:
            return True
        is_passed = operation.type.removeprefix("Ref") in _PASSES  # into one of TensorFlow 1
        if is_passed and any(_is_changed(output, initializer) for output in operation.outputs):
            return True
        attributes = operation.node_def.attr
        if any(a.HasField("func") or a.list.func for a in attributes.values()):  # a `tf.cond`
            unchanged = attributes["_read_only_resource_inputs"].list.i
            names = [tensor.name for tensor in operation.inputs]
            if any(name == handle.name and i not in unchanged for i, name in enumerate(names)):
                return True
    return False


# ---- sessions ------------------------------------------------------------------------------------


def start_session_alike(session: Any) -> None:
    """Sets the variables of a session's graph to their values in worker 0.

    Raises:
        ConfigurationError: another worker has other variables.
    """
    connected = runtime()
    if connected is None:
        return
    with session.graph.as_default():
        variables = [*filter(is_number, _tf1.global_variables())]
    agree_on_variables(connected, variables)
    _set(session, variables, broadcast)


def sum_in_session(session: Any, variables: Sequence[Any]) -> None:
    """Sets variables of a session to the sums of their values over all workers."""
    # By name, because collectives need the same order on all workers.
    ordered = sorted(filter(is_number, variables), key=lambda variable: variable.op.name)
    _set(session, ordered, all_reduce)


def any_wants(wants: bool) -> bool:
    """Returns whether `wants` is true in any worker.

    It costs less than `agree_to_stop`, so it can be called after each step.
    """
    with eager_mode():
        return bool(all_reduce(int(wants)))


def _set(session: Any, variables: list[Any], function: Callable[[list[Any]], list[Any]]) -> None:
    values = session.run(variables)
    with eager_mode():
        values = [value.numpy() for value in function(values)]
    initializers = [variable.initializer for variable in variables]
    places = (initializer.inputs[1] for initializer in initializers)
    session.run(initializers, dict(zip(places, values, strict=True)))
