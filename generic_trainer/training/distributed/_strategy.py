"""`DataParallelStrategy`: each worker trains on its share, and all have the same variables.

It replaces `tf.distribute.MultiWorkerMirroredStrategy`, which cannot train Keras 3. Its variables
and datasets are ordinary ones, without wrappers of `tf.distribute`.

The last two batches of an epoch, of 3 rows and of 1, on two workers::

                     worker 0               worker 1               afterwards on both
    batch of 3       row 0                  rows 1 and 2
    loss             mean of 1 row          mean of 2 rows
    gradients        g                      g'                     (1 g + 2 g') / 3
    moving mean      changes by d           changes by d'          changes by (1 d + 2 d') / 3
    batch of 1       no row: runs on        row 0
                     row 0, weight 0
    gradients        thrown away            g'                     g'
    metrics          put back               count 1 row

Worker 0 runs the second step because worker 1 waits for it in the sum of the gradients. The metrics
differ between workers until the end of the epoch, when `_keras` sums them.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import keras_3_package
from generic_trainer.errors import ConfigurationError
from generic_trainer.training._walk import walk
from generic_trainer.training.distributed._agreement import agree_on_variables
from generic_trainer.training.distributed._collectives import (
    all_reduce,
    average_gradients,
    broadcast,
    is_number,
)
from generic_trainer.training.distributed._runtime import Runtime
from generic_trainer.training.distributed._shares import (
    OwnShare,
    Share,
    at_least_a_row,
    number_of_rows,
    rows_of,
    share_of,
)

_MEAN = tf.distribute.ReduceOp.MEAN


class DataParallelStrategy(tf.distribute.Strategy):
    """A strategy with one replica on each worker.

    1. `run` first sets new variables to their values in worker 0. A value that is assigned in `run`
       to a variable with an aggregation is first aggregated over all workers.
    2. `experimental_distribute_dataset` returns a dataset of this worker's rows of each batch. All
       workers must pass it the same batches in the same order.
    3. `run` calls the function on this worker; `reduce` and `gather` combine the values of all
       workers.
    4. In a step of a Keras model, loss and gradients are means over this worker's rows, which
       `_keras` averages. A worker without rows runs the step on a row of another, without weight.

    Attributes:
        connected: the connection of the workers.
        gradients_are_averaged: whether gradients are averaged already, so that `all_reduce` in
            `run` must return them unchanged.
        element_spec: the `element_spec` of the last distributed dataset.
        variables: references to variables that do not have the values of worker 0 yet.
        rows: the number of rows over which the loss in `run` is a mean, which is the weight of this
            worker; None if the workers' losses are to be summed.
        has_averaged: whether the step that is being run or traced has averaged gradients, as a step
            of training does.
        is_whole: whether each worker computes on whole batches instead of its share of them.
        is_counted: whether datasets are to be distributed to a method of Keras, as `Share`s.
        may_lack_rows: whether the step that is being run or traced may have no rows in any worker.
        is_in_loss: whether a loss that is a sum is being computed.
        last_rows: int32 [], the number of this worker's rows in the last step of a model.
    """

    def __init__(self, connected: Runtime) -> None:
        """Creates the strategy of this worker."""
        self.connected = connected
        self.gradients_are_averaged = False
        self.rows: Any = None
        self.has_averaged = False
        self.variables: list[Callable[[], Any]] = []
        self.element_spec: Any = None
        self.is_whole = False
        self.is_counted = False
        self.may_lack_rows = False
        self.is_in_loss = False
        with tf.device("CPU:0"):
            self.last_rows = tf.Variable(0, dtype=tf.int32, trainable=False, name="last_rows")
        super().__init__(_Extended(self))

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The cluster of `TF_CONFIG`."""
        return self.connected.strategy.cluster_resolver

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Calls a function with this worker's part of its arguments; see `tf.distribute`."""
        # AutoGraph converts this method if a user's `tf.function` calls it. It shall convert the
        # user's function, which it would no longer do within `_run`, and nothing else.
        autograph = tf.__internal__.autograph
        context = autograph.control_status_ctx()
        converted = autograph.tf_convert(fn, context, convert_by_default=False)
        return self._run(fn, converted, args, kwargs, options)

    @tf.autograph.experimental.do_not_convert
    def _run(self, fn: Any, converted: Any, args: Any, kwargs: Any, options: Any) -> Any:
        self._start_alike()
        keras: Any = keras_3_package()
        model = getattr(fn, "__self__", None)
        share = args[0] if args and isinstance(args[0], (Share, OwnShare)) else None
        if not isinstance(model, keras.Model):
            args = args if share is None else (rows_of(share), *args[1:])
            return super().run(converted, args, kwargs, options)
        if share is not None:
            args = (share.batch, *args[1:])
        rows = number_of_rows(args)
        args = at_least_a_row(args, rows)
        rows = rows if share is None else share.rows
        self.last_rows.assign(rows)
        metrics = [variable.value for variable in model.metrics_variables]
        before = [variable.read_value() for variable in metrics]
        statistics = [(variable, variable.read_value()) for variable in _statistics(model)]
        # Keras's own `jit_compile` would include the sums over workers; see `uncompiled`.
        compiled = tf.xla.experimental.jit_scope if model.jit_compile else contextlib.nullcontext
        with self.setting(
            rows=rows,
            has_averaged=False,
            is_whole=self.is_whole and share is None,
            may_lack_rows=isinstance(share, OwnShare),
        ):
            with compiled():
                result = super().run(converted, args, kwargs, options)
            # Not in an evaluation, whose batches would wait for all workers without a need.
            if statistics and self.has_averaged:
                changes = [variable - value for variable, value in statistics]
                means = average_gradients(changes, rows=rows)
                for (variable, value), change in zip(statistics, means, strict=True):
                    variable.assign(value + change)
        # A row has been counted that is not this worker's own.
        for variable, value in zip(metrics, before, strict=True):
            variable.assign(tf.where(tf.equal(rows, 0), value, variable))
        return result

    def _start_alike(self) -> None:
        """Sets variables that were created since the last call to their values in worker 0."""
        with tf.init_scope():
            variables = [made() for made in self.variables] if tf.executing_eagerly() else []
            variables = [
                variable
                for variable in variables
                if variable is not None and variable.is_initialized()
            ]
            if not variables:
                return
            self.variables.clear()
            agree_on_variables(self.connected, variables)
            copy_from_worker_0(variables)

    @contextlib.contextmanager
    def setting(self, **values: Any) -> Iterator[None]:
        """Sets attributes of this strategy within the context."""
        before = {name: getattr(self, name) for name in values}
        self.__dict__.update(values)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def share(self, dataset: tf.data.Dataset, is_whole: bool = False) -> tf.data.Dataset:
        """Returns a dataset of this worker's rows of each batch, or of all rows if it is whole."""
        if not (is_whole or self.is_whole):
            connected = self.connected
            dataset = share_of(dataset, connected.rank, connected.size, self.is_counted)
        spec = dataset.element_spec
        self.element_spec = spec.batch if isinstance(spec, (Share, OwnShare)) else spec
        return dataset


class _Replica(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """The context in which `run` calls a function."""

    def __init__(self, strategy: DataParallelStrategy) -> None:
        super().__init__(strategy, replica_id_in_sync_group=strategy.connected.rank)

    @tf.autograph.experimental.do_not_convert
    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if self.strategy.gradients_are_averaged:
            return value
        if self.strategy.rows is None:
            return super().all_reduce(reduce_op, value, options)
        return _all_reduce_of_rows(reduce_op, value, tf.cast(self.strategy.rows, tf.float32))


def _statistics(model: Any) -> list[tf.Variable]:
    """Returns the variables that a step may change without gradients.

    They are those of BatchNormalization, for example, and each `tf.Variable` of the model's own,
    which its `train_step` may set. At the end of a step they get the mean of the workers' changes,
    so that all workers, and one that resumes, have the same values.
    """
    keras: Any = keras_3_package()
    parts = [part for _, part in walk(model, deferred={})]
    values = [part.value for part in parts if isinstance(part, keras.Variable)]
    # Also those that were frozen later, which do not change.
    weights = {id(value) for value in values if value.trainable}
    return [
        part
        for part in parts
        if isinstance(part, tf.Variable) and part.dtype.is_floating and id(part) not in weights
    ]


def _all_reduce_of_rows(reduce_op: Any, value: Any, rows: tf.Tensor) -> Any:
    """Returns the sum or mean over the workers that have rows, with a gradient for weighted losses.

    The whole loss is the mean of the workers' losses, weighted by rows. The sum enters the losses
    of all workers, for example in a synchronized BatchNormalization, so its gradient has
    contributions of all of them. `average_gradients` later multiplies the gradients of a worker by
    that worker's rows, including contributions that come from the losses of others. Therefore the
    gradient here weights each contribution by the rows of the worker that it comes from, and
    divides the sum by the rows of the worker that receives it.
    """
    is_mean = reduce_op in (_MEAN, "MEAN", "mean")

    def weighted(values: Sequence[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
        # Without rows the values may be NaN. They may be integers, which multiply_no_nan refuses.
        return [tf.where(weight > 0, value * tf.cast(weight, value.dtype), 0) for value in values]

    @tf.custom_gradient
    def reduced(*values: tf.Tensor) -> Any:
        has_rows = tf.cast(rows > 0, tf.float32)
        *sums, count = all_reduce([*weighted(values, has_rows), has_rows])
        if is_mean:
            sums = [total / tf.cast(count, total.dtype) for total in sums]
        else:
            count = 1.0

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            scale = has_rows / tf.maximum(rows, 1.0) / count
            return [
                contribution * tf.cast(scale, contribution.dtype)
                for contribution in all_reduce(weighted(upstream, rows))
            ]

        return sums, gradient

    flat = [tf.convert_to_tensor(part) for part in tf.nest.flatten(value)]
    return tf.nest.pack_sequence_as(value, reduced(*flat))


_OneDevice: Any = internals.TF_ONE_DEVICE.get()


class _Extended(_OneDevice):  # type: ignore[misc]
    """The methods of a strategy that `tf.distribute` calls.

    Within a worker it is like TensorFlow's `OneDeviceStrategy`: variables are ordinary ones, and
    updates run in place. The methods here add the other workers.
    """

    def __init__(self, strategy: DataParallelStrategy) -> None:
        super().__init__(strategy, strategy.connected.device)
        self._strategy = strategy
        self._connected = strategy.connected

    @property
    def _num_replicas_in_sync(self) -> int:
        """The number of workers, or 1 in a step whose loss is the mean over this worker's rows.

        Keras divides some losses by this number: those that it averages itself, but not the means
        that a custom `train_step` or loss function computes. With 1 it divides none of them, so the
        gradients of each worker are always those of a mean over its rows.
        """
        return self._connected.size if self._strategy.rows is None else 1

    @property
    def experimental_should_init(self) -> bool:
        return self._connected.rank == 0

    should_checkpoint = should_save_summary = experimental_should_init

    def _validate_colocate_with_variable(self, variable: Any) -> None:
        pass

    # ---- variables -------------------------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Any], **options: Any) -> Any:
        options.pop("colocate_with", None)
        aggregation = options.get("aggregation") or tf.VariableAggregation.NONE
        is_read_together = options.get("synchronization") == tf.VariableSynchronization.ON_READ
        if is_read_together and aggregation != tf.VariableAggregation.NONE:
            raise ConfigurationError(
                "A variable that is synchronized when it is read cannot be created in the strategy "
                "of training.get_strategy() under Keras 3; models and metrics of tf_keras create "
                "such variables. Use tf.distribute.MultiWorkerMirroredStrategy() instead."
            )
        variable = super()._create_variable(next_creator, **options)
        if is_number(variable) and variable.shape.is_fully_defined():
            # Weakly: models that are built and dropped would stay in memory until a step runs.
            self._strategy.variables.append(weakref.ref(variable))
        if aggregation != tf.VariableAggregation.NONE:
            for name in ("assign", "assign_add", "assign_sub"):
                setattr(variable, name, _aggregated(getattr(variable, name), aggregation))
        return variable

    # ---- data and steps --------------------------------------------------------------------------

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return self._strategy.share(dataset)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        size = self._connected.size
        context = tf.distribute.InputContext(size, self._connected.rank, size)
        return self._strategy.share(dataset_fn(context), is_whole=True)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        size = self._connected.size
        return value_fn(tf.distribute.experimental.ValueContext(self._connected.rank, size))

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        with tf.device(self._connected.device), _Replica(self._strategy):
            return fn(*args, **kwargs)

    # ---- values of all workers -------------------------------------------------------------------

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        return self._batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def _batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any) -> list[Any]:
        totals = all_reduce([value for value, _ in pairs])  # one collective instead of many
        return [self._mean(total) if reduce_op == _MEAN else total for total in totals]

    def _mean(self, total: Any) -> Any:
        if isinstance(total, tf.IndexedSlices):
            return tf.IndexedSlices(self._mean(total.values), total.indices, total.dense_shape)
        return total / tf.cast(self._connected.size, total.dtype)

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: Any, options: Any
    ) -> Any:
        rows = tf.experimental.numpy.moveaxis(value, axis, 0)
        rows = all_reduce(tf.IndexedSlices(rows, tf.range(tf.shape(rows)[0]))).values
        return tf.experimental.numpy.moveaxis(rows, 0, axis)


def copy_from_worker_0(variables: Sequence[Any]) -> None:
    """Sets variables to their values in worker 0."""
    assign_all(variables, broadcast([variable.read_value() for variable in variables]))


def assign_all(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Sets each variable to its value."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _aggregated(assign: Callable[..., Any], aggregation: Any) -> Callable[..., Any]:
    """Wraps an assigning method of a variable so that it assigns the aggregate of all replicas."""
    is_first = aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    combined = broadcast if is_first else all_reduce

    @tf.autograph.experimental.do_not_convert
    def assign_together(value: Any, *args: Any, **kwargs: Any) -> Any:
        context = tf.distribute.get_replica_context()
        if isinstance(context, _Replica):
            kind = assign.__self__.dtype  # type: ignore[attr-defined]
            value = combined(tf.convert_to_tensor(value, kind))
            if aggregation == tf.VariableAggregation.MEAN:
                value = value / tf.cast(context.strategy.connected.size, kind)
        return assign(value, *args, **kwargs)

    return assign_together
