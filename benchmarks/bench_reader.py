"""Examples per second of TFX's reader and of GenericTrainer's, side by side.

::

    python benchmarks/bench_reader.py                       # a few minutes
    python benchmarks/bench_reader.py --rows 100000 1000000 5000000 --features 10 100 500

A line is one data set and one batch size. A third of the features each are numeric, string and
sparse; `--kinds` leaves some out. Readers take turns in one process, so that all of them meet the
same neighbours on the machine, and every number is a median over `--repeats`. Shuffling is on.

`first` is the first epoch with all that it takes: opening, reading, parsing. `memory` and `disk`
are later epochs of the two column paths, `disk` with a budget of a quarter of the columns. An `x`
is the ratio to TFX's reader. `grown` is by how much the process grew while columns were in memory.
`--consume python` fetches each batch into Python, which costs both readers the same; the default
counts batches in C++ and so measures the readers alone.

Where others use the machine, wall time says little: `--clock cpu` gives examples per second of
processor time, all threads together. Prints a table; `--json FILE` writes the same as JSON.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.tfxio import tf_example_record
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from generic_trainer.data import make_dataset_factory

_SHARDS = 4
_DISTINCT = 20_000
_KINDS = ("numeric", "string", "sparse")
_HEADER = (
    "rows", "features", "batch", "TFX/s", "stream/s", "x", "first/s", "x", "memory/s", "x",
    "disk/s", "x", "columns MB", "grown MB",
)  # fmt: skip


def main() -> None:
    """Measures every combination that the arguments name."""
    arguments = _arguments()
    results = []
    print(" | ".join(f"{name:>10}" for name in _HEADER))
    for rows, features in itertools.product(arguments.rows, arguments.features):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            schema = _schema(features, arguments.kinds)
            pattern = _write(Path(directory), rows, schema)
            for batch in arguments.batch:
                case = _Case(pattern, schema, batch, rows, arguments)
                result = {"rows": rows, "features": features, "batch": batch, **case.measure()}
                results.append(result)
                print(_line(result), flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2), encoding="utf-8")


class _Case:
    """One data set and one batch size."""

    def __init__(
        self, pattern: str, schema: schema_pb2.Schema, batch: int, rows: int, arguments: Any
    ) -> None:
        self._pattern, self._schema, self._rows = pattern, schema, rows
        self._repeats, self._sample = arguments.repeats, min(rows, arguments.sample)
        self._options = TensorFlowDatasetOptions(batch_size=batch, num_epochs=None)
        self._directory = arguments.directory
        self._clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
        self._iterate = _fetch if arguments.consume == "python" else _count

    def measure(self) -> dict[str, float]:
        """Returns examples per second of each reader, and sizes in MB."""
        before = _resident_mb()
        first = self._make(make_dataset_factory(path="memory"))
        memory = first.pop("dataset")
        self._rate(memory)
        grown = _resident_mb() - before
        size_mb = first.pop("columns_mb")
        disk = self._make(
            make_dataset_factory(
                path="disk",
                cache_dir=self._directory,
                memory_budget_bytes=int(size_mb * 1e6 / 4),
            )
        )
        readers = {
            "tfx": self._tfx(),
            "stream": self._make(make_dataset_factory(path="stream"))["dataset"],
            "memory": memory,
            "disk": disk["dataset"],
        }
        rates: dict[str, list[float]] = {name: [] for name in readers}
        firsts = [first["rate"]]
        for repeat in range(self._repeats):
            for name, dataset in readers.items():
                rates[name].append(self._rate(dataset))
            if repeat:
                firsts.append(self._make(make_dataset_factory(path="memory"))["rate"])
        medians = {name: statistics.median(each) for name, each in rates.items()}
        return {
            **medians, "first": statistics.median(firsts),
            "columns_mb": size_mb, "grown_mb": grown,
        }  # fmt: skip

    def _make(self, factory: Callable[..., tf.data.Dataset]) -> dict[str, Any]:
        """Makes a dataset and iterates it once; returns it, the rate, and its columns' size."""
        gc.collect()
        start = self._clock()
        dataset = factory(self._pattern, self._options, self._schema)
        if not hasattr(factory, "_collected") or not factory._collected:
            return {"dataset": dataset}
        (collected,) = factory._collected.values()
        self._iterate(dataset, self._rows // self._options.batch_size)
        seconds = self._clock() - start
        size_mb = collected.loaded.store.num_bytes / 1e6
        return {"dataset": dataset, "rate": self._rows / seconds, "columns_mb": size_mb}

    def _tfx(self) -> tf.data.Dataset:
        record = tf_example_record.TFExampleRecord(
            self._pattern, schema=self._schema, telemetry_descriptors=["bench"]
        )
        return record.TensorFlowDataset(self._options)

    def _rate(self, dataset: tf.data.Dataset) -> float:
        batches = max(1, self._sample // self._options.batch_size)
        start = self._clock()
        self._iterate(dataset, batches)
        return batches * self._options.batch_size / (self._clock() - start)


def _fetch(dataset: tf.data.Dataset, batches: int) -> None:
    for _ in dataset.take(batches):
        pass


def _count(dataset: tf.data.Dataset, batches: int) -> None:
    dataset.take(batches).reduce(0, lambda number, *_: number + 1)


def _schema(features: int, kinds: list[str]) -> schema_pb2.Schema:
    schema = schema_pb2.Schema()
    for number in range(features):
        kind = kinds[number % len(kinds)]
        value_type = {"numeric": 3 if number % 2 else 2, "string": 1, "sparse": 2}[kind]
        feature = schema.feature.add(name=f"{kind}_{number:03d}", type=value_type)
        if kind != "sparse":
            feature.presence.min_fraction = 1
            feature.shape.SetInParent()
    return schema


def _write(directory: Path, rows: int, schema: schema_pb2.Schema) -> str:
    # Distinct records go round: they are farther apart than gzip looks back.
    random = np.random.default_rng(0)
    records = [_record(schema, random) for _ in range(min(rows, _DISTINCT))]
    for shard in range(_SHARDS):
        path = str(directory / f"data-{shard:05d}.gz")
        with tf.io.TFRecordWriter(path, "GZIP") as writer:
            for number in range(shard, rows, _SHARDS):
                writer.write(records[number % len(records)])
    return str(directory / "*.gz")


def _record(schema: schema_pb2.Schema, random: np.random.Generator) -> bytes:
    example = tf.train.Example()
    for feature in schema.feature:
        target = example.features.feature[feature.name]
        if feature.name.startswith("sparse"):
            target.int64_list.value.extend(random.integers(0, 1000, random.integers(0, 4)))
        elif feature.type == schema_pb2.BYTES:
            target.bytes_list.value.append(b"value-%d" % random.integers(1000))
        elif feature.type == schema_pb2.INT:
            target.int64_list.value.append(random.integers(1000))
        else:
            target.float_list.value.append(random.normal())
    return example.SerializeToString()


def _resident_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1000
    raise RuntimeError("no VmRSS in /proc/self/status")


def _line(result: dict[str, float]) -> str:
    cells = [f"{result[name]:>10,}" for name in ("rows", "features", "batch")]
    cells.append(f"{result['tfx']:>10,.0f}")
    for name in ("stream", "first", "memory", "disk"):
        cells += [f"{result[name]:>10,.0f}", f"{result[name] / result['tfx']:>10.1f}"]
    cells += [f"{result[name]:>10,.0f}" for name in ("columns_mb", "grown_mb")]
    return " | ".join(cells)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--features", type=int, nargs="+", default=[16])
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256, 2048])
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=["numeric", "string"])
    parser.add_argument("--sample", type=int, default=200_000, help="examples of a later epoch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--consume", choices=("graph", "python"), default="graph")
    parser.add_argument("--directory", help="where data and columns go; default: temporary")
    parser.add_argument("--json", help="file that the results are written to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
