"""What a task of a cluster is given: way of reading → the ids of the examples, in their order."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tests.data.reading import dataset_of

PATHS = ("memory", "disk", "stream")


def of_worker(pattern: str) -> dict[str, list[int]]:
    """Reads as a worker of MultiWorkerMirroredStrategy."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def by_hand(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = dataset_of(pattern, batch_size=20)
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)

    read = {
        path: strategy.experimental_distribute_dataset(dataset_of(pattern, path, batch_size=20))
        for path in PATHS
    }
    read["by hand"] = strategy.distribute_datasets_from_function(by_hand)
    return {
        way: [
            int(each)
            for batch in distributed
            for local in strategy.experimental_local_results(batch["id"])
            for each in local
        ]
        for way, distributed in read.items()
    }


def of_coordinator(pattern: str) -> dict[str, list[int]]:
    """Has the workers of ParameterServerStrategy read."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def make() -> tf.data.Dataset:
        return dataset_of(pattern, batch_size=20)

    ways: dict[str, Callable[[], tf.data.Dataset]] = {
        "built on each worker": make,
        "sent to each worker": lambda: strategy.experimental_distribute_dataset(make()),
    }
    with strategy.scope():
        return {way: list(_drained(coordinator, each)) for way, each in ways.items()}


def _drained(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    make: Callable[[], tf.data.Dataset],
) -> Iterator[int]:
    iterator = iter(coordinator.create_per_worker_dataset(make))
    empty = 0
    while empty < 3:  # rounds of many turns: one worker may take most of them
        turns = [coordinator.schedule(_following, args=(iterator,)) for _ in range(40)]
        coordinator.join()
        read = [int(each) for turn in turns for each in turn.fetch()]
        empty = 0 if read else empty + 1
        yield from read


@tf.function
def _following(iterator: Any) -> tf.Tensor:
    """Returns the ids of the next batch; none at the end."""
    batch = iterator.get_next_as_optional()
    if batch.has_value():
        return tf.cast(batch.get_value()["id"], tf.int64)
    return tf.zeros([0], tf.int64)
