"""The graph of a `TensorFlowTrial`, once for each device, and runs of it as cheap as they get."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from generic_trainer._core import internals
from generic_trainer.errors import ModuleFileError
from generic_trainer.training import distributed
from generic_trainer.trials._aggregation import aggregated
from generic_trainer.trials._trial import HorovodContext, TrialRun

LOSS = "loss"
SHARE = ""  # no name of the user's

Step = Callable[..., list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Replicas:
    """What was built, one item per device.

    Attributes:
        records: what `build_graph` was called with.
        outputs: what it returned, and as `SHARE` how much of the batch it was, from 0 to 1.
        train_op: one step of all together.
    """

    records: tuple[Any, ...]
    outputs: tuple[dict[str, tf.Tensor], ...]
    train_op: tf.Operation


def build_replicas(
    trial: Any, record: Any, is_training: tf.Tensor, run: TrialRun, strategy: tf.distribute.Strategy
) -> Replicas:
    """Builds the graph of a trial on each device of a strategy, or on that of this worker.

    In training each slot gets its share of the batch. The gradients are, for a loss that is a mean
    over rows, what one slot would compute on all of it. In validation the first device gets the
    whole batch.

    Args:
        trial: a `TensorFlowTrial`.
        record: a batch, nested tensors [N, ...].
        is_training: bool scalar.
        run: the trial.
        strategy: the default one, or `MirroredStrategy`.

    Raises:
        ModuleFileError: `build_graph` does not return what it must.
    """
    counter = tf.compat.v1.train.get_or_create_global_step()
    count = strategy.num_replicas_in_sync
    averaging = distributed.averaging_optimizers if run.workers > 1 else _as_it_is

    def build(record: Any, is_training: tf.Tensor) -> tuple[Any, Any, Any]:
        rows, whole = tf.constant(1), tf.constant(1)
        if run.slots > 1:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            index = distributed.rank() if run.workers > 1 else index
            record, rows, whole = _share(record, is_training, index, run.slots)
        outputs = _checked(trial.build_graph(record, is_training))
        loss = outputs[LOSS] / count if count > 1 else outputs[LOSS]
        # Metrics are those of the weights that the step begins with.
        names = [name for name in trial.training_metrics() if name in outputs]
        metrics = [updated(outputs[name]) for name in names]
        with tf.control_dependencies(metrics), averaging(rows) as completed:
            optimizer = aggregated(trial.optimizer(), HorovodContext.of(run))
            # Batch normalisation keeps its moving averages in this collection.
            updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
            with tf.control_dependencies(updates):
                step = completed(optimizer.minimize(loss, global_step=counter))
        return record, {**outputs, SHARE: rows / whole}, step

    records, outputs, steps = strategy.extended.call_for_each_replica(
        tf.autograph.experimental.do_not_convert(build), args=(record, is_training)
    )
    train_op = tf.group(*strategy.experimental_local_results(steps))
    return Replicas(_per_replica(strategy, records), _per_replica(strategy, outputs), train_op)


def make_step(
    session: tf.compat.v1.Session,
    feeds: Sequence[tf.Tensor],
    fetched: Sequence[Mapping[str, Any]],
    *operations: tf.Operation,
) -> Step:
    """Returns a function that takes the feeds, runs the operations and returns what is fetched.

    It costs half of what `Session.run` costs, which looks at its arguments anew each time. Make it
    once: TensorFlow prepares the graph for each. Values come in the shape of `fetched`, which are
    tensors or variables by name.
    """
    with session.graph.as_default():
        tensors = [tf.convert_to_tensor(part) for parts in fetched for part in parts.values()]
    run = internals.TF_SESSION_MAKE_CALLABLE.of(session)(
        config_pb2.CallableOptions(
            feed=[tensor.name for tensor in feeds],
            fetch=[tensor.name for tensor in tensors],
            target=[operation.name for operation in operations],
        )
    )

    def step(*values: Any) -> list[dict[str, Any]]:
        # NumPy would cut the zeros off the end of a text.
        kinds = (object if isinstance(value, bytes) else None for value in values)
        results = iter(run(*map(np.asarray, values, kinds)))
        return [{name: next(results) for name in parts} for parts in fetched]

    return step


def _share(record: Any, is_training: tf.Tensor, index: Any, count: int) -> tuple[Any, Any, Any]:
    """Returns one slot's rows of a batch, their number, and that of the batch.

    There is one row at least, which may count nothing: the mean over none is no number.
    """
    first = tf.nest.flatten(record)[0]
    is_sparse = isinstance(first, tf.SparseTensor)
    rows = tf.cast(first.dense_shape[0], tf.int32) if is_sparse else tf.shape(first)[0]
    start = tf.where(is_training, index * rows // count, 0)
    end = tf.where(is_training, (index + 1) * rows // count, rows)
    first_row, last_row = tf.minimum(start, rows - 1), tf.maximum(end, start + 1)

    def share(tensor: Any) -> Any:
        if not isinstance(tensor, tf.SparseTensor):
            return tensor[first_row:last_row]
        places = tf.cast([first_row, last_row], tf.int64)
        rest = tensor.dense_shape[1:]
        begin = tf.concat([places[:1], tf.zeros_like(rest)], 0)
        return tf.sparse.slice(tensor, begin, tf.concat([places[1:] - places[:1], rest], 0))

    return tf.nest.map_structure(share, record), end - start, rows


@contextlib.contextmanager
def _as_it_is(rows: Any) -> Iterator[Callable[[Any], Any]]:
    yield lambda step: step


def _per_replica(strategy: tf.distribute.Strategy, structure: Any) -> tuple[Any, ...]:
    """Turns a structure of values per replica into a structure for each replica."""
    flat = [strategy.experimental_local_results(part) for part in tf.nest.flatten(structure)]
    return tuple(tf.nest.pack_sequence_as(structure, parts) for parts in zip(*flat, strict=True))


def updated(metric: Any) -> Any:
    """Returns the tensor that a batch yields: that of a pair (value, update) is the update."""
    return metric[1] if isinstance(metric, tuple) else metric


def _checked(outputs: Any) -> dict[str, tf.Tensor]:
    if not isinstance(outputs, dict) or LOSS not in outputs:
        raise ModuleFileError(
            f"build_graph must return a dict of tensors with the key {LOSS!r}, but got "
            f"{sorted(outputs) if isinstance(outputs, dict) else outputs!r}"
        )
    return {name: tuple(one) if isinstance(one, list) else one for name, one in outputs.items()}
