"""Examples per second of TFX's reader and of GenericTrainer's, side by side.

::

    python -m benchmarks.bench_reader                                  # a few minutes
    python -m benchmarks.bench_reader --rows 100000 1000000 5000000 --batch 256
    python -m benchmarks.bench_reader --features 10 100 500 --kinds numeric string sparse mixed
    python -m benchmarks.bench_reader --compare-caches                 # tf.data's cache, snapshot

A line is one data set and one batch size. Of `--kinds`, `half` are numbers and strings, `mixed` a
third each of numbers, strings and sparse lists; `distinct` are strings that never repeat. Readers
take turns in one process, so that all of them meet the same neighbours on the machine, and every
number is a median over `--repeats`. Shuffling is on, or off with `--unshuffled`.

`stream` is one pass of the streaming reader. `first` is the first epoch from columns, with all that
it takes: opening, reading, parsing. `memory` and `disk` are later epochs of the two column paths,
`disk` with a budget of a quarter of the columns. `building` is a first epoch that also writes the
columns into the cache for later processes, and `again` is the first epoch of such a one, which maps
them; caching is off elsewhere. `limit` is what no first epoch can pass: the files are read and
decompressed by zlib, in a thread for each processor, and nothing is parsed. An `x` is the ratio to
TFX's reader. `grown` is by how much memory grew at most while columns were read into memory and
iterated, columns included, beyond what a small data set of the same schema had taken; `disk grown`
is the same for the disk path, where the budget is a quarter. `--consume python` fetches each batch
into Python, which costs both readers the same; the default counts batches in C++ and so measures
the readers alone.

Where others use the machine, wall time says little: `--clock cpu` gives examples per second of
processor time, all threads together. Prints a table.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import glob
import itertools
import logging
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from absl import logging as absl_logging
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.tfxio import tf_example_record
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from benchmarks import _figures
from generic_trainer.data import count_examples, make_dataset_factory

_CACHE_VARIABLE = "GENERIC_TRAINER_CACHE_DIR"
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_FILE_ROWS = 25_000
_VALUES = 1_600_000  # that are drawn; rows repeat, farther apart than gzip looks back
_KINDS = {
    "numeric": ("numeric",),
    "string": ("string",),
    "sparse": ("sparse",),
    "ragged": ("ragged",),
    "half": ("numeric", "string"),
    "mixed": ("numeric", "string", "sparse"),
    "distinct": ("distinct",),
}
_HEADER = (
    "kind", "rows", "features", "batch", "TFX/s", "limit/s", "x", "stream/s", "x", "first/s", "x",
    "building/s", "x", "again/s", "x", "memory/s", "x", "disk/s", "x",
    "columns MB", "grown MB", "disk grown",
)  # fmt: skip
_CACHES = ("cache", "snapshot")


def main() -> None:
    """Measures every combination that the arguments name."""
    arguments = _arguments()
    absl_logging.set_verbosity(absl_logging.ERROR)
    os.environ[_CACHE_VARIABLE] = "off"
    header = [*_HEADER, *(f"{cache}{end}" for cache in _caches(arguments) for end in ("/s", " x"))]
    print(" | ".join(f"{name:>10}" for name in header), flush=True)
    figures = []
    for kind, features, rows in itertools.product(
        arguments.kinds, arguments.features, arguments.rows
    ):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            schema = _schema(features, _KINDS[kind])
            pattern = _write(Path(directory), rows, schema)
            for batch in arguments.batch:
                rates, sizes = _Case(pattern, schema, batch, rows, arguments).measure()
                names = {"kind": kind, "rows": rows, "features": features, "batch": batch}
                medians = {name: statistics.median(each) for name, each in rates.items()}
                print(_line({**names, **medians, **sizes}, arguments), flush=True)
                figures += [
                    _figures.compare(
                        f"{name}, {kind}, {features} features, {rows} rows, batch {batch}",
                        ours, "examples/s", "TFX's reader", rates["tfx"],
                    )
                    for name, ours in rates.items() if name != "tfx"
                ]  # fmt: skip
    _figures.write(figures, arguments.json)


class _Case:
    """One data set and one batch size."""

    def __init__(
        self, pattern: str, schema: schema_pb2.Schema, batch: int, rows: int, arguments: Any
    ) -> None:
        self._pattern, self._schema, self._rows = pattern, schema, rows
        self._arguments = arguments
        sample = arguments.sample * 16 // max(16, len(schema.feature))
        self._sample_batches = max(1, min(rows, sample) // batch)
        self._options = TensorFlowDatasetOptions(
            batch_size=batch, num_epochs=None, shuffle=not arguments.unshuffled
        )
        self._clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
        self._iterate = _fetch if arguments.consume == "python" else _count

    def measure(self) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Returns examples per second of each reader, repeat by repeat, and sizes in MB."""
        self._first_epoch("memory", pattern=self._pattern.replace("*", "data-00000.gz"))  # warm
        with _memory_growth() as grown:
            memory, size_mb, first = self._first_epoch("memory")
        with _memory_growth() as disk_grown:
            disk, _, _ = self._first_epoch("disk", int(size_mb * 1e6 / 4))
        with self._cached() as cached:
            readers = {"tfx": self._tfx(None), "memory": memory, "disk": disk, **cached}
            rates: dict[str, list[float]] = {name: [] for name in [*readers, "limit", "stream"]}
            rates |= {"first": [first], "building": [], "again": []}
            for repeat in range(self._arguments.repeats):
                for name, dataset in readers.items():
                    rates[name].append(self._rate(dataset))
                rates["limit"].append(self._limit())
                rates["stream"].append(self._rate(self._make("stream")))
                if repeat:
                    rates["first"].append(self._first_epoch("memory")[2])
                with _column_cache(self._arguments.directory):
                    for name in ("building", "again"):
                        rates[name].append(self._first_epoch("memory")[2])
        sizes = {"columns_mb": size_mb, "grown_mb": grown[0], "disk_grown_mb": disk_grown[0]}
        return rates, {
            name: size if size is size_mb else size / 1e6 for name, size in sizes.items()
        }

    def _make(self, path: Any, budget_bytes: int | None = None) -> tf.data.Dataset:
        factory = make_dataset_factory(
            path=path, cache_dir=self._arguments.directory, memory_budget_bytes=budget_bytes
        )
        return factory(self._pattern, self._options, self._schema)

    def _first_epoch(
        self, path: str, budget_bytes: int | None = None, pattern: str | None = None
    ) -> tuple[tf.data.Dataset, float, float]:
        """Returns a dataset that was iterated once, the MB of its columns, and examples/s."""
        factory = make_dataset_factory(
            path=path,  # type: ignore[arg-type]
            cache_dir=self._arguments.directory,
            memory_budget_bytes=budget_bytes,
        )
        gc.collect()
        pattern = pattern or self._pattern
        with _columns_mb() as size_mb:
            start = self._clock()
            dataset = factory(pattern, self._options, self._schema)
        rows = count_examples(pattern)  # known: the factory has just read them
        self._iterate(dataset, max(1, rows // self._options.batch_size))
        seconds = self._clock() - start
        return dataset, size_mb[0], rows / seconds

    def _tfx(self, num_epochs: int | None) -> tf.data.Dataset:
        record = tf_example_record.TFExampleRecord(
            self._pattern, schema=self._schema, telemetry_descriptors=["bench"]
        )
        return record.TensorFlowDataset(self._options._replace(num_epochs=num_epochs))

    @contextlib.contextmanager
    def _cached(self) -> Iterator[dict[str, tf.data.Dataset]]:
        """Yields TFX's batches behind tf.data's own caches on disk, filled; shuffled as batches."""
        caches: dict[str, tf.data.Dataset] = {}
        directory = tempfile.mkdtemp(dir=self._arguments.directory)
        for name in _caches(self._arguments):
            batches = self._tfx(1)
            path = os.path.join(directory, name)
            kept = batches.cache(path) if name == "cache" else batches.snapshot(path)
            _count(kept, self._rows)
            caches[name] = kept.shuffle(100).repeat()
        try:
            yield caches
        finally:
            shutil.rmtree(directory)

    def _limit(self) -> float:
        start = self._clock()
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(_inflate, glob.glob(self._pattern)))
        return self._rows / (self._clock() - start)

    def _rate(self, dataset: tf.data.Dataset) -> float:
        start = self._clock()
        self._iterate(dataset, self._sample_batches)
        return self._sample_batches * self._options.batch_size / (self._clock() - start)


@contextlib.contextmanager
def _columns_mb() -> Iterator[list[float]]:
    """Yields a list that afterwards holds the size of the columns that the reader has made."""
    sizes: list[float] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = re.search(r"([\d.]+) MB of columns;", record.getMessage())
            sizes.extend([float(found[1])] if found else [])

    logger, listener = logging.getLogger("generic_trainer.data"), Listener()
    logger.setLevel(logging.INFO)
    logger.addHandler(listener)
    try:
        yield sizes
    finally:
        logger.removeHandler(listener)


@contextlib.contextmanager
def _memory_growth() -> Iterator[list[int]]:
    """Yields a list that afterwards holds the most bytes that memory grew by meanwhile."""
    gc.collect()
    before, grown, done = _memory_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            grown[0] = max(grown[0], _memory_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        done.set()
        watcher.join()
        grown[0] = max(grown[0], _memory_bytes() - before)


def _memory_bytes() -> int:
    """Returns what the process holds: its own pages, and those of its files in memory."""
    status = Path("/proc/self/status").read_text()
    own = sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    columns = {}  # by inode: a mapping has a descriptor of its own
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if "memfd:generic_trainer" in os.readlink(entry.path):
                status_of_file = os.stat(entry.path)
                columns[status_of_file.st_ino] = status_of_file.st_blocks * 512
    return own * 1024 + sum(columns.values())


@contextlib.contextmanager
def _column_cache(directory: str | None) -> Iterator[None]:
    """Has columns cached in an empty folder."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        os.environ[_CACHE_VARIABLE] = folder
        yield
        os.environ[_CACHE_VARIABLE] = "off"


def _inflate(path: str) -> int:
    return len(zlib.decompress(Path(path).read_bytes(), _GZIP_FORMAT))


def _fetch(dataset: tf.data.Dataset, batches: int) -> None:
    for _ in dataset.take(batches):
        pass


def _count(dataset: tf.data.Dataset, batches: int) -> None:
    dataset.take(batches).reduce(0, lambda number, *_: number + 1)


def _schema(features: int, kinds: tuple[str, ...]) -> schema_pb2.Schema:
    schema = schema_pb2.Schema()
    for number in range(features):
        kind = kinds[number % len(kinds)]
        numeric_type = 3 if number // len(kinds) % 2 else 2  # float and int by turns
        value_type = {"numeric": numeric_type, "sparse": 2, "ragged": 2}.get(kind, 1)
        feature = schema.feature.add(name=f"{kind}_{number:03d}", type=value_type)
        if kind == "ragged":
            ragged = schema.tensor_representation_group[""].tensor_representation[feature.name]
            ragged.ragged_tensor.feature_path.step.append(feature.name)
        elif kind != "sparse":
            feature.presence.min_fraction = 1
            feature.shape.SetInParent()
    return schema


def _write(directory: Path, rows: int, schema: schema_pb2.Schema) -> str:
    """Writes one file and copies it until there are enough rows; returns the pattern."""
    random = np.random.default_rng(0)
    made = min(rows, _FILE_ROWS, _VALUES // len(schema.feature))
    records = [_record(schema, random) for _ in range(made)]
    repeats = not schema.feature[0].name.startswith("distinct")
    for number, first in enumerate(range(0, rows, _FILE_ROWS)):
        path = directory / f"data-{number:05d}.gz"
        if number and repeats and first + _FILE_ROWS <= rows:
            shutil.copyfile(directory / "data-00000.gz", path)
            continue
        if number and not repeats:
            records = [_record(schema, random) for _ in range(made)]
        with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
            for record in itertools.islice(itertools.cycle(records), min(_FILE_ROWS, rows - first)):
                writer.write(record)
    return str(directory / "*")


def _record(schema: schema_pb2.Schema, random: np.random.Generator) -> bytes:
    example = tf.train.Example()
    for feature in schema.feature:
        target = example.features.feature[feature.name]
        if feature.name.startswith(("sparse", "ragged")):
            target.int64_list.value.extend(random.integers(0, 1000, random.integers(0, 4)))
        elif feature.name.startswith("distinct"):
            target.bytes_list.value.append(b"value-%d" % random.integers(1 << 60))
        elif feature.type == schema_pb2.BYTES:
            target.bytes_list.value.append(b"value-%d" % random.integers(1000))
        elif feature.type == schema_pb2.INT:
            target.int64_list.value.append(random.integers(1000))
        else:
            target.float_list.value.append(random.normal())
    return example.SerializeToString()


def _caches(arguments: argparse.Namespace) -> tuple[str, ...]:
    return _CACHES if arguments.compare_caches else ()


def _line(result: dict[str, Any], arguments: argparse.Namespace) -> str:
    cells = [f"{result['kind']:>10}"]
    cells += [f"{result[name]:>10,}" for name in ("rows", "features", "batch")]
    cells.append(f"{result['tfx']:>10,.0f}")
    for name in ("limit", "stream", "first", "building", "again", "memory", "disk"):
        cells += [f"{result[name]:>10,.0f}", f"{result[name] / result['tfx']:>10.1f}"]
    cells += [f"{result[name]:>10,.0f}" for name in ("columns_mb", "grown_mb", "disk_grown_mb")]
    for name in _caches(arguments):
        cells += [f"{result[name]:>10,.0f}", f"{result[name] / result['tfx']:>10.1f}"]
    return " | ".join(cells)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--features", type=int, nargs="+", default=[16])
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256, 2048])
    parser.add_argument(
        "--kinds", nargs="+", choices=list(_KINDS), default=["numeric", "half", "sparse"]
    )
    parser.add_argument(
        "--sample", type=int, default=200_000, help="examples of a later epoch, of 16 features"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--unshuffled", action="store_true", help="rows in TFX's order")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--consume", choices=("graph", "python"), default="graph")
    parser.add_argument(
        "--compare-caches", action="store_true", help="tf.data's cache and snapshot on disk, too"
    )
    parser.add_argument("--directory", help="where data and columns go; default: temporary")
    _figures.add_json_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
