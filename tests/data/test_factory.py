"""The drop-in itself: paths, options, sharing, and what stands on top of a dataset."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import tensorflow as tf
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from generic_trainer import data
from generic_trainer.data import make_dataset_factory
from generic_trainer.errors import ConfigurationError
from tests.data.reading import (
    assert_same_elements,
    ids,
    numbered,
    schema_of,
    tfx_dataset,
    write,
    write_files,
)

PATHS = ("memory", "disk", "stream")
COLUMNS = ("memory", "disk")


def options(**changes: Any) -> TensorFlowDatasetOptions:
    return TensorFlowDatasetOptions(**{"batch_size": 32, "num_epochs": 1, **changes})


def test_exported_names() -> None:
    assert data.__all__ == [
        "SplitCounts",
        "count_examples",
        "explain_read_errors",
        "make_dataset_factory",
        "make_record_batch_factory",
    ]


@pytest.mark.parametrize("path", PATHS)
def test_each_epoch_has_every_example_once_in_another_order(path: str, taxis: str) -> None:
    dataset = make_dataset_factory(path=path)(taxis, options(num_epochs=2), schema_of())
    read = ids(dataset)
    first, second = read[:300], read[300:]
    assert sorted(first) == sorted(second) == list(range(300))
    assert first != second
    assert first != list(range(300))


@pytest.mark.parametrize("path", PATHS)
def test_iterating_again_shuffles_again(path: str, taxis: str) -> None:
    dataset = make_dataset_factory(path=path)(taxis, options(), schema_of())
    first, second = ids(dataset), ids(dataset)
    assert sorted(first) == sorted(second)
    assert first != second


def stored() -> list[str]:
    """Returns the open files and the memory of this process that hold columns."""
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in set(os.listdir("/proc/self/fd"))
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    maps = Path("/proc/self/maps").read_text().splitlines()
    names = ("generic_trainer_column", "/unnamed-")  # in memory, on the disk
    return [place for place in links + maps if any(name in place for name in names)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("path", COLUMNS)
def test_columns_are_freed_with_their_dataset(
    path: str, shuffle: bool, in_graph: bool, taxis: str
) -> None:
    gc.collect()
    before = len(stored())

    def read() -> None:
        dataset = make_dataset_factory(path=path)(taxis, options(shuffle=shuffle), schema_of())
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


@pytest.mark.parametrize("path", COLUMNS)
def test_many_small_files_are_read_in_the_order_of_tfx(path: str, many_files: str) -> None:
    unshuffled = options(shuffle=False)
    ours = make_dataset_factory(path=path)(many_files, unshuffled, schema_of())
    assert_same_elements(list(ours), list(tfx_dataset(many_files, unshuffled, schema_of())))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("where", ["options", "factory"])
def test_a_seed_repeats_the_order_in_another_run(path: str, where: str, taxis: str) -> None:
    def run(seed: int) -> list[int]:
        in_options, in_factory = (seed, None) if where == "options" else (None, seed)
        factory = make_dataset_factory(path=path, seed=in_factory)
        seeded = options(shuffle_seed=in_options, num_epochs=2)
        return ids(factory(taxis, seeded, schema_of()))

    assert run(7) == run(7)
    assert run(7) != run(8)


@pytest.mark.parametrize("path", COLUMNS)
@pytest.mark.parametrize(
    ("epochs", "drop", "batches"),
    [(1, False, 10), (1, True, 9), (3, False, 29), (None, False, tf.data.INFINITE_CARDINALITY)],
)
def test_the_number_of_batches_is_known(
    path: str, epochs: int | None, drop: bool, batches: int, taxis: str
) -> None:
    asked = options(num_epochs=epochs, drop_final_batch=drop)
    dataset = make_dataset_factory(path=path)(taxis, asked, schema_of())
    assert dataset.cardinality() == batches
    if epochs:
        assert len(list(dataset)) == batches


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("epochs", [1, None])
def test_others_find_the_steps_of_a_dataset(
    path: str, shuffle: bool, epochs: int | None, taxis: str
) -> None:
    asked = options(shuffle=shuffle, num_epochs=epochs)
    dataset = make_dataset_factory(path=path)(taxis, asked, schema_of())
    sizes, steps = [], set()
    while dataset is not None:  # as TensorFlow Decision Forests looks for them
        steps.add(type(dataset).__name__.strip("_"))
        sizes.append(getattr(dataset, "_batch_size", None))
        dataset = getattr(dataset, "_input_dataset", None)
    assert 32 in [int(size) for size in sizes if size is not None]
    assert ("ShuffleDataset" in steps) == shuffle
    assert ("RepeatDataset" in steps) == (epochs is None)


@pytest.mark.parametrize("path", PATHS)
def test_user_graphs_stand_on_top(path: str, taxis: str) -> None:
    dataset = make_dataset_factory(path=path)(taxis, options(label_key="id"), schema_of())
    doubled = dataset.map(lambda features, label: (features["city"], label * 2))
    taken = list(doubled.repeat().take(25))
    assert len(taken) == 25
    assert {int(label) % 2 for _, labels in taken for label in labels} == {0}


@pytest.mark.parametrize("path", COLUMNS)
def test_an_iterator_resumes_from_a_checkpoint(path: str, taxis: str, tmp_path: Path) -> None:
    dataset = make_dataset_factory(path=path)(taxis, options(num_epochs=4), schema_of())
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


def test_the_log_says_which_path_and_why(
    taxis: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    endless = options(num_epochs=None)
    make_dataset_factory(memory_budget_bytes=10**6)(taxis, endless, schema_of())
    assert "Reading 300 examples (3 file(s)" in caplog.text
    assert "from memory" in caplog.text
    caplog.clear()
    make_dataset_factory(memory_budget_bytes=10, cache_dir=str(tmp_path))(
        taxis, endless, schema_of()
    )
    assert "from disk" in caplog.text
    assert "more than the memory budget of 10 B" in caplog.text
    caplog.clear()
    make_dataset_factory(memory_budget_bytes=10)(taxis, options(), schema_of())
    assert "Streaming 3 file(s)" in caplog.text
    assert "one pass is asked for" in caplog.text


def test_the_environment_sets_the_memory_budget(
    taxis: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    monkeypatch.setenv("GENERIC_TRAINER_READER_MEMORY_MB", "0")
    make_dataset_factory()(taxis, options(num_epochs=None), schema_of())
    assert "more than the memory budget of 0 B" in caplog.text
    monkeypatch.setenv("GENERIC_TRAINER_READER_MEMORY_MB", "7")
    make_dataset_factory()(taxis, options(num_epochs=None), schema_of())
    assert "within the budget of 7.0 MB" in caplog.text


@pytest.mark.parametrize("value", ["4 GB", "-1", "0.5"])
def test_a_budget_that_is_no_number(
    taxis: str, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("GENERIC_TRAINER_READER_MEMORY_MB", value)
    with pytest.raises(ConfigurationError, match="expected a whole number of megabytes"):
        make_dataset_factory()(taxis, options(), schema_of())


def test_columns_on_disk_leave_no_files(taxis: str, tmp_path: Path) -> None:
    factory = make_dataset_factory(path="disk", cache_dir=str(tmp_path / "cache"))
    dataset = factory(taxis, options(), schema_of())
    assert list((tmp_path / "cache").iterdir()) == []
    assert len(ids(dataset)) == 300


def test_datasets_of_the_same_files_share_their_columns(
    taxis: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    factory = make_dataset_factory()
    for batch_size in (8, 16):
        factory(taxis, options(batch_size=batch_size), schema_of())
    assert caplog.text.count("Reading 300 examples") == 1


def test_several_patterns_and_compressions(tmp_path: Path) -> None:
    patterns = [
        write_files(tmp_path / "span-1", [numbered(0, 20)], ".gz"),
        write_files(tmp_path / "span-2", [numbered(20, 30), numbered(30, 45)], ""),
    ]
    write(str(tmp_path / "named.tfrecord.gz"), numbered(45, 50))
    (tmp_path / "named.tfrecord.gz").rename(tmp_path / "unnamed")  # gzip, and no name to say so
    patterns.append(str(tmp_path / "unnamed"))
    for path in PATHS:
        dataset = make_dataset_factory(path=path)(patterns, options(), schema_of())
        assert sorted(ids(dataset)) == list(range(50))


@pytest.mark.parametrize("path", PATHS)
def test_snappy(path: str, tmp_path: Path) -> None:
    pattern = write_files(tmp_path, [numbered(0, 30), numbered(30, 40), []], "")
    for file in tmp_path.iterdir():
        file.write_bytes(snappy(file.read_bytes()))
    dataset = make_dataset_factory(path=path)(pattern, options(), schema_of())
    assert sorted(ids(dataset)) == list(range(40))
    assert data.count_examples(pattern) == 40


def snappy(content: bytes) -> bytes:
    """Returns what TensorFlow calls SNAPPY: blocks behind their lengths, 4 bytes, big-endian."""
    pieces = (content[start : start + 1000] for start in range(0, len(content), 1000))
    blocks = (pyarrow.compress(piece, codec="snappy", asbytes=True) for piece in pieces)
    return b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def test_a_remote_file_system() -> None:
    tf.io.gfile.makedirs("ram://reader/split")
    write("ram://reader/split/data.gz", numbered(0, 40))
    dataset = make_dataset_factory()("ram://reader/split/*", options(), schema_of())
    assert sorted(ids(dataset)) == list(range(40))


def test_other_payload_formats_go_through_the_fallback(
    taxis: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    factory = make_dataset_factory(tfx_dataset, payload_format="FORMAT_PARQUET")
    assert sorted(ids(factory(taxis, options(), schema_of()))) == list(range(300))
    assert "FORMAT_PARQUET through TFX's own reader" in caplog.text


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigurationError, match="Pass TFX's factory as fallback"):
        make_dataset_factory(payload_format="FORMAT_PROTO")
    with pytest.raises(ConfigurationError, match="found 'fast'"):
        make_dataset_factory(path="fast")  # type: ignore[arg-type]


def test_schema_errors_are_those_of_tfx(taxis: str) -> None:
    factory = make_dataset_factory()
    with pytest.raises(ValueError, match="no schema is provided"):
        factory(taxis, options(), None)
    with pytest.raises(ValueError, match="label_key"):
        factory(taxis, options(label_key="fare"), schema_of())
