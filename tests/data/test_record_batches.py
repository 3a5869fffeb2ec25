"""Record batches: TFX's rows, decoded once for all epochs, datasets and processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tfx_bsl.tfxio import tf_example_record
from tfx_bsl.tfxio.dataset_options import RecordBatchesOptions

from generic_trainer.data import MEMORY_VARIABLE, make_record_batch_factory
from generic_trainer.data._cache_folder import DIRECTORY_VARIABLE
from tests.data.reading import numbered, schema_of, write_files

IN_ORDER = RecordBatchesOptions(batch_size=32, num_epochs=1, shuffle=False)
SHUFFLED = RecordBatchesOptions(batch_size=32, num_epochs=2, shuffle_seed=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


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
def test_batches_are_those_of_tfx(taxis: str, options: RecordBatchesOptions) -> None:
    expected = list(Tfx()([taxis], options, schema_of()))
    tfx = Tfx()
    for _ in range(2):  # decoded, and cached
        batches = list(factory(tfx)([taxis], options, schema_of()))
        assert [batch.num_rows for batch in batches] == [batch.num_rows for batch in expected]
        assert all(map(pa.RecordBatch.equals, batches, expected))
    assert len(tfx.calls) == 1


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


def test_other_files_are_decoded_anew(tmp_path: Path) -> None:
    tfx, folder = Tfx(), tmp_path / "data"
    folder.mkdir()
    read = factory(tfx)
    pattern = write_files(folder, [numbered(0, 20)])
    assert ids(read([pattern], IN_ORDER, schema_of())) == list(range(20))
    write_files(folder, [numbered(20, 50)])
    assert ids(read([pattern], IN_ORDER, schema_of())) == list(range(20, 50))
    assert len(tfx.calls) == 2


def test_what_is_damaged_is_never_read(taxis: str, cache: Path) -> None:
    tfx = Tfx()
    numbers = ids(factory(tfx)([taxis], IN_ORDER, schema_of()))
    (file,) = cache.rglob("*.arrow")
    content = np.fromfile(file, np.uint8)
    content[len(content) // 2] ^= 1
    content.tofile(file)
    assert ids(factory(tfx)([taxis], IN_ORDER, schema_of())) == numbers
    assert ids(factory(tfx)([taxis], IN_ORDER, schema_of())) == numbers
    assert len(tfx.calls) == 2  # the damage is mended


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


def test_without_a_cache_it_is_decoded_once_in_a_process(
    taxis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, "off")
    tfx = Tfx()
    read = factory(tfx)
    assert ids(read([taxis], IN_ORDER, schema_of())) == ids(read([taxis], IN_ORDER, schema_of()))
    assert len(tfx.calls) == 1
