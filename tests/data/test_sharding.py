"""Each worker sees its share once: the ways in which distributed training cuts a dataset."""

import itertools

import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.distribute.coordinator import values

from tests.data.reading import dataset_of, ids
from tests.processes import tf_config

PATHS = ("memory", "disk", "stream")
POLICY = tf.data.experimental.AutoShardPolicy


@pytest.mark.parametrize(("path", "policy"), [("memory", POLICY.AUTO), ("disk", POLICY.DATA)])
def test_automatic_sharding(
    path: str, policy: POLICY, taxis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=3))
    read, chosen = [], tf.data.Options()
    chosen.experimental_distribute.auto_shard_policy = policy
    for worker in range(3):  # each with a reader of its own, as in its own process
        dataset = dataset_of(taxis, path, batch_size=10)
        # What `experimental_distribute_dataset` does in each worker of MultiWorkerMirrored.
        shard = distribute._AutoShardDataset(dataset.with_options(chosen), 3, worker, 3)
        read.append(ids(shard))
    assert [len(each) for each in read] == [100, 100, 100]
    assert sorted(itertools.chain(*read)) == list(range(300))


@pytest.mark.parametrize("path", PATHS)
def test_sharding_by_hand(path: str, taxis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=2))
    read = [ids(dataset_of(taxis, path, batch_size=10).shard(2, worker)) for worker in range(2)]
    assert sorted(itertools.chain(*read)) == list(range(300))


def test_a_mirrored_strategy(taxis: str) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    dataset = dataset_of(taxis, batch_size=10)
    assert sorted(ids(strategy.experimental_distribute_dataset(dataset))) == list(range(300))


def test_parameter_servers_get_a_dataset_that_can_be_sent(
    taxis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=2, ps=1, chief=1))
    dataset = dataset_of(taxis, batch_size=10)
    # The coordinator writes the dataset into a graph and every worker reads it from there.
    sent = values.serialize_dataset_to_graph(dataset)
    assert len(sent.numpy()) < 200_000
    received = values.deserialize_dataset_from_graph(sent, dataset.element_spec)
    assert sorted(ids(received)) == list(range(300))


def test_workers_beside_parameter_servers_shuffle_differently(
    taxis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=2, ps=1, chief=1))
    # Each of them goes through everything: the same batches at the same time would teach less.
    first, second = (ids(dataset_of(taxis, batch_size=10)) for _ in range(2))
    assert first != second


def test_a_dataset_built_inside_a_function_streams(taxis: str) -> None:
    @tf.function(autograph=False)
    def total() -> tf.Tensor:
        dataset = dataset_of(taxis, batch_size=10)
        return dataset.reduce(
            tf.constant(0, tf.int64), lambda seen, batch: seen + tf.reduce_sum(batch["id"])
        )

    assert total() == sum(range(300))
