"""One process of a cluster: `python -m tests.data.cluster_process PATTERN`, `TF_CONFIG` set.

A worker of MultiWorkerMirroredStrategy, or the coordinator of ParameterServerStrategy, prints the
ids that it was given, as JSON: way of reading → list. Other processes serve until they are ended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer.data import TensorFlowDatasetOptions, make_dataset_factory
from tests.data.reading import schema_of

PATHS = ("memory", "disk", "stream")


def main() -> None:
    pattern = sys.argv[1]
    config = json.loads(os.environ["TF_CONFIG"])
    if "ps" not in config["cluster"]:
        print(json.dumps(_as_worker(pattern)))
    elif config["task"]["type"] == "chief":
        print(json.dumps(_as_coordinator(pattern)))
    else:
        _serve()


def _dataset(pattern: str, path: str = "auto") -> tf.data.Dataset:
    options = TensorFlowDatasetOptions(batch_size=20, num_epochs=1)
    return make_dataset_factory(path=path)(pattern, options, schema_of())  # type: ignore[arg-type]


def _as_worker(pattern: str) -> dict[str, list[int]]:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return _dataset(pattern).shard(context.num_input_pipelines, context.input_pipeline_id)

    read = {
        path: strategy.experimental_distribute_dataset(_dataset(pattern, path)) for path in PATHS
    }
    read["by hand"] = strategy.distribute_datasets_from_function(of_worker)
    return {
        way: [
            int(each)
            for batch in distributed
            for local in strategy.experimental_local_results(batch["id"])
            for each in local
        ]
        for way, distributed in read.items()
    }


def _as_coordinator(pattern: str) -> dict[str, list[int]]:
    strategy = tf.distribute.ParameterServerStrategy(_resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    ways: dict[str, Callable[[], tf.data.Dataset]] = {
        "built on each worker": lambda: _dataset(pattern),
        "sent to each worker": lambda: strategy.experimental_distribute_dataset(_dataset(pattern)),
    }
    with strategy.scope():
        return {way: list(_drained(coordinator, make)) for way, make in ways.items()}


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


def _resolver() -> tf.distribute.cluster_resolver.TFConfigClusterResolver:
    return tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")


def _serve() -> None:
    resolver = _resolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    server.join()


if __name__ == "__main__":
    main()
