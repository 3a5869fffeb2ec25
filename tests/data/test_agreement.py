"""Workers of a cluster read in the same order, however their machines differ.

`tf.data` deals out the rows of an epoch by position: two workers whose orders differ train on some
rows twice and on others never.
"""

import pytest
import tensorflow as tf

from generic_trainer.data import TensorFlowDatasetOptions, _plan, make_dataset_factory
from generic_trainer.data._layout import make_layout
from generic_trainer.data._loading import Columns
from generic_trainer.data._order import Order, Shuffle, choose_order, interleaved
from generic_trainer.data._parser import Parser
from generic_trainer.data._store import Store
from generic_trainer.errors import ConfigurationError
from tests.data.reading import dataset_of, ids, options, schema_of
from tests.processes import tf_config

PLENTY, NONE = 10**9, 0


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process one of two workers."""
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=2))


def read(pattern: str, memory_bytes: int, asked: TensorFlowDatasetOptions) -> list[int]:
    """Returns the ids that a worker with so much memory would read without sharding."""
    factory = make_dataset_factory(memory_budget_bytes=memory_bytes)
    return ids(factory(pattern, asked, schema_of()).take(20))


@pytest.mark.parametrize("num_epochs", [1, None])
def test_workers_with_different_memory(num_epochs: int | None, taxis: str) -> None:
    asked = options(num_epochs=num_epochs)
    assert read(taxis, PLENTY, asked) == read(taxis, NONE, asked)


def test_a_worker_without_room_fails_where_another_one_has_room(
    taxis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generic_trainer.data._budget.free_disk_bytes", lambda _: 0)
    asked = options()
    expected = read(taxis, PLENTY, asked)
    with pytest.raises(ConfigurationError, match="set GENERIC_TRAINER_READER_PATH=stream"):
        read(taxis, NONE, asked)
    monkeypatch.setenv("GENERIC_TRAINER_READER_PATH", "stream")
    streamed = read(taxis, NONE, asked)
    assert streamed == read(taxis, PLENTY, asked) != expected


def test_large_data_are_streamed_by_all(taxis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plan, "_MOST_CLUSTER_BYTES", 100)
    asked = options()
    expected = read(taxis, NONE, asked)
    assert read(taxis, PLENTY, asked) == expected
    monkeypatch.setenv("GENERIC_TRAINER_READER_PATH", "stream")
    assert read(taxis, PLENTY, asked) == expected


@pytest.mark.parametrize("path", ["memory", "stream"])
def test_files_are_interleaved_as_many_at_a_time_on_any_machine(path: str, many_files: str) -> None:
    """`tf.data`, left to itself, interleaves as many files as the machine has processors."""
    dataset = dataset_of(many_files, path, shuffle=False)
    lengths = [number * 5 % 7 for number in range(50)]
    assert ids(dataset) == interleaved(lengths, 16).tolist()


def columns(in_memory: bool, stored_bytes: int, num_rows: int = 100_000) -> Columns:
    """Columns of 100 MB by the estimate, without any content."""

    class Empty(Store):
        num_bytes = stored_bytes

    parser = Parser({"x": tf.io.FixedLenFeature([], tf.float32)}, {"x": "x"}, None)
    layout = make_layout(parser, b"\xff", frozenset())
    store = Empty(layout.arrays)
    store.in_memory = in_memory
    return Columns(layout, store, 1, runs=[(0, num_rows)], expected_bytes=100_000_000)


@pytest.mark.parametrize(
    ("window_bytes", "buffer", "expected"),
    [
        (1 << 29, 10, Shuffle(100_000, 100_000, 100_000)),
        (1 << 10, 10, Shuffle(100_000, 1048, 1 << 16)),
        (1 << 10, 70_000, Shuffle(100_000, 1048, 1 << 17)),
        (1 << 10, 100_000, Shuffle(100_000, 100_000, 100_000)),
    ],
)
def test_an_order_follows_from_data_and_options(
    window_bytes: int, buffer: int, expected: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generic_trainer.data._order._WINDOW_BYTES", window_bytes)
    asked = options(shuffle_buffer_size=buffer)
    for in_memory in (True, False):
        for stored_bytes in (1 << 10, 1 << 30):
            chosen = choose_order(columns(in_memory, stored_bytes), asked, in_cluster=True)
            assert chosen == expected
