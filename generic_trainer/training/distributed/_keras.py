"""Models of Keras 3 in a `DataParallelStrategy`: what `fit` and `evaluate` do besides.

Keras asks the strategy that a model was made in for its share of the data and to run a step. What
it does not ask for is done here, in methods of its classes that look at the model's strategy first:
gradients are averaged before they are clipped, metrics are summed up over all workers, and all of
them start from the same variables.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import keras_3_package, one_more_callback
from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._agreement import agree_to_fit, layers_of
from generic_trainer.training.distributed._collectives import (
    all_reduce,
    broadcast,
    weighted_means,
)
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
    was_made_trainable,
)


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
    # A shuffle without a seed of its own is the same in all workers: else their shares of it would
    # have some rows twice, and others never.
    (seed, *_) = connected.exchange("at its start", int.from_bytes(os.urandom(4), "big"))
    if getattr(internals.TF_EAGER_CONTEXT.get()(), internals.TF_OP_SEEDS.name, None) is None:
        tf.random.set_seed(seed)
    return _Strategy(connected, keras)


class _Strategy(DataParallelStrategy):
    """A strategy that knows the steps of Keras's models.

    Attributes:
        step: the step of a model that is being run, or traced.
    """

    def __init__(self, connected: Runtime, keras: ModuleType) -> None:
        super().__init__(connected)
        self.step: _Step | None = None
        self._keras = keras

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Calls a function with this worker's part of its arguments; see `tf.distribute`."""
        model = getattr(fn, "__self__", None)
        if not isinstance(model, self._keras.Model):
            return super().run(fn, args, kwargs, options)
        rows = number_of_rows(args)
        args = at_least_a_row(args, rows)
        before = self.step, self.rows
        self.step, self.rows = _Step(model, rows), rows
        try:
            with _metrics_of_rows(model, rows), _compiled(model):
                return super().run(fn, args, kwargs, options)
        finally:
            self.step, self.rows = before


class _Step:
    """A step of a model on this worker's rows of a batch.

    Attributes:
        rows: their number.
    """

    def __init__(self, model: Any, rows: Any) -> None:
        self.rows = rows
        statistics = [each.value for each in model.non_trainable_weights]
        self._statistics = [
            (variable, variable.read_value())
            for variable in statistics
            if variable.dtype.is_floating and not was_made_trainable(variable)
        ]

    def means(self, gradients: list[Any], size: int) -> list[Any]:
        """Returns the gradients of the mean loss over the rows of all workers.

        By the way, statistics such as those of BatchNormalization are set to what they would be if
        each worker's changes to them counted as much as it has rows.

        Args:
            gradients: of this worker's loss, which Keras has divided by the number of workers.
            size: that number.
        """
        changes = [variable - before for variable, before in self._statistics]
        factors = [float(size)] * len(gradients) + [1.0] * len(changes)
        means = weighted_means([*gradients, *changes], self.rows, factors)
        for (variable, before), change in zip(
            self._statistics, means[len(gradients) :], strict=True
        ):
            variable.assign(before + change)
        return means[: len(gradients)]


def _compiled(model: Any) -> contextlib.AbstractContextManager[None]:
    """Has XLA compile what it can of a step that is traced, but for sums over workers."""
    if not model.jit_compile:
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[None] = tf.xla.experimental.jit_scope()
    return scope


@contextlib.contextmanager
def _metrics_of_rows(model: Any, rows: Any) -> Iterator[None]:
    """Has a step on no rows leave the metrics as they were."""
    if isinstance(rows, int) and rows:
        yield
        return
    variables = [variable.value for variable in model.metrics_variables]
    before = [variable.read_value() for variable in variables]
    yield

    def restore() -> tf.Tensor:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return tf.constant(True)

    tf.cond(tf.equal(rows, 0), restore, lambda: tf.constant(False))


# ---- metrics -------------------------------------------------------------------------------------


def collect_metrics(model: Any) -> None:
    """Gives worker 0 what the metrics of all workers have counted, and the others none of it.

    For a checkpoint: it holds the state of worker 0.
    """
    if isinstance(model.distribute_strategy, _Strategy):
        variables = _metrics_variables(model)
        totals = all_reduce([variable.read_value() for variable in variables])
        _keep_in_worker_0(model, totals)


def keep_metrics_in_worker_0(model: Any) -> None:
    """Has the other workers forget what a checkpoint's metrics have counted."""
    if isinstance(model.distribute_strategy, _Strategy):
        _keep_in_worker_0(model, [each.read_value() for each in _metrics_variables(model)])


def _keep_in_worker_0(model: Any, values: list[Any]) -> None:
    is_kept = model.distribute_strategy.connected.rank == 0
    for variable, value in zip(_metrics_variables(model), values, strict=True):
        variable.assign(value if is_kept else tf.zeros_like(value))


def _metrics_variables(model: Any) -> list[tf.Variable]:
    variables = [variable.value for variable in model.metrics_variables]
    return [each for each in variables if each.dtype != tf.string]


def _mean_logs(connected: Runtime, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mean over all workers of each number in logs, which all give at the same place.

    So all callbacks decide alike.
    """
    numbers = {name: float(value) for name, value in logs.items() if _is_scalar(value)}
    of_all = connected.exchange("at the end of an epoch", numbers)
    means = {
        name: sum(each.get(name, number) for each in of_all) / len(of_all)
        for name, number in numbers.items()
    }
    return {**logs, **means}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "shape", None) == ()


# ---- methods of Keras's classes ------------------------------------------------------------------


def _extend(keras: ModuleType) -> None:
    """Has methods of Keras's classes look at the strategy first."""
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
    ):
        setattr(owner, name, _around(getattr(owner, name), around))


def averaging(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Has the `apply` of a class that derives from an optimizer be given means over all workers."""
    return _around(apply, _apply)


def _around(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    @tf.autograph.experimental.do_not_convert
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A model has the strategy that it was made in; other things that of their caller.
        strategy = getattr(self, "distribute_strategy", None) or tf.distribute.get_strategy()
        if not isinstance(strategy, _Strategy):
            return original(self, *args, **kwargs)
        bound = inspect.signature(original).bind(self, *args, **kwargs)
        return around(strategy, functools.partial(_call, original), bound)

    return method


def _call(original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    return original(*bound.args, **bound.kwargs)


def _fit(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    keras = keras_3_package()
    for name in ("x", "validation_data"):
        bound.arguments[name] = without_length(bound.arguments.get(name))
    start = _start_callback(keras, strategy.connected)
    with one_more_callback(keras, bound.arguments, start), explained_failures():
        return original(bound)


def _evaluate(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    data = bound.arguments.get("x")
    if not (isinstance(data, tf.data.Dataset) and is_own(data)):
        return original(bound)
    with strategy.whole_batches():  # all of what this worker has
        return original(bound)


def _predict(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    with strategy.whole_batches():  # each worker gets all predictions
        return original(bound)


def _make_function(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    model = bound.args[0]  # whose steps `run` has compiled
    asked, model.jit_compile = model.jit_compile, False
    try:
        return original(bound)
    finally:
        model.jit_compile = asked


def _build(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # From the shapes of the dataset. Keras takes a batch, and then later epochs are shuffled anew.
    bound.arguments["iterator"] = None
    bound.arguments["data_batch"] = strategy.element_spec
    return original(bound)


def _results(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    # First of all: a worker that has no data any more waits here, where the others look.
    bound.arguments["logs"] = _mean_logs(strategy.connected, bound.arguments["logs"])
    variables = _metrics_variables(bound.args[0])
    own = [variable.read_value() for variable in variables]
    for variable, total in zip(variables, all_reduce(own), strict=True):
        variable.assign(total)
    try:
        return original(bound)
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def _apply(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    in_step = tf.distribute.get_replica_context() is not None
    if not in_step or strategy.gradients_are_averaged:  # by the optimizer around this one
        return original(bound)
    gradients = list(bound.arguments["grads"])
    # A loop of one's own scales its loss by the global batch size; see tf.distribute.
    bound.arguments["grads"] = (
        all_reduce(gradients)
        if strategy.step is None
        else strategy.step.means(gradients, strategy.connected.size)
    )
    with strategy.averaged_gradients():
        return original(bound)


def _add_variable(strategy: _Strategy, original: Any, bound: inspect.BoundArguments) -> Any:
    bound.arguments["aggregation"] = "none"  # each worker counts its own
    return original(bound)


# ---- the start of a fit --------------------------------------------------------------------------


def _start_callback(keras: Any, connected: Runtime) -> Any:
    class Start(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        """Has all workers train the same model, from the same variables."""

        def on_train_begin(self, logs: Any = None) -> None:
            agree_to_fit(connected, self.model, self.params)
            _start_from_worker_0(self.model)  # which may have loaded others

        def on_train_end(self, logs: Any = None) -> None:
            connected.exchange("at the end of fit", None)

    return Start()


def _start_from_worker_0(model: Any) -> None:
    optimizer = getattr(model, "optimizer", None)
    made = [each.value for each in (*model.variables, *getattr(optimizer, "variables", ()))]
    variables = [each for each in made if each.dtype != tf.string]
    values = broadcast([variable.read_value() for variable in variables])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    for layer in layers_of(model):
        if hasattr(layer, "adapt_mean") and layer.built:
            layer.finalize_state()  # it computes with what it has made of them
