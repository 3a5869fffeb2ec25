"""Processor time of reading, beside TFX's reader, `tf.data` written well, and Grain.

    python -m benchmarks.beside_reading [--rows 200000] [--batch 64 256 4096] [--repeats 3]
        [--kind numeric]

Rows of 16 features, shuffled, are read batch by batch in a Python loop: numbers, or with `--kind`
strings, or lists of 0 to 3 integers (`sparse`). Readers take turns; each measurement is a process
of its own, and counts the seconds of processor time of all its threads and of the processes that
it starts, per million rows, without imports. Medians. Columns:

- `conversion`: what is made of TFX's files beforehand (Grain reads ArrayRecord).
- `first epoch`: from opening the files to the last batch; `later epochs`: the second and third one.
- `in a graph`: later epochs in a loop of a `tf.function`, as Keras has with `steps_per_execution`.
- `second run`: the first epoch of a process after one that has read the same rows.
- `MB`: files beside the examples, that the reader has made for later.
- `state MB`: a checkpoint of the iterator in the middle of the second epoch.
- `resume`: processor seconds (not per row) to restore it and get the next batch.
- `busy`: milliseconds of the shortest step, a sleep after each batch, that takes 90 % of the time
  in later epochs. An accelerator with such steps is kept busy, as MLPerf Storage defines it.

`constant batch` returns the same tensors again and again: no reader in a Python loop is faster.
Needs `tfx-bsl`; Grain (`grain`, `array_record`) is left out where it is not installed, and reads
numbers only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table
from tfx_bsl.tfxio import tf_example_record
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from benchmarks import bench_reader
from benchmarks._processes import in_new_process, processor_s
from generic_trainer.data import make_dataset_factory

_HAS_GRAIN = find_spec("grain") is not None
if _HAS_GRAIN:
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

_FEATURES = 16
_BUFFER = 100_000  # of shuffling, as that of TFX's reader
_COLUMNS = (
    *("conversion", "first epoch", "later epochs", "in a graph", "second run"),
    *("MB", "state MB", "resume", "busy"),
)
_IS_BUSY, _LOOK_S, _LOOKS = 0.9, 1.0, 9


class TfData:
    """Files, then parsed batches, as the guide to performance of `tf.data` has it."""

    columns: tuple[str, ...] = _COLUMNS[1:]

    def __init__(self, folder: Path, rows: int, batch: int, kind: str) -> None:
        self.folder = folder
        self.rows = rows
        self.batch = batch
        self.kind = kind
        self.schema = _schema(kind)
        self.scratch = folder / "scratch"
        self.scratch.mkdir(exist_ok=True)

    def convert(self) -> None:
        """Makes files of another form, if the reader needs them."""

    def dataset(self) -> Any:
        """Returns an endless `tf.data.Dataset` of batches."""
        return self._parsed_batches(self._rows().shuffle(_BUFFER).repeat()).prefetch(1)

    def _rows(self) -> Any:
        files = tf.data.Dataset.list_files(str(self.folder / "examples" / "*"))
        return files.interleave(
            lambda file: tf.data.TFRecordDataset(file, "GZIP"), num_parallel_calls=tf.data.AUTOTUNE
        )

    def _parsed_batches(self, rows: Any, drop_remainder: bool = True) -> Any:
        dtypes = {1: tf.string, 2: tf.int64, 3: tf.float32}
        features: dict[str, Any] = {
            feature.name: tf.io.FixedLenFeature([], dtypes[feature.type])
            if feature.HasField("shape")
            else tf.io.VarLenFeature(dtypes[feature.type])
            for feature in self.schema.feature
        }
        batches = rows.batch(self.batch, drop_remainder)
        return batches.map(lambda batch: tf.io.parse_example(batch, features), tf.data.AUTOTUNE)

    def iterator(self) -> Iterator[Any]:
        """Returns an iterator over batches, without end."""
        return iter(self.dataset())

    def save(self, iterator: Any) -> int:
        """Saves where the iterator is; returns the size in bytes."""
        tf.train.Checkpoint(iterator=iterator).write(str(self.scratch / "state"))
        return sum(file.stat().st_size for file in self.scratch.glob("state*"))

    def restore(self) -> Iterator[Any]:
        """Returns an iterator that continues there."""
        iterator = self.iterator()
        tf.train.Checkpoint(iterator=iterator).read(str(self.scratch / "state"))
        return iterator


class Cached(TfData):
    """The same with a cache of parsed batches: later epochs have them in another order."""

    def dataset(self) -> Any:
        kept = self._parsed_batches(self._rows().shuffle(_BUFFER)).cache()
        return kept.shuffle(max(1, self.rows // self.batch)).repeat().prefetch(1)


class Ours(TfData):
    """The reader of `fn_args.data_accessor`."""

    def dataset(self) -> Any:
        os.environ["GENERIC_TRAINER_CACHE_DIR"] = str(self.scratch)
        make = make_dataset_factory(cache_dir=str(self.scratch))
        options = TensorFlowDatasetOptions(batch_size=self.batch, drop_final_batch=True)
        return make(str(self.folder / "examples" / "*"), options, self.schema)


class Tfx(TfData):
    """The reader that TFX's Trainer gives to a module file."""

    def dataset(self) -> Any:
        record = tf_example_record.TFExampleRecord(
            str(self.folder / "examples" / "*"),
            schema=self.schema,
            telemetry_descriptors=["bench"],
        )
        options = TensorFlowDatasetOptions(batch_size=self.batch, drop_final_batch=True)
        return record.TensorFlowDataset(options)


class Constant(TfData):
    """The least that a batch costs: the first one of our reader, so with its element spec.

    TensorFlow takes three more ops for each sparse tensor of which the spec knows one size of two.
    """

    columns = "later epochs", "in a graph", "busy"

    def dataset(self) -> Any:
        reader = Ours(self.folder, self.rows, self.batch, self.kind)
        return reader.dataset().take(1).cache().repeat()


class Grain(TfData):
    """Rows as bytes of NumPy in ArrayRecord, batches by Grain's threads."""

    columns = tuple(column for column in _COLUMNS if column != "in a graph")

    def convert(self) -> None:
        # A file for each of TFX's: the time to read a row grows with the rows of its file.
        for file in sorted((self.folder / "examples").iterdir()):
            writer = ArrayRecordWriter(str(self.scratch / f"{file.name}.rows"), "group_size:1")
            rows = tf.data.TFRecordDataset(str(file), "GZIP")
            for batch in self._parsed_batches(rows, drop_remainder=False):
                table = np.empty(len(tf.nest.flatten(batch)[0]), self._row())
                for name, column in batch.items():
                    table[name] = column.numpy()
                for row in table:
                    writer.write(row.tobytes())
            writer.close()

    def _row(self) -> Any:
        return np.dtype([(f.name, "i8" if f.type == 2 else "f4") for f in self.schema.feature])

    def iterator(self) -> Iterator[Any]:
        dtype = self._row()

        def batch_of(records: Sequence[bytes]) -> dict[str, Any]:  # not row by row: much faster
            table = np.frombuffer(b"".join(records), dtype)
            return {name: np.ascontiguousarray(table[name]) for name in dtype.names}

        paths = [str(path) for path in sorted(self.scratch.glob("*.rows"))]
        source = grain.sources.ArrayRecordDataSource(paths)
        rows = grain.MapDataset.source(source).seed(1).shuffle().repeat()
        batches = rows.batch(self.batch, drop_remainder=True, batch_fn=batch_of)
        return iter(batches.to_iter_dataset())

    def save(self, iterator: Any) -> int:
        text = json.dumps(iterator.get_state())
        (self.scratch / "state").write_text(text)
        return len(text)

    def restore(self) -> Iterator[Any]:
        iterator: Any = self.iterator()
        iterator.set_state(json.loads((self.scratch / "state").read_text()))
        return iterator


READERS: dict[str, type[TfData]] = {
    "constant batch": Constant,
    "GenericTrainer": Ours,
    "tf.data": TfData,
    "tf.data, parsed batches cached": Cached,
    "Grain, ArrayRecord": Grain,
    "TFX's reader": Tfx,
}


def _schema(kind: str) -> Any:
    return bench_reader._schema(_FEATURES, bench_reader._KINDS[kind])


def _used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _measure(reader: TfData, step: str) -> dict[str, float]:
    """Returns figures of a step, measured in this process."""
    tf.constant(0) + 1  # starts TensorFlow
    per_million = 1e6 / reader.rows
    batches = reader.rows // reader.batch

    def read(iterator: Any, number: int) -> float:
        start_s = processor_s()
        for _ in range(number):
            next(iterator)
        return processor_s() - start_s

    start_s = processor_s()
    if step == "conversion":
        reader.convert()
        return {step: (processor_s() - start_s) * per_million}
    if step == "resume":
        next(reader.restore())
        return {step: processor_s() - start_s}
    iterator = reader.iterator()
    figures = {step: (read(iterator, batches) and processor_s() - start_s) * per_million}
    if step == "first epoch":
        figures["later epochs"] = read(iterator, 2 * batches) * per_million / 2
        if "in a graph" in reader.columns:
            figures["in a graph"] = _read_in_graph(iterator, 2 * batches) * per_million / 2
        read(iterator, batches // 2)
        figures["MB"] = _used(reader.scratch) / 1e6
        figures["state MB"] = reader.save(iterator) / 1e6
        figures["busy"] = 1000 * _shortest_busy_step(iterator)
    return figures


def _read_in_graph(iterator: Any, number: int) -> float:
    """Returns processor seconds of a loop that is traced before."""

    @tf.function
    def read(batches: Any) -> None:
        for _ in tf.range(number):
            next(batches)

    traced = read.get_concrete_function(iterator)
    start_s = processor_s()
    traced(iterator)
    return processor_s() - start_s


def _shortest_busy_step(iterator: Any) -> float:
    """Returns seconds, from halving (in powers) what lies between 0.03 ms and a second."""
    low, high = math.log(3e-5), math.log(1)
    for _ in range(_LOOKS):
        step_s = math.exp((low + high) / 2)
        busy_s, start_s = 0.0, time.perf_counter()
        while time.perf_counter() < start_s + _LOOK_S:
            next(iterator)
            slept_s = time.perf_counter()
            time.sleep(step_s)
            busy_s += time.perf_counter() - slept_s
        is_busy = busy_s >= _IS_BUSY * (time.perf_counter() - start_s)
        low, high = (low, math.log(step_s)) if is_busy else (math.log(step_s), high)
    return math.exp(high)


def _run(name: str, folder: Path, step: str, *data: Any) -> dict[str, float]:
    return _measure(READERS[name](folder, *data), step)


def _write(folder: Path, rows: int, kind: str) -> None:
    (folder / "examples").mkdir()
    bench_reader._write(folder / "examples", rows, _schema(kind))


def _table(batch: int, arguments: argparse.Namespace) -> Table:
    data = arguments.rows, batch, arguments.kind
    title = "{} rows, batches of {}, {}; processor seconds".format(*data)
    table = Table(title=title)
    for column in ("", *_COLUMNS):
        table.add_column(column)
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in arguments.only}
    for _ in range(arguments.repeats):
        for name, of_reader in figures.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder)
                (path / "examples").symlink_to(arguments.examples)
                for step in ("conversion", "first epoch", "second run", "resume"):
                    measured = in_new_process(_run, name, path, step, *data)
                    for column in READERS[name].columns:
                        if column in measured:
                            of_reader.setdefault(column, []).append(measured[column])
    for name, of_reader in figures.items():
        medians = {column: statistics.median(of_reader[column]) for column in of_reader}
        table.add_row(name, *(f"{medians[c]:.3g}" if c in medians else "" for c in _COLUMNS))
    return table


def main() -> None:
    """Prints a table for each size of batches."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    there = [name for name in READERS if READERS[name] is not Grain or _HAS_GRAIN]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256, 4096])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", choices=["numeric", "string", "sparse"], default="numeric")
    parser.add_argument("--only", nargs="+", choices=there)
    arguments = parser.parse_args()
    if arguments.kind != "numeric":
        there = [name for name in there if READERS[name] is not Grain]
    arguments.only = arguments.only or there
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), arguments.rows, arguments.kind)
        arguments.examples = Path(folder, "examples")
        for batch in arguments.batch:
            Console(width=150).print(_table(batch, arguments))


if __name__ == "__main__":
    main()
