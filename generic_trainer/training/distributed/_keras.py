"""Adaptation of Keras 3 to training on several workers, and the strategy for its models.

Keras calls a model's strategy to distribute the data and to run a step, which is not enough for
several workers. Wrappers around methods of Keras's classes add the rest: gradients are averaged
before they are clipped, metrics are summed over all workers, and all workers start from the same
variables. Models of other strategies are not affected, and at the end of `run_fn` all methods are
those of Keras again.
"""

import contextlib
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import keras_3_package
from generic_trainer.training._walk import walk
from generic_trainer.training._watch import one_more_callback
from generic_trainer.training.distributed import _collectives
from generic_trainer.training.distributed._agreement import agree_on_values, agree_to_fit
from generic_trainer.training.distributed._runtime import explained_failures, runtime
from generic_trainer.training.distributed._shares import is_own, without_length
from generic_trainer.training.distributed._strategy import (
    DataParallelStrategy,
    assign_all,
    copy_from_worker_0,
)

# The replaced methods of Keras, which act on models of `DataParallelStrategy` alone.
_replaced = contextlib.ExitStack()


@functools.cache
def make_strategy() -> DataParallelStrategy:
    """Returns the strategy of this process, one of several workers with Keras 3, for its models.

    Raises:
        ConfigurationError: `TF_CONFIG` is wrong, or TensorFlow has been used before.
    """
    connected: Any = runtime()
    _extend(keras_3_package())
    # Each worker takes its share of the same batches, so shuffles must be equal in all workers.
    # Otherwise some rows would be used twice and others never. They must also be equal in all runs:
    # the reader's order depends on the global seed too. A user may have set that seed. Without one,
    # ops with a seed of their own take a default for it: with that, one worker and several agree.
    if getattr(internals.TF_EAGER_CONTEXT.get()(), internals.TF_OP_SEEDS.name, None) is None:
        default, _ = tf.compat.v1.random.get_seed(0)
        tf.random.set_seed(default)
    return DataParallelStrategy(connected)


def forget_strategy() -> None:
    """Restores the methods of Keras that `make_strategy` replaced; the next call replaces them."""
    make_strategy.cache_clear()
    _replaced.close()


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
    if not isinstance(strategy, DataParallelStrategy):
        return
    variables = [variable.value for variable in model.metrics_variables]
    values = [variable.read_value() for variable in variables]
    sums = values if are_sums else _collectives.all_reduce(values)
    assign_all(variables, [*map(tf.zeros_like, values)] if strategy.connected.rank else sums)


def _mean_logs(
    strategy: DataParallelStrategy, logs: Mapping[str, Any], results: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns logs in which each number is the mean over all workers, and which are metrics.

    Callbacks such as EarlyStopping read the logs, so all workers take the same decisions. The last
    step has computed the logs, so its rows are the weights of the workers.

    Args:
        strategy: of the model.
        logs: what the last step has returned on this worker.
        results: of the model's metrics, by name, on this worker.

    Returns:
        The logs; and for each number that is the result of a metric, the name of that metric.
    """
    numbers, metrics = _numbers(logs), _numbers(results)
    alike = {
        log: [name for name, result in metrics.items() if _is_result(log, value, name, result)]
        for log, value in numbers.items()
    }
    own = {"rows": int(strategy.last_rows), "numbers": numbers, "alike": alike}
    of_all = strategy.connected.exchange("at the end of an epoch", own)
    # The step of a worker without rows has counted a row that its metrics have not.
    of_all = [each for each in of_all if each["rows"]] or of_all
    means: dict[str, float] = {}
    names: dict[str, str] = {}
    # A worker without batches has no logs, but takes the same decisions.
    for name in numbers or dict.fromkeys(name for each in of_all for name in each["numbers"]):
        having = [each for each in of_all if name in each["numbers"]]
        if having:
            rows = [max(1, each["rows"]) for each in having]
            values = [each["numbers"][name] for each in having]
            means[name] = float(np.average(values, weights=rows))
            common = set(metrics).intersection(*(each["alike"][name] for each in having))
            names |= {name: min(common, key=lambda each: (each != name, each))} if common else {}
    return {**logs, **means}, names


def _numbers(logs: Any) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in (logs.items() if isinstance(logs, Mapping) else ())
        if isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
    }


def _is_result(log: str, value: float, metric: str, result: float) -> bool:
    """Returns whether a log is the result of a metric, which XLA may have rounded otherwise.

    Of another name it is not if the value is one that many numbers have.
    """
    if metric != log and (value in (0.0, 1.0) or math.isnan(value)):
        return False
    both_nan = math.isnan(value) and math.isnan(result)
    return both_nan or math.isclose(value, result, rel_tol=1e-5)


# ---- methods of Keras's classes ------------------------------------------------------------------


def _extend(keras: Any) -> None:
    """Replaces methods of Keras's classes with wrappers that act within the strategy alone."""
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
    for name in dir(keras.callbacks.CallbackList):
        if name.startswith("on_"):
            hooks = internals.replaced_method(keras.callbacks.CallbackList, name, _call_hook)
            _replaced.enter_context(hooks)


def _call_hook(original: Any, callbacks: Any, *args: Any, **named: Any) -> Any:
    """Calls a hook of callbacks; data that they distribute themselves are no `Share`s."""
    models = (getattr(callback, "model", None) for callback in callbacks.callbacks)
    strategies = (getattr(model, "distribute_strategy", None) for model in models)
    strategy = next((each for each in strategies if isinstance(each, DataParallelStrategy)), None)
    if strategy is None:
        return original(callbacks, *args, **named)
    with strategy.setting(is_counted=False):
        return original(callbacks, *args, **named)


def _around(
    around: Callable[..., Any], original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    # A model has the strategy in which it was created; for other objects, the current one.
    strategy = getattr(self, "distribute_strategy", None) or tf.distribute.get_strategy()
    if not isinstance(strategy, DataParallelStrategy):
        return original(self, *args, **kwargs)
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    return around(strategy, lambda bound: original(*bound.args, **bound.kwargs), bound)


def _fit(strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments) -> Any:
    keras: Any = keras_3_package()
    for name in ("x", "validation_data"):
        bound.arguments[name] = without_length(bound.arguments.get(name))

    def begin(logs: Any) -> None:
        agree_to_fit(strategy.connected, start.model, start.params)
        _start_from_worker_0(start.model)

    def end(logs: Any) -> None:
        agree_on_values(strategy.connected, start.model)

    start = keras.callbacks.LambdaCallback(on_train_begin=begin, on_train_end=end)
    callback = one_more_callback(keras, bound.arguments, start)
    with strategy.setting(is_counted=True), callback, explained_failures():
        return original(bound)


def _evaluate(strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # A dataset that only this worker reads has just its data already.
    with strategy.setting(is_counted=True, is_whole=is_own(bound.arguments.get("x"))):
        return original(bound)


def _predict(strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments) -> Any:
    with strategy.setting(is_whole=True):  # each worker gets all predictions
        return original(bound)


def _make_function(
    strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments
) -> Any:
    # `DataParallelStrategy.run` enables XLA for the step, and leaves out the collectives.
    model = bound.args[0]
    for name in ("train_step", "test_step"):  # by whose owner it knows the model
        step = getattr(model, name)
        if getattr(step, "__self__", None) is not model:  # it is a `tf.function`, for example
            step = functools.partial(_traced_anew, step)
            setattr(model, name, types.MethodType(lambda _, data, step=step: step(data), model))
    asked = model.jit_compile
    model.jit_compile = False
    function = original(bound)
    model.jit_compile = asked
    return function


def _traced_anew(step: Any, data: Any) -> Any:
    """Calls a step that is a `tf.function`, whose earlier traces belong to another function."""
    function = getattr(step, "python_function", None)
    anew = function is not None and not tf.executing_eagerly()
    return tf.function(function)(data) if anew else step(data)


def _build(strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # Built from the shapes of the dataset. Keras would read a batch, which advances the random
    # state of the shuffle: later epochs would then have another order.
    bound.arguments["iterator"] = None
    bound.arguments["data_batch"] = strategy.element_spec
    return original(bound)


def _results(strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # This exchange must come before any collective: workers with more batches notice a worker that
    # waits in an exchange, but not one that waits in a collective.
    model, logs = bound.args[0], bound.arguments["logs"]
    bound.arguments["logs"], names = _mean_logs(strategy, logs, model.get_metrics_result())
    variables = [variable.value for variable in model.metrics_variables]
    own = [variable.read_value() for variable in variables]
    assign_all(variables, _collectives.all_reduce(own))
    logs = original(bound)
    if logs is bound.arguments["logs"]:  # a step of the user's own may return some of the metrics
        results = model.get_metrics_result()
        logs = {**logs, **{name: float(results[metric]) for name, metric in names.items()}}
    assign_all(variables, own)
    return logs


def _apply(strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments) -> Any:
    in_step = tf.distribute.get_replica_context() is not None
    # If set, the optimizer that wraps this one has averaged the gradients.
    if not in_step or strategy.gradients_are_averaged:
        return original(bound)
    gradients = list(bound.arguments["grads"])
    if strategy.rows is None:  # a custom loop divides its loss by the global batch size
        bound.arguments["grads"] = _collectives.all_reduce(gradients)
    else:  # the step of a model has a mean loss
        # The mean of the ones is 1, or 0 if no worker has rows.
        *bound.arguments["grads"], has_rows = _collectives.average_gradients(
            [*gradients, tf.constant(1.0)], rows=strategy.rows
        )
        strategy.has_averaged = True
    with strategy.setting(gradients_are_averaged=True):
        if not strategy.may_lack_rows:
            return original(bound)

        def step() -> tf.Tensor:
            original(bound)
            return has_rows

        tf.cond(has_rows > 0, step, lambda: has_rows)
        return getattr(bound.args[0], "iterations", None)


def _loss(strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments) -> Any:
    is_sum = strategy.rows is not None and bound.args[0].reduction == "sum"
    if not is_sum or strategy.is_whole or strategy.is_in_loss:
        return original(bound)
    with strategy.setting(is_in_loss=True):  # one that it calls is a part of it
        loss = original(bound)
    # The loss of a worker is a sum over its rows, but gradients are averaged, weighted by rows.
    # Scaled by all rows / own rows, the weighted mean of the losses is their sum over the workers.
    rows = tf.cast(strategy.rows, tf.float32)
    return loss * tf.cast(_collectives.all_reduce(rows) / tf.maximum(rows, 1.0), loss.dtype)


def _add_variable(
    strategy: DataParallelStrategy, original: Any, bound: inspect.BoundArguments
) -> Any:
    # Each worker counts its own rows; sums over workers are only computed for logs and checkpoints.
    bound.arguments["aggregation"] = "none"
    return original(bound)


def _start_from_worker_0(model: Any) -> None:
    """Copies the variables of worker 0; each may have initialized or loaded other values."""
    of_optimizer = getattr(model.optimizer, "variables", ())  # a train_step may have its own
    variables = [variable.value for variable in (*model.variables, *of_optimizer)]
    copy_from_worker_0([*filter(_collectives.is_number, variables)])
    for _, layer in walk(model):
        if hasattr(layer, "adapt_mean") and layer.built:
            layer.finalize_state()  # a Normalization layer computes with values derived from these
