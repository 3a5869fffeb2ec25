"""The drop-in itself: paths, options, sharing, and what stands on top of a dataset."""

import contextlib
import gc
import itertools
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from generic_trainer import data
from generic_trainer.data import make_dataset_factory
from generic_trainer.errors import ConfigurationError, DataError
from tests.data.reading import (
    ID,
    dataset_of,
    ids,
    numbered,
    options,
    schema_of,
    tfx_dataset,
    write,
    write_files,
)
from tests.examples import example
from tests.processes import tf_config

PATHS = ("memory", "disk", "stream")


@pytest.mark.parametrize("path", PATHS)
def test_each_epoch_has_every_example_once_in_another_order(path: str, taxis: str) -> None:
    dataset = dataset_of(taxis, path, num_epochs=2)
    read, again = ids(dataset), ids(dataset)
    assert read != again and sorted(read) == sorted(again)
    first, second = read[:300], read[300:]
    assert sorted(first) == sorted(second) == list(range(300))
    assert first != second
    assert first != list(range(300))


def stored() -> list[str]:
    """Returns the open files and the memory of this process that hold columns."""
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in set(os.listdir("/proc/self/fd"))
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    maps = Path("/proc/self/maps").read_text().splitlines()
    names = ("generic_trainer_column", " (deleted)")  # in memory, on the disk
    return [place for place in links + maps if any(name in place for name in names)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("path", "shuffle", "in_graph"),
    [("memory", True, False), ("disk", True, False), ("disk", False, True)],
)
def test_columns_are_freed_with_their_dataset(
    path: str, shuffle: bool, in_graph: bool, taxis: str
) -> None:
    gc.collect()
    before = len(stored())

    def read() -> None:
        dataset = dataset_of(taxis, path, shuffle=shuffle)
        dataset = dataset.map(lambda features: features["id"])
        if not in_graph:
            assert len(list(dataset)) == 10
        else:
            batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
            del dataset
            gc.collect()
            with tf.compat.v1.Session() as session:
                assert session.run(batch).shape == (32,)
        assert len(stored()) > before

    with tf.Graph().as_default() if in_graph else contextlib.nullcontext():
        read()
    gc.collect()
    assert len(stored()) == before


@pytest.mark.parametrize(
    ("path", "where"), [("memory", "options"), ("disk", "factory"), ("stream", "factory")]
)
def test_a_seed_repeats_the_order_in_another_run(path: str, where: str, taxis: str) -> None:
    def run(seed: int) -> list[int]:
        in_options, in_factory = (seed, None) if where == "options" else (None, seed)
        factory = make_dataset_factory(path=path, seed=in_factory)
        seeded = options(shuffle_seed=in_options, num_epochs=2)
        tf.random.set_seed(1)
        drawn = float(tf.random.uniform([]))
        tf.random.set_seed(1)
        dataset = factory(taxis, seeded, schema_of(ID))
        assert float(tf.random.uniform([])) == drawn  # the user's own numbers are left alone
        return ids(dataset)

    assert run(7) == run(7)
    assert run(7) != run(8)


@pytest.mark.parametrize(
    ("reader", "in_cluster"),
    [("memory", False), ("memory", True), ("disk", False), ("stream", False), ("tfx", False)],
)
def test_each_dataset_has_an_order_of_its_own(
    reader: Any, in_cluster: bool, taxis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(worker: int = 0, with_more: bool = False) -> list[list[int]]:
        if in_cluster:
            monkeypatch.setenv("TF_CONFIG", tf_config(index=worker, worker=2))
        seed = None if in_cluster else 7
        if reader == "tfx":
            pytest.importorskip("tfx_bsl")
            factory = make_dataset_factory(tfx_dataset, payload_format="FORMAT_PROTO", seed=seed)
        else:
            factory = make_dataset_factory(path=reader, seed=seed)
        if with_more:  # as a chief that looks at some examples, and at one file
            factory(taxis, options(batch_size=1), schema_of(ID))
            factory(as_long.replace("*", "data-00000.gz"), options(), schema_of(ID))
        small = options(batch_size=16)
        made = [
            factory(taxis, options(), schema_of(ID)),
            factory(taxis, options(reader_num_threads=1), schema_of(ID)),
            factory(taxis, small, schema_of(ID)),
            factory(as_long, options(), schema_of(ID)),
            factory(copied, options(), schema_of(ID)),  # other files of the same sizes
            factory(as_long, options(), schema_of(ID)),
        ]
        # Those of other files are compared by their places.
        return [[number % 300 for number in ids(dataset)] for dataset in made]

    files = [numbered(300, 450), numbered(450, 500), numbered(500, 600)]
    as_long = write_files(tmp_path / "long", files)
    shutil.copytree(os.path.dirname(taxis), tmp_path / "copied")
    copied = str(tmp_path / "copied" / os.path.basename(taxis))
    orders = run()
    for one, other in itertools.combinations(orders, 2):
        assert sorted(one) == sorted(other)
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 30
    assert run(worker=1, with_more=True) == orders  # as a run that resumes, in another worker
    explicit = options(shuffle_seed=3)
    factory = make_dataset_factory(seed=7)
    assert ids(factory(taxis, explicit, schema_of(ID))) == ids(
        factory(taxis, explicit, schema_of(ID))
    )


def test_a_trial_reads_in_the_same_order_after_others(taxis: str) -> None:
    factory = make_dataset_factory(seed=7)

    def read() -> list[int]:
        return ids(factory(taxis, options(), schema_of(ID)))

    with data.counting_anew():
        of_a_trial = [read(), read()]
    assert read() == of_a_trial[0]
    with data.counting_anew():
        assert [read(), read()] == of_a_trial
    assert read() == of_a_trial[1]


def test_a_graph_is_shuffled_anew_in_each_repetition(
    taxis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As `tf.compat.v1.disable_eager_execution` leaves it.
    monkeypatch.setattr(context, "default_execution_mode", context.GRAPH_MODE)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        asked: Any = {"reader_num_threads": None, "parser_num_threads": None}
        dataset = dataset_of(taxis, "memory", batch_size=300, **asked)
        dataset = dataset.map(lambda features: features["id"]).repeat(2)
        batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        first, second = session.run(batch).tolist(), session.run(batch).tolist()
    assert sorted(first) == sorted(second) == list(range(300))
    assert first != second


@pytest.mark.parametrize(
    ("epochs", "drop", "batches"),
    [(1, True, 9), (3, False, 29), (None, False, tf.data.INFINITE_CARDINALITY)],
)
def test_the_number_of_batches_is_known(
    epochs: int | None, drop: bool, batches: int, taxis: str
) -> None:
    dataset = dataset_of(taxis, num_epochs=epochs, drop_final_batch=drop)
    assert dataset.cardinality() == batches
    if epochs:
        assert len(list(dataset)) == batches


@pytest.mark.parametrize(
    ("path", "shuffle", "epochs"),
    [("memory", True, None), ("memory", False, 1), ("stream", True, None)],
)
def test_others_find_the_steps_of_a_dataset(
    path: str, shuffle: bool, epochs: int | None, taxis: str
) -> None:
    dataset = dataset_of(taxis, path, shuffle=shuffle, num_epochs=epochs)
    sizes, steps = [], set()
    while dataset is not None:  # as TensorFlow Decision Forests looks for them
        steps.add(type(dataset).__name__.strip("_"))
        sizes.append(getattr(dataset, "_batch_size", None))
        dataset = getattr(dataset, "_input_dataset", None)
    assert 32 in [int(size) for size in sizes if size is not None]
    assert ("ShuffleDataset" in steps) == shuffle
    assert ("RepeatDataset" in steps) == (epochs is None)


@pytest.mark.parametrize("path", PATHS)
def test_a_batch_larger_than_all_examples_is_one_of_all(path: str, taxis: str) -> None:
    for size in (10**12, sys.maxsize):
        (batch,) = dataset_of(taxis, path, batch_size=size, num_epochs=2)
        assert sorted(batch["id"].numpy()) == sorted([*range(300), *range(300)])
    for changes in ({"num_epochs": None}, {"drop_final_batch": True}):
        with pytest.raises(DataError, match="make batches smaller"):
            dataset_of(taxis, path, **{"batch_size": 10**12, **changes})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_no_examples_is_refused(path: str, size: int, taxis: str) -> None:
    with pytest.raises(ConfigurationError, match=f"batch_size: expected .*, found {size}"):
        dataset_of(taxis, path, batch_size=size)


@pytest.mark.parametrize("path", PATHS)
def test_epochs_without_number_are_endless(path: str, taxis: str) -> None:
    dataset = dataset_of(taxis, path, batch_size=300, num_epochs=sys.maxsize).take(3)
    assert [sorted(batch["id"].numpy()) for batch in dataset] == [[*range(300)]] * 3


def test_user_graphs_stand_on_top(taxis: str) -> None:
    dataset = dataset_of(taxis, label_key="id")
    doubled = dataset.map(lambda features, label: (features["city"], label * 2))
    taken = list(doubled.repeat().take(25))
    assert len(taken) == 25
    assert {int(label) % 2 for _, labels in taken for label in labels} == {0}


def test_an_iterator_resumes_from_a_checkpoint(taxis: str, tmp_path: Path) -> None:
    dataset = dataset_of(taxis, num_epochs=4)
    iterator = iter(dataset)
    for _ in range(11):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "iterator"))
    expected = [batch["id"].numpy().tolist() for batch in iterator]
    resumed = iter(dataset)
    tf.train.Checkpoint(iterator=resumed).read(saved).assert_consumed()
    assert [batch["id"].numpy().tolist() for batch in resumed] == expected
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert sum(sizes) < 1_000_000  # the batches in flight, not the columns


@pytest.mark.parametrize(
    ("megabytes", "num_epochs", "expected"),
    [
        ("7", None, ["Reading 300 examples (3 file(s)", "from memory", "the budget of 7.0 MB"]),
        ("0", None, ["from disk", "more than the memory budget of 0 B"]),
        ("0", 1, ["Streaming 3 file(s)", "one pass is asked for"]),
    ],
)
def test_the_log_names_the_path_and_the_reason(
    megabytes: str,
    num_epochs: int | None,
    expected: list[str],
    taxis: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    monkeypatch.setenv("GENERIC_TRAINER_READER_MEMORY_MB", megabytes)
    dataset_of(taxis, num_epochs=num_epochs)
    assert [text for text in expected if text not in caplog.text] == []


def test_several_patterns_compressions_and_file_systems(tmp_path: Path) -> None:
    patterns = [
        write_files(tmp_path / "span-1", [numbered(0, 20)], ".gz"),
        write_files(tmp_path / "span-2", [numbered(20, 30), numbered(30, 45)], ""),
    ]
    write(str(tmp_path / "named.tfrecord.gz"), numbered(45, 50))
    (tmp_path / "named.tfrecord.gz").rename(tmp_path / "unnamed")  # gzip, and no name to say so
    # A record as long as the first two bytes of gzip read as a number.
    long = example(id=50, price=[0.0, 0.0], city="x" * (0x8B1F - 62))
    assert len(long) == 0x8B1F
    patterns += [str(tmp_path / "unnamed"), write(tmp_path / "raw", [long])]
    patterns.append(write_files(tmp_path / "snappy", [numbered(51, 60), []], ""))
    for file in (tmp_path / "snappy").iterdir():
        file.write_bytes(snappy(file.read_bytes()))
    tf.io.gfile.makedirs("ram://reader/split")
    patterns.append(write("ram://reader/split/data.gz", numbered(60, 70)))
    for path in PATHS:
        assert sorted(ids(dataset_of(patterns, path))) == list(range(70))
    assert data.count_examples(patterns) == 70


def snappy(content: bytes) -> bytes:
    """Returns what TensorFlow calls SNAPPY: blocks behind their lengths, 4 bytes, big-endian."""
    pieces = (content[start : start + 1000] for start in range(0, len(content), 1000))
    blocks = (pyarrow.compress(piece, codec="snappy", asbytes=True) for piece in pieces)
    return b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
