"""Examples per second of TFX's reader and of GenericTrainer's where records are no tf.Examples.

    python -m benchmarks.bench_payloads [--payloads sequence view] [--rows 200000] [--batch 256]

`sequence` are tf.SequenceExamples: three features of a user, and three lists of what happened in a
session, up to eleven steps of up to two values. `view` are lines of comma-separated text that a
data view decodes into eight numbers, four strings and a ragged list of words.

Both readers take turns in this process, shuffled, and every number is a median over `--repeats`.
`first` is the first epoch from columns with all that it takes, their way into the cache included;
`again` the same in a later process, which finds them there; `later` are later epochs, and `stream`
reads without columns. Where others use the machine, `--clock cpu` gives examples per second of
processor time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.coders import tf_graph_record_decoder
from tfx_bsl.tfxio import record_to_tensor_tfxio, tf_sequence_example_record
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from benchmarks import _figures
from benchmarks.bench_reader import _column_cache, _count
from generic_trainer.data import make_dataset_factory

_FILE_ROWS = 25_000
_LATER_EPOCHS = 4
_RAGGED = """tensor_representation {{ key: "{0}" value {{
    ragged_tensor {{ feature_path {{ step: "##SEQUENCE##" step: "{0}" }} }} }} }}"""
_SESSIONS = f"""
    feature {{ name: "user" type: INT }}
    feature {{ name: "age" type: FLOAT }}
    feature {{ name: "countries" type: BYTES }}
    feature {{ name: "##SEQUENCE##" type: STRUCT struct_domain {{
        feature {{ name: "item" type: INT }}
        feature {{ name: "query" type: BYTES }}
        feature {{ name: "price" type: FLOAT }} }} }}
    tensor_representation_group {{ key: "" value {{
        tensor_representation {{ key: "user" value {{
            dense_tensor {{ column_name: "user" shape {{}} }} }} }}
        tensor_representation {{ key: "age" value {{ dense_tensor {{
            column_name: "age" shape {{}} default_value {{ float_value: -1 }} }} }} }}
        tensor_representation {{ key: "countries" value {{
            varlen_sparse_tensor {{ column_name: "countries" }} }} }}
        {_RAGGED.format("item")} {_RAGGED.format("query")} {_RAGGED.format("price")} }} }}"""
_DEFAULTS = [[0], *[[0.0]] * 7, *[[""]] * 5]  # of the columns of a line


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--payloads", nargs="+", choices=_PAYLOADS, default=list(_PAYLOADS))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    _figures.add_json_option(parser)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    options = TensorFlowDatasetOptions(batch_size=arguments.batch, num_epochs=None)
    figures = []
    for name in arguments.payloads:
        with tempfile.TemporaryDirectory() as folder:
            readers = _PAYLOADS[name](Path(folder), arguments.rows)
            rates = _measure(*readers, options, arguments.rows, arguments.repeats, clock)
        figures += list(_print(name, rates))
    _figures.write(figures, arguments.json)


def _measure(
    tfx: Callable[[Any], Any],
    ours: Callable[..., Any],
    options: Any,
    rows: int,
    repeats: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Returns what was read → examples per second, run by run; a first run warms up."""
    rates: dict[str, list[float]] = {}

    def read(name: str, make: Callable[[], tf.data.Dataset], epochs: int = 1) -> tf.data.Dataset:
        batches = epochs * rows // options.batch_size
        start = clock()
        dataset = make()
        _count(dataset, batches)
        rates.setdefault(name, []).append(batches * options.batch_size / (clock() - start))
        return dataset

    for _ in range(repeats + 1):
        read("TFX's", lambda: tfx(options))
        with _column_cache(None):
            kept = read("first", lambda: ours(options, path="memory"))
            read("again", lambda: ours(options, path="memory"))
        read("later", lambda: kept, _LATER_EPOCHS)  # noqa: B023 - called at once
        read("stream", lambda: ours(options, path="stream"))
    return {name: taken[1:] for name, taken in rates.items()}


def _print(payload: str, rates: dict[str, list[float]]) -> Iterator[_figures.Figure]:
    reference = rates.pop("TFX's")
    print(f"{payload}: TFX's {statistics.median(reference):,.0f} examples/s", flush=True)
    for name, taken in rates.items():
        ratio = statistics.median(taken) / statistics.median(reference)
        print(f"{name:8} {statistics.median(taken):>12,.0f} examples/s, {ratio:.1f} x", flush=True)
        yield _figures.compare(f"{payload}, {name}", taken, "examples/s", "TFX's", reference)


def _sequences(folder: Path, rows: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Writes tf.SequenceExamples; returns what makes datasets of TFX's reader and of ours."""
    schema = text_format.Parse(_SESSIONS, schema_pb2.Schema())
    pattern = _write(folder, rows, _session)

    def tfx(options: Any) -> Any:
        record = tf_sequence_example_record.TFSequenceExampleRecord(
            pattern, ["bench"], schema=schema
        )
        return record.TensorFlowDataset(options)

    def ours(options: Any, **arguments: Any) -> Any:
        factory = make_dataset_factory(payload_format="FORMAT_TF_SEQUENCE_EXAMPLE", **arguments)
        return factory(pattern, options, schema)

    return tfx, ours


def _session(random: np.random.Generator) -> bytes:
    example = tf.train.SequenceExample()
    context, lists = example.context.feature, example.feature_lists.feature_list
    context["user"].int64_list.value.append(int(random.integers(1 << 30)))
    context["age"].float_list.value.append(random.random())
    context["countries"].bytes_list.value.extend([b"de", b"fr"][: random.integers(3)])
    for _ in range(random.integers(12)):
        items = random.integers(1 << 30, size=random.integers(1, 3))
        lists["item"].feature.add().int64_list.value.extend(items.tolist())
        words = [b"word %d" % number for number in random.integers(1000, size=2)]
        lists["query"].feature.add().bytes_list.value.extend(words)
        lists["price"].feature.add().float_list.value.append(random.random())
    return example.SerializeToString()


def _view(folder: Path, rows: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Writes lines of text and a data view; returns as `_sequences` does."""
    uri = str(folder / "view")
    tf_graph_record_decoder.save_decoder(_Lines(), uri)
    (folder / "data").mkdir()
    pattern = _write(folder / "data", rows, _line)

    def tfx(options: Any) -> Any:
        record = record_to_tensor_tfxio.TFRecordToTensorTFXIO(pattern, uri, ["bench"])
        return record.TensorFlowDataset(options)

    def ours(options: Any, **arguments: Any) -> Any:
        factory = make_dataset_factory(
            payload_format="FORMAT_PROTO", data_view_uri=uri, **arguments
        )
        return factory(pattern, options, None)

    return tfx, ours


class _Lines(tf_graph_record_decoder.TFGraphRecordDecoder):
    def decode_record(self, records: tf.Tensor) -> dict[str, Any]:
        *columns, words = tf.io.decode_csv(records, _DEFAULTS)
        tensors = {f"column_{number}": column for number, column in enumerate(columns)}
        return {**tensors, "words": tf.strings.split(words)}


def _line(random: np.random.Generator) -> bytes:
    numbers = [str(random.integers(1 << 30)), *(f"{each:.4f}" for each in random.random(7))]
    words = [f"word {number}" for number in random.integers(1000, size=4)]
    return ",".join([*numbers, *words, " ".join(words[: random.integers(5)])]).encode()


def _write(folder: Path, rows: int, make: Callable[[np.random.Generator], bytes]) -> str:
    """Writes one file of records and copies it until there are enough; returns the pattern."""
    random = np.random.default_rng(0)
    first = folder / "data-00000.gz"
    with tf.io.TFRecordWriter(str(first), "GZIP") as writer:
        for _ in range(min(rows, _FILE_ROWS)):
            writer.write(make(random))
    for number in range(1, -(-rows // _FILE_ROWS)):
        shutil.copy(first, folder / f"data-{number:05d}.gz")
    return str(folder / "data-*")


_PAYLOADS = {"sequence": _sequences, "view": _view}

if __name__ == "__main__":
    main()
