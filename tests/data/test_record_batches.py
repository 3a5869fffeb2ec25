"""Record batches: TFX's rows, decoded once for all epochs, datasets and processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from tfx_bsl.tfxio import tf_example_record
from tfx_bsl.tfxio.dataset_options import RecordBatchesOptions

from generic_trainer.data import MEMORY_VARIABLE, _arrow, _record_batches, make_record_batch_factory
from generic_trainer.data._cache_folder import DIRECTORY_VARIABLE
from generic_trainer.errors import DataError
from tests.data.reading import example, feature_of, numbered, schema_of, write_files

IN_ORDER = RecordBatchesOptions(batch_size=32, num_epochs=1, shuffle=False)
SHUFFLED = RecordBatchesOptions(batch_size=32, num_epochs=2, shuffle_seed=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files were decoded, each time that some were."""
    calls: list[int] = []

    def decode_files(files: Sequence[Any], schema: Any, room: int) -> Any:
        calls.append(len(files))
        return _arrow.decode_files(files, schema, room)

    monkeypatch.setattr(_record_batches, "decode_files", decode_files)
    return calls


class Tfx:
    """TFX's factory; `calls` has the options that it was called with."""

    def __init__(self) -> None:
        self.calls: list[RecordBatchesOptions] = []

    def __call__(
        self, pattern: Sequence[str], options: RecordBatchesOptions, schema: Any
    ) -> Iterator[pa.RecordBatch]:
        self.calls.append(options)
        patterns = [pattern] if isinstance(pattern, str) else list(pattern)
        record = tf_example_record.TFExampleRecord(patterns, schema=schema)
        return iter(record.RecordBatches(options))


def factory(tfx: Tfx) -> Any:
    """Returns the factory of a new process."""
    return make_record_batch_factory(tfx)


def ids(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for (number,) in batch.column("id").to_pylist()]


@pytest.mark.parametrize(
    "options",
    [
        IN_ORDER,
        IN_ORDER._replace(drop_final_batch=True),
        IN_ORDER._replace(num_epochs=3),
        IN_ORDER._replace(batch_size=1000),
    ],
)
def test_batches_are_those_of_tfx(
    taxis: str, options: RecordBatchesOptions, decoded: list[int]
) -> None:
    expected = list(Tfx()([taxis], options, schema_of()))
    tfx = Tfx()
    for _ in range(2):  # decoded, and cached
        assert_same(factory(tfx)([taxis], options, schema_of()), expected)
    assert decoded and not decoded[1:] and not tfx.calls


def test_many_small_files_are_read_in_the_order_of_tfx(many_files: str) -> None:
    expected = list(Tfx()([many_files], IN_ORDER, schema_of()))
    assert_same(factory(Tfx())([many_files], IN_ORDER, schema_of()), expected)


def records_of(missing: bool, empty: bool) -> list[bytes]:
    """Returns records in which features are there, missing, without a type, and empty lists."""
    whole = {"id": 7, "price": [0.0, 2.5], "city": "", "tags": ["a", ""], "clicks": [10, 0]}
    some = [example(**whole), example(**{**whole, "id": -1, "tags": ["\xff" * 30]})] * 9
    if missing:
        some += [example(**{key: whole[key] for key in keys}) for keys in (["id"], ["tags"], [])]
        some += [example(**{**whole, "clicks": []}), b""]
    if empty:
        none = tf.train.Feature(int64_list=tf.train.Int64List())
        features = tf.train.Features(feature={"clicks": none, "id": feature_of(4)})
        some.append(tf.train.Example(features=features).SerializeToString())
    return some


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("times", [1, 300])  # which makes several blocks of records
def test_what_is_missing_is_null_and_what_is_empty_is_not(
    tmp_path: Path, missing: bool, empty: bool, times: int
) -> None:
    records = records_of(missing, empty) * times
    pattern = write_files(tmp_path / "data", [records, records[::-1], records[:1]])
    expected = list(Tfx()([pattern], IN_ORDER, schema_of()))
    tfx = Tfx()
    assert_same(factory(tfx)([pattern], IN_ORDER, schema_of()), expected)
    assert not tfx.calls


def test_records_that_are_mostly_open_are_decoded_by_tfx_bsl_alone(tmp_path: Path) -> None:
    records = records_of(False, True)[-1:] * 40 + records_of(True, True)
    pattern = write_files(tmp_path / "data", [records])
    expected = list(Tfx()([pattern], IN_ORDER, schema_of()))
    assert_same(factory(Tfx())([pattern], IN_ORDER, schema_of()), expected)


def test_a_record_that_tfx_cannot_decode_fails_as_with_tfx(tmp_path: Path) -> None:
    for name, record in {"type": example(id="seven"), "garbage": b"\x01garbage"}.items():
        pattern = write_files(tmp_path / name, [[*numbered(0, 20), record]])
        with pytest.raises(Exception) as theirs:
            list(Tfx()([pattern], IN_ORDER, schema_of()))
        with pytest.raises(type(theirs.value)) as ours:
            list(factory(Tfx())([pattern], IN_ORDER, schema_of()))
        assert str(ours.value) == str(theirs.value)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    pattern = write_files(tmp_path, [numbered(0, 20), numbered(20, 40)])
    file = tmp_path / "data-00001.gz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=file.name):
        list(factory(Tfx())([pattern], IN_ORDER, schema_of()))


def assert_same(batches: Iterator[pa.RecordBatch], expected: Sequence[pa.RecordBatch]) -> None:
    ours = list(batches)
    assert [batch.num_rows for batch in ours] == [batch.num_rows for batch in expected]
    for batch, other in zip(ours, expected, strict=True):
        batch.validate(full=True)
        assert batch.schema == other.schema
        assert batch.equals(other)


def test_shuffled_every_epoch_has_every_row_in_an_order_of_its_own(taxis: str) -> None:
    numbers = ids(factory(Tfx())([taxis], SHUFFLED, schema_of()))
    assert sorted(numbers[:300]) == sorted(numbers[300:]) == list(range(300))
    assert len({tuple(numbers[:300]), tuple(numbers[300:]), tuple(range(300))}) == 3
    assert ids(factory(Tfx())([taxis], SHUFFLED, schema_of())) == numbers
    unseeded = SHUFFLED._replace(shuffle_seed=None)
    assert ids(factory(Tfx())([taxis], unseeded, schema_of())) != numbers


def test_endless_batches_are_all_full(taxis: str) -> None:
    endless = factory(Tfx())([taxis], SHUFFLED._replace(num_epochs=None), schema_of())
    assert [next(endless).num_rows for _ in range(30)] == [32] * 30


def test_other_files_are_decoded_anew(tmp_path: Path, decoded: list[int]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    read = factory(Tfx())
    pattern = write_files(folder, [numbered(0, 20)])
    assert ids(read([pattern], IN_ORDER, schema_of())) == list(range(20))
    write_files(folder, [numbered(20, 50)])
    assert ids(read([pattern], IN_ORDER, schema_of())) == list(range(20, 50))
    assert len(decoded) == 2


def test_what_is_damaged_is_never_read(taxis: str, cache: Path, decoded: list[int]) -> None:
    tfx = Tfx()
    numbers = ids(factory(tfx)([taxis], IN_ORDER, schema_of()))
    (file,) = cache.rglob("*.arrow")
    content = np.fromfile(file, np.uint8)
    content[len(content) // 2] ^= 1
    content.tofile(file)
    assert ids(factory(tfx)([taxis], IN_ORDER, schema_of())) == numbers
    assert ids(factory(tfx)([taxis], IN_ORDER, schema_of())) == numbers
    assert len(decoded) == 2  # the damage is mended


def test_what_does_not_fit_is_left_to_tfx(
    taxis: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(MEMORY_VARIABLE, "0")
    tfx = Tfx()
    assert ids(factory(tfx)([taxis], IN_ORDER, schema_of())) == ids(
        Tfx()([taxis], IN_ORDER, schema_of())
    )
    assert tfx.calls[-1] == IN_ORDER
    assert "through TFX" in caplog.text


def test_without_a_schema_it_is_tfx(taxis: str) -> None:
    tfx = Tfx()
    assert len(ids(factory(tfx)([taxis], IN_ORDER, None))) == 300
    assert tfx.calls == [IN_ORDER]


def test_other_payloads_are_those_of_tfx() -> None:
    tfx = Tfx()
    assert make_record_batch_factory(tfx, payload_format="FORMAT_PROTO") is tfx


def test_without_a_cache_it_is_decoded_once_in_a_process(
    taxis: str, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, "off")
    read = factory(Tfx())
    assert ids(read([taxis], IN_ORDER, schema_of())) == ids(read([taxis], IN_ORDER, schema_of()))
    assert len(decoded) == 1
