"""Steps of several batches in a graph of TensorFlow 1: `optimizations.aggregation_frequency`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer.trials._trial import HorovodContext

_tf1 = tf.compat.v1


def aggregated(optimizer: Any, config: HorovodContext) -> Any:
    """Returns the same optimizer, which makes a step of the gradients of several batches.

    It is one of `tf.compat.v1.train`, or of Keras 2 for graphs. The global step counts batches all
    the same. Sums of gradients are variables of the graph, which a checkpoint keeps.
    """
    if config.aggregation_frequency > 1:
        kind = type(optimizer)

        def apply_gradients(
            self: Any, grads_and_vars: Any, global_step: Any = None, name: Any = None, **kwargs: Any
        ) -> tf.Operation:
            def apply(pairs: Any) -> Any:
                return kind.apply_gradients(self, pairs, name=name, **kwargs)

            def count() -> Any:  # one of Keras counts by itself where it makes a step
                steps = getattr(self, "iterations", None)
                return tf.no_op() if steps is None else steps.assign_add(1, read_value=False)

            step = _step(list(grads_and_vars), apply, count, config)
            if global_step is None:
                return step
            with tf.control_dependencies([step]):
                return _tf1.assign_add(global_step, 1)

        members = {"apply_gradients": apply_gradients, "__module__": kind.__module__}
        optimizer.__class__ = type(kind.__name__, (kind,), members)
    return optimizer


def _step(
    pairs: list[tuple[Any, Any]],
    apply: Callable[[Any], Any],
    count: Callable[[], Any],
    config: HorovodContext,
) -> tf.Operation:
    """Returns what adds up gradients, and with the last batch of a step applies them."""
    every = config.aggregation_frequency
    pairs = [(tf.convert_to_tensor(gradient), v) for gradient, v in pairs if gradient is not None]
    batches = _kept([], tf.int64, "batches")
    sums = [_kept(v.shape, gradient.dtype, "sum") for gradient, v in pairs]
    added = [kept.assign_add(gradient) for kept, (gradient, _) in zip(sums, pairs, strict=True)]
    with tf.control_dependencies([*added, batches.assign_add(1)]):
        is_last = tf.equal(batches.read_value() % every, 0)

    def last() -> tf.Tensor:
        totals = [kept.read_value() for kept in sums]
        factor = 1 / every if config.average_aggregated_gradients else 1.0
        applied = apply([(total * factor, v) for total, (_, v) in zip(totals, pairs, strict=True)])
        steps = _tf1.get_collection_ref(_tf1.GraphKeys.TRAIN_OP)
        if applied in steps:  # where operations must be those of the graph, not of this branch
            steps.remove(applied)
        with tf.control_dependencies([*totals, applied]):
            reset = [kept.assign(tf.zeros_like(kept)) for kept in sums]
        return _done(*reset)

    return tf.group(tf.cond(is_last, last, lambda: _done(count())))


def _kept(shape: Any, dtype: tf.DType, name: str) -> Any:
    with tf.init_scope():  # begins before anything of the step has run
        zeros = tf.zeros(shape, dtype)
        return _tf1.Variable(zeros, trainable=False, name=f"aggregated/{name}", use_resource=True)


def _done(*operations: Any) -> tf.Tensor:
    with tf.control_dependencies(operations):
        return tf.constant(True)
