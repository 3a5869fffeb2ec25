"""A trial's graph, once for each device that it trains on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from generic_trainer.errors import ModuleFileError

if TYPE_CHECKING:
    from generic_trainer.trials.tensorflow._trial import TensorFlowTrial

__all__ = ["LOSS", "Replicas", "build_replicas"]

LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class Replicas:
    """What was built, one item per device.

    Attributes:
        records: what `build_graph` was called with.
        outputs: what it returned.
        train_op: one step of all together.
    """

    records: tuple[Any, ...]
    outputs: tuple[dict[str, tf.Tensor], ...]
    train_op: tf.Operation


def build_replicas(
    trial: TensorFlowTrial, record: Any, is_training: tf.Tensor, strategy: tf.distribute.Strategy
) -> Replicas:
    """Builds the graph of a trial on each device of a strategy.

    In training each device gets its share of the batch, and the gradients are those of the mean of
    the devices' losses: for a loss that is a mean over rows, what one device would compute. In
    validation the first device gets the whole batch.

    Args:
        trial: the user's.
        record: a batch, nested tensors [N, ...].
        is_training: bool scalar.
        strategy: the default one, or `MirroredStrategy`.

    Raises:
        ModuleFileError: `build_graph` does not return what it must.
    """
    counter = tf.compat.v1.train.get_or_create_global_step()

    def build(record: Any, is_training: tf.Tensor) -> tuple[Any, Any, Any]:
        count = strategy.num_replicas_in_sync
        if count > 1:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            record = _share(record, is_training, index, count)
        outputs = _checked(trial.build_graph(record, is_training))
        loss = outputs[LOSS] / count if count > 1 else outputs[LOSS]
        # Metrics are those of the weights that the step begins with.
        metrics = [outputs[name] for name in trial.training_metrics() if name in outputs]
        with tf.control_dependencies(metrics):
            step = _minimise(trial.optimizer(), loss, counter)
        return record, outputs, step

    records, outputs, steps = strategy.extended.call_for_each_replica(
        tf.autograph.experimental.do_not_convert(build), args=(record, is_training)
    )
    return Replicas(
        records=_per_replica(strategy, records),
        outputs=_per_replica(strategy, outputs),
        train_op=tf.group(*strategy.experimental_local_results(steps)),
    )


def _minimise(optimizer: Any, loss: tf.Tensor, counter: tf.Variable) -> tf.Operation:
    # Batch normalisation keeps its moving averages in this collection.
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(updates):
        return optimizer.minimize(loss, global_step=counter)


def _share(record: Any, is_training: tf.Tensor, index: Any, count: int) -> Any:
    """Returns one device's rows of a batch; at least one, as the mean over none is no number."""
    rows = tf.shape(tf.nest.flatten(record)[0])[0]
    start = tf.where(is_training, index * rows // count, 0)
    end = tf.where(is_training, tf.maximum((index + 1) * rows // count, start + 1), rows)
    return tf.nest.map_structure(lambda tensor: tensor[start:end], record)


def _per_replica(strategy: tf.distribute.Strategy, structure: Any) -> tuple[Any, ...]:
    """Turns a structure of values per replica into a structure for each replica."""
    flat = [strategy.experimental_local_results(part) for part in tf.nest.flatten(structure)]
    return tuple(tf.nest.pack_sequence_as(structure, parts) for parts in zip(*flat, strict=True))


def _checked(made: Any) -> dict[str, tf.Tensor]:
    if not isinstance(made, dict) or LOSS not in made:
        raise ModuleFileError(
            f"build_graph must return a dict of tensors with the key {LOSS!r}, but got "
            f"{sorted(made) if isinstance(made, dict) else made!r}"
        )
    return made
