"""Models that are graphs of TensorFlow 1, as estimators build them: trained by several workers.

Each worker has a session of its own, which knows of no other. Their optimizers are told to average
the gradients that they compute, and what sessions hold is made alike from outside.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._collectives import (
    all_reduce,
    average_gradients,
    broadcast,
)
from generic_trainer.training.distributed._ops import has_collectives
from generic_trainer.training.distributed._runtime import eager_mode, runtime
from generic_trainer.training.distributed._strategy import different_models

_logger = logging.getLogger(__name__)

_tf1 = tf.compat.v1
_ASSIGNS = ("Assign", "ResourceScatter", "Scatter")


@contextlib.contextmanager
def averaging_optimizers(rows: Any = None) -> Iterator[Callable[[Any], tf.Operation]]:
    """Has optimizers average gradients over all workers, where they compute or apply them.

    ::

        with averaging_optimizers(tf.shape(x)[0]) as completed:
            step = completed(optimizer.minimize(loss))

    1. Those of `tf.compat.v1.train` average what `compute_gradients` returns, so before anybody
       clips it. Gradients that come from elsewhere they average when they apply them.
    2. Those of Keras 2 for such graphs average before they clip.
    3. `completed` returns a step that also averages what else it changes of the model, such as the
       moving statistics of batch normalization.

    Args:
        rows: integer [], of the batch that the loss is the mean of; None: all workers count alike.

    `completed` raises:
        ConfigurationError: no gradients were averaged.
    """
    averaged: set[int] = set()
    state: list[Any] = []
    graph = _tf1.get_default_graph()

    def means(pairs: Any) -> list[tuple[Any, Any]]:
        pairs = list(pairs)
        if not has_collectives(graph):  # there are no variables of optimizers yet
            state.extend(_tf1.global_variables())
        gradients = average_gradients([gradient for gradient, _ in pairs], rows=rows)
        return [(gradient, pair[1]) for gradient, pair in zip(gradients, pairs, strict=True)]

    def compute(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        averaged.add(id(optimizer))
        return means(original(optimizer, *args, **kwargs))

    def apply(original: Any, optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if id(optimizer) not in averaged:
            _logger.warning(
                "%s is given gradients that it has not computed: they are averaged over all "
                "workers as they are now, perhaps clipped. Compute them with its "
                "compute_gradients, or average them by training.distributed.average_gradients.",
                type(optimizer).__name__,
            )
            grads_and_vars = means(grads_and_vars)
        return original(optimizer, grads_and_vars, *args, **kwargs)

    def aggregate(original: Any, optimizer: Any, grads_and_vars: Any) -> Any:
        return original(optimizer, means(grads_and_vars))

    def completed(step: Any) -> tf.Operation:
        if not has_collectives(graph):
            raise ConfigurationError(
                "The model is to be trained by several workers, and its training step averages no "
                "gradients: they come from no optimizer of TensorFlow. Average them by "
                "training.distributed.average_gradients before they are applied."
            )
        step = getattr(step, "op", step)
        with tf.control_dependencies([step]):
            return _with_averaged_statistics(step, state, rows)

    with contextlib.ExitStack() as stack:
        optimizer = _tf1.train.Optimizer
        stack.enter_context(internals.replaced_method(optimizer, "compute_gradients", compute))
        stack.enter_context(internals.replaced_method(optimizer, "apply_gradients", apply))
        with contextlib.suppress(ConfigurationError):  # tf_keras is not installed
            legacy = internals.KERAS_2_API.get().optimizers.legacy.Optimizer
            name = internals.KERAS_2_AGGREGATE.name
            stack.enter_context(internals.replaced_method(legacy, name, aggregate))
        yield completed


def _with_averaged_statistics(step: tf.Operation, state: Sequence[Any], rows: Any) -> tf.Operation:
    trained = {variable.ref() for variable in _tf1.trainable_variables()}
    changed = [
        variable
        for variable in state
        if variable.ref() not in trained and variable.dtype.is_floating and _is_assigned(variable)
    ]
    if not changed:
        return step
    values = average_gradients([variable.read_value() for variable in changed], rows=rows)
    pairs = zip(changed, values, strict=True)
    return tf.group(step, *(variable.assign(value) for variable, value in pairs))


def _is_assigned(variable: Any) -> bool:
    """Returns whether anything but its initializer changes a variable."""
    tensor = getattr(variable, "handle", None)
    tensor = variable.op.outputs[0] if tensor is None else tensor
    initializer = variable.initializer
    return any(
        operation.type.startswith(_ASSIGNS) and operation is not initializer
        for operation in tensor.consumers()
    )


# ---- sessions ------------------------------------------------------------------------------------


def start_session_alike(session: Any) -> None:
    """Gives the variables of a session's graph the values that they have in worker 0.

    Raises:
        ConfigurationError: another worker has other variables.
    """
    connected = runtime()
    if connected is None:
        return
    with session.graph.as_default():
        variables = [*filter(_is_number, _tf1.global_variables())]
    described = {
        f"variable {number}": f"{each.op.name} {each.dtype.name} {each.shape}"
        for number, each in enumerate(variables)
    }
    connected.agree("about to start", described, different_models)
    _set(session, variables, broadcast)


def sum_in_session(session: Any, variables: Sequence[Any]) -> None:
    """Sets variables of a session, in any order, to the sums of what they are in all workers."""
    ordered = sorted(filter(_is_number, variables), key=lambda variable: variable.op.name)
    _set(session, ordered, all_reduce)


def any_wants(wants: bool) -> bool:
    """Returns whether any worker does; it costs less than `agree_to_stop`, after each step say."""
    with eager_mode():
        return bool(all_reduce(int(wants)))


def _set(session: Any, variables: list[Any], function: Callable[[list[Any]], list[Any]]) -> None:
    if not variables:
        return
    values = session.run(variables)
    with eager_mode():
        values = [value.numpy() for value in function(values)]
    initializers = [variable.initializer for variable in variables]
    places = (initializer.inputs[1] for initializer in initializers)
    session.run(initializers, dict(zip(places, values, strict=True)))


def _is_number(variable: Any) -> bool:
    kind = variable.dtype.base_dtype
    return bool(kind.is_floating or kind.is_integer or kind.is_bool)
