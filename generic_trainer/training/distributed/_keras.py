"""Adaptation of Keras 3 to training on several workers, and the strategy for its models.

Keras calls a model's strategy to distribute the data and to run a step, which is not enough for
several workers. Wrappers around methods of Keras's classes add the rest: gradients are averaged
before they are clipped, metrics are summed over all workers, and all workers start from the same
variables. Models of other strategies are not affected, and at the end of `run_fn` all methods are
those of Keras again.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import keras_3_package
from generic_trainer.errors import ConfigurationError
from generic_trainer.training._hooks import one_more_callback
from generic_trainer.training._walk import walk
from generic_trainer.training.distributed._agreement import agree_to_fit
from generic_trainer.training.distributed._collectives import all_reduce, average_gradients
from generic_trainer.training.distributed._runtime import (
    Runtime,
    explained_failures,
    runtime,
)
from generic_trainer.training.distributed._shares import (
    at_least_a_row,
    is_own,
    number_of_rows,
    without_length,
)
from generic_trainer.training.distributed._strategy import (
    DataParallelStrategy,
    assign_all,
    copy_from_worker_0,
    was_made_trainable,
)

# The replaced methods of Keras, which act on models of `_Strategy` alone.
_replaced = contextlib.ExitStack()


@functools.cache
def make_strategy() -> DataParallelStrategy:
    """Returns the strategy of this process, one of several workers, for models of Keras 3.

    Raises:
        ConfigurationError: `TF_CONFIG` is wrong, or TensorFlow has been used before.
    """
    connected, keras = runtime(), keras_3_package()
    if connected is None or keras is None:
        raise ConfigurationError("expected several workers, as TF_CONFIG lists them, and Keras 3")
    _extend(keras)
    # Each worker takes its share of the same batches, so shuffles must be equal in all workers.
    # Otherwise some rows would be used twice and others never. The seed of worker 0 becomes the
    # global seed, unless the user has set one.
    (seed, *_) = connected.exchange("at its start", int.from_bytes(os.urandom(4), "big"))
    if getattr(internals.TF_EAGER_CONTEXT.get()(), internals.TF_OP_SEEDS.name, None) is None:
        tf.random.set_seed(seed)
    return _Strategy(connected)


def forget_strategy() -> None:
    """Restores the methods of Keras that `make_strategy` replaced; the next call replaces them."""
    make_strategy.cache_clear()
    _replaced.close()


class _Strategy(DataParallelStrategy):
    """A strategy that recognizes the steps of Keras models, and weights them by rows.

    Attributes:
        statistics: the variables that a step changes without gradients, such as those of
            BatchNormalization, and their values before the step that is being run or traced.
    """

    statistics: Sequence[tuple[tf.Variable, tf.Tensor]] = ()

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Calls a function with this worker's part of its arguments; see `tf.distribute`."""
        keras: Any = keras_3_package()
        model = getattr(fn, "__self__", None)
        if not isinstance(model, keras.Model):
            return super().run(fn, args, kwargs, options)
        rows = number_of_rows(args)
        args = at_least_a_row(args, rows)
        statistics = [
            (each.value, each.value.read_value())
            for each in model.non_trainable_weights
            if each.value.dtype.is_floating and not was_made_trainable(each.value)
        ]
        # Keras's own `jit_compile` would include the sums over workers; see `uncompiled`.
        xla: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if model.jit_compile:
            xla = tf.xla.experimental.jit_scope()
        with self.setting(rows=rows, statistics=statistics), _metrics_of_rows(model, rows), xla:
            return super().run(fn, args, kwargs, options)

    def means(self, gradients: list[Any]) -> list[Any]:
        """Returns the gradients of the mean loss over the rows of all workers.

        It also sets `statistics` to their old values plus the mean of the workers' changes,
        weighted by rows in the same way.

        Args:
            gradients: the gradients of the mean loss over this worker's rows.
        """
        changes = [variable - before for variable, before in self.statistics]
        means = average_gradients([*changes, *gradients], rows=self.rows)
        for variable, before in self.statistics:
            variable.assign(before + means.pop(0))
        return means


@contextlib.contextmanager
def _metrics_of_rows(model: Any, rows: Any) -> Iterator[None]:
    """Restores the metrics after a step without rows, which ran on a row of zeros instead."""
    if isinstance(rows, int) and rows:
        yield
        return
    variables = [variable.value for variable in model.metrics_variables]
    before = [variable.read_value() for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(tf.where(tf.equal(rows, 0), value, variable))


# ---- metrics -------------------------------------------------------------------------------------


def keep_metrics_in_worker_0(model: Any, *, are_sums: bool) -> None:
    """Sets the metrics of worker 0 to the sums over all workers, and those of the others to zero.

    A checkpoint stores the state of worker 0 only, so this is called before each one; and after one
    was restored, because keeping its sums in each worker would count them repeatedly.

    Args:
        model: a model of any strategy; only those of several workers have other metrics then.
        are_sums: whether all workers have the sums already, out of a checkpoint.
    """
    strategy = model.distribute_strategy
    if not isinstance(strategy, _Strategy):
        return
    variables = _metrics_variables(model)
    values = [variable.read_value() for variable in variables]
    sums = values if are_sums else all_reduce(values)
    if strategy.connected.rank > 0:
        sums = [*map(tf.zeros_like, values)]
    assign_all(variables, sums)


def _metrics_variables(model: Any) -> list[tf.Variable]:
    variables = [variable.value for variable in model.metrics_variables]
    return [each for each in variables if each.dtype != tf.string]


def _mean_logs(connected: Runtime, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs in which each number is the mean over all workers.

    Callbacks such as EarlyStopping read the logs, so all workers take the same decisions.
    """
    numbers = {
        name: float(value)
        for name, value in logs.items()
        if isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
    }
    of_all = connected.exchange("at the end of an epoch", numbers)
    means = {
        name: sum(each.get(name, number) for each in of_all) / len(of_all)
        for name, number in numbers.items()
    }
    return {**logs, **means}


# ---- methods of Keras's classes ------------------------------------------------------------------


def _extend(keras: ModuleType) -> None:
    """Replaces methods of Keras's classes with wrappers that act on models of `_Strategy`."""
    for owner, name, around in (
        (keras.Model, "fit", _fit),
        (keras.Model, "evaluate", _evaluate),
        (keras.Model, "predict", _predict),
        (keras.Model, "make_train_function", _make_function),
        (keras.Model, "make_test_function", _make_function),
        (keras.Model, internals.KERAS_3_BUILD.name, _build),
        (keras.Model, internals.KERAS_3_RESULTS.name, _results),
        (keras.optimizers.Optimizer, "apply", _apply),
        (keras.optimizers.LossScaleOptimizer, "apply", _apply),
        (keras.metrics.Metric, "add_variable", _add_variable),
        (keras.losses.Loss, "__call__", _loss),
    ):
        around = tf.autograph.experimental.do_not_convert(functools.partial(_around, around))
        _replaced.enter_context(internals.replaced_method(owner, name, around))


def _around(
    around: Callable[..., Any], original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    # A model has the strategy in which it was created; for other objects, the current one.
    strategy = getattr(self, "distribute_strategy", None) or tf.distribute.get_strategy()
    if not isinstance(strategy, _Strategy):
        return original(self, *args, **kwargs)
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    return around(strategy, lambda bound: original(*bound.args, **bound.kwargs), bound)


def _fit(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    keras: Any = keras_3_package()
    for name in ("x", "validation_data"):
        bound.arguments[name] = without_length(bound.arguments.get(name))

    def begin(logs: Any) -> None:
        agree_to_fit(strategy.connected, start.model, start.params)
        _start_from_worker_0(start.model)

    def end(logs: Any) -> None:
        strategy.connected.exchange("at the end of fit", None)

    start = keras.callbacks.LambdaCallback(on_train_begin=begin, on_train_end=end)
    with one_more_callback(keras, bound.arguments, start), explained_failures():
        return original(bound)


def _evaluate(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # A dataset that only this worker reads has just its data already.
    is_whole = is_own(bound.arguments.get("x"))
    return _predict(strategy, original, bound) if is_whole else original(bound)


def _predict(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    with strategy.setting(is_whole=True):  # each worker gets all predictions
        return original(bound)


def _make_function(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # `_Strategy.run` enables XLA for the step, and leaves out the collectives.
    model = bound.args[0]
    asked, model.jit_compile = model.jit_compile, False
    function = original(bound)
    model.jit_compile = asked
    return function


def _build(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # Built from the shapes of the dataset. Keras would read a batch, which advances the random
    # state of the shuffle: later epochs would then have another order.
    bound.arguments["iterator"] = None
    bound.arguments["data_batch"] = strategy.element_spec
    return original(bound)


def _results(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # This exchange must come before any collective: workers with more batches notice a worker that
    # waits in an exchange, but not one that waits in a collective.
    bound.arguments["logs"] = _mean_logs(strategy.connected, bound.arguments["logs"])
    variables = _metrics_variables(bound.args[0])
    own = [variable.read_value() for variable in variables]
    assign_all(variables, all_reduce(own))
    try:
        return original(bound)
    finally:
        assign_all(variables, own)


def _apply(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    in_step = tf.distribute.get_replica_context() is not None
    # If set, the optimizer that wraps this one has averaged the gradients.
    if not in_step or strategy.gradients_are_averaged:
        return original(bound)
    gradients = list(bound.arguments["grads"])
    # A custom loop divides its loss by the global batch size, as tf.distribute requires, so its
    # gradients are summed. The step of a model has a mean loss, so its gradients are averaged.
    bound.arguments["grads"] = (
        all_reduce(gradients) if strategy.rows is None else strategy.means(gradients)
    )
    with strategy.setting(gradients_are_averaged=True):
        return original(bound)


def _loss(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    loss = original(bound)
    if strategy.rows is None or strategy.is_whole or bound.args[0].reduction != "sum":
        return loss
    # The loss of a worker is a sum over its rows, but gradients are averaged, weighted by rows.
    # Scaled by all rows / own rows, the weighted mean of the losses is their sum over the workers.
    rows = tf.cast(strategy.rows, tf.float32)
    return loss * tf.cast(all_reduce(rows) / tf.maximum(rows, 1.0), loss.dtype)


def _add_variable(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # Each worker counts its own rows; sums over workers are only computed for logs and checkpoints.
    bound.arguments["aggregation"] = "none"
    return original(bound)


def _start_from_worker_0(model: Any) -> None:
    """Copies the variables of worker 0; each may have initialized or loaded other values."""
    optimizer = getattr(model, "optimizer", None)
    variables = [each.value for each in (*model.variables, *getattr(optimizer, "variables", ()))]
    copy_from_worker_0([each for each in variables if each.dtype != tf.string])
    for _, layer in walk(model):
        if hasattr(layer, "adapt_mean") and layer.built:
            layer.finalize_state()  # a Normalization layer computes with values derived from these
