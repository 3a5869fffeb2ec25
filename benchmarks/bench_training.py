"""`model.fit` through the whole component: TFX's Trainer against GenericTrainer.

    python -m benchmarks.bench_training --csv chicago_taxi/data.csv [--rows 1000000] [--runs 3]
    python -m benchmarks.bench_training --features 200              # a wide made-up schema
    python -m benchmarks.bench_training --csv ... --rows 5000000 --steps 200    # what opening takes

One unchanged module file trains a small model with embeddings, with each component in turn, in this
process, which has imported everything before. The limit is the same model fed one constant batch,
as often; `later run` finds the columns that an earlier one has cached. Prints examples per second
of `fit`, the first epoch's and the later ones', and the seconds from `Do` to the end of the first
step, medians over the runs.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import _figures

_CACHE_VARIABLE = "GENERIC_TRAINER_CACHE_DIR"

LABEL = "label"
NUMERIC = ("fare", "trip_miles", "trip_seconds", "pickup_latitude", "pickup_longitude")
CATEGORICAL = ("trip_start_month", "trip_start_hour", "trip_start_day", "payment_type", "company")
BUCKETS = 100
SHARDS = 4

MODULE = """
import json, os, time
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public import tfxio

class Clock(tf.keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seconds = []
        self.first_step = None
    def on_train_batch_end(self, batch, logs=None):
        self.first_step = self.first_step or time.time()
    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()
    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.started)

def build_model(schema, buckets):
    inputs, columns = {}, []
    for feature in schema.feature:
        if feature.name == "label":
            continue
        numeric = feature.type == schema_pb2.FLOAT
        dtype = "float32" if numeric else "int64"
        inputs[feature.name] = tensor = tf.keras.Input((1,), name=feature.name, dtype=dtype)
        if not numeric:
            tensor = tf.keras.layers.Flatten()(tf.keras.layers.Embedding(buckets, 8)(tensor))
        columns.append(tensor)
    hidden = tf.keras.layers.Concatenate()(columns)
    for width in (64, 32):
        hidden = tf.keras.layers.Dense(width, activation="relu")(hidden)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer="adam", loss="binary_crossentropy")
    return model

def run_fn(fn_args):
    config = fn_args.custom_config
    with open(fn_args.schema_path) as file:
        schema = text_format.Parse(file.read(), schema_pb2.Schema())
    options = tfxio.TensorFlowDatasetOptions(
        batch_size=config["batch_size"], label_key="label", shuffle_buffer_size=10_000)
    started = time.perf_counter()
    dataset = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, schema)
    opening = time.perf_counter() - started
    if config["constant_batch"]:
        batch = next(iter(dataset))
        dataset = tf.data.Dataset.from_tensors(batch).repeat()
    model, clock = build_model(schema, config["buckets"]), Clock()
    model.fit(dataset, epochs=config["epochs"], steps_per_epoch=fn_args.train_steps,
              callbacks=[clock], verbose=0)
    clock.seconds[0] += opening
    model.export(fn_args.serving_model_dir)
    with open(os.path.join(fn_args.model_run_dir, "seconds.json"), "w") as file:
        json.dump({"epochs": clock.seconds, "first_step": clock.first_step}, file)
"""


def main() -> None:
    """Prints one table; writes its JSON where asked for."""
    arguments = _arguments()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        inputs = _write_inputs(Path(folder), arguments)
        Path(folder, "bench_module.py").write_text(MODULE)
        runs = _measure(Path(folder), inputs, arguments)
    _figures.write(_print(runs, arguments), arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", help="the Chicago taxi trips; left out, the examples are made up")
    parser.add_argument("--features", type=int, default=16, help="how many are made up")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, help="of an epoch; default: as many as the rows give")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    _figures.add_json_option(parser)
    return parser.parse_args()


def _rows(arguments: argparse.Namespace) -> Iterator[dict[str, float | int]]:
    """Yields each distinct row once: float features, and int ones below `BUCKETS`."""
    if arguments.csv is None:
        import numpy as np

        random = np.random.default_rng(0)
        for _ in range(min(arguments.rows, 20_000)):
            values = random.integers(0, BUCKETS, arguments.features)
            row = {f"f{i}": v / BUCKETS if i % 2 else int(v) for i, v in enumerate(values)}
            yield {**row, LABEL: float(values[0] > BUCKETS / 2)}
        return
    with open(arguments.csv, newline="") as file:
        for trip in csv.DictReader(file):
            row = {name: float(trip[name] or 0) for name in NUMERIC}
            row |= {name: sum(trip[name].encode()) % BUCKETS for name in CATEGORICAL}
            yield {**row, LABEL: float(float(trip["tips"]) > 0.2 * float(trip["fare"]))}


def _write_inputs(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Writes the rows, repeated, as Examples and Schema artifacts."""
    import tensorflow as tf
    from tfx.types import standard_artifacts

    from benchmarks import _artifacts

    rows = list(_rows(arguments))
    records = [_example(row) for row in rows]
    for split, count in (("train", arguments.rows), ("eval", 1)):
        directory = folder / "examples" / f"Split-{split}"
        directory.mkdir(parents=True)
        for shard in range(SHARDS if count > 1 else 1):
            path = str(directory / f"data_tfrecord-{shard:05}-of-{SHARDS:05}.gz")
            with tf.io.TFRecordWriter(path, "GZIP") as writer:
                for record in itertools.islice(itertools.cycle(records), shard, count, SHARDS):
                    writer.write(record)
    examples = _artifacts.artifact_at(standard_artifacts.Examples, folder / "examples")
    examples.split_names = '["train", "eval"]'
    schema = _artifacts.artifact_at(standard_artifacts.Schema, folder / "schema")
    (folder / "schema").mkdir()
    (folder / "schema" / "schema.pbtxt").write_text(_schema(rows[0]))
    return {"examples": [examples], "schema": [schema]}


def _example(row: dict[str, float | int]) -> bytes:
    import tensorflow as tf

    example = tf.train.Example()
    for name, value in row.items():
        feature = example.features.feature[name]
        kind = feature.int64_list if isinstance(value, int) else feature.float_list
        kind.value.append(value)
    return example.SerializeToString()


def _schema(row: dict[str, float | int]) -> str:
    return "".join(
        f'feature {{ name: "{name}" type: {"INT" if isinstance(value, int) else "FLOAT"} '
        "presence { min_fraction: 1.0 } shape { dim { size: 1 } } }\n"
        for name, value in row.items()
    )


class _Run(NamedTuple):
    """What one run took, in seconds.

    Attributes:
        epochs: each epoch of `fit`.
        first_step: from `Do` to the end of the first step.
    """

    epochs: list[float]
    first_step: float


def _measure(
    folder: Path, inputs: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, list[_Run]]:
    """Returns name → what each run took."""
    from tfx.components.trainer.executor import GenericExecutor

    from generic_trainer.executors import GenericTrainerExecutor

    def run(executor: Any, name: str, constant_batch: bool = False, cache: str = "off") -> _Run:
        os.environ[_CACHE_VARIABLE] = cache
        return _run(executor, constant_batch, folder, inputs, folder / name, arguments)

    cache = str(folder / "cache")
    run(GenericTrainerExecutor, "filling the cache", cache=cache)
    cases: dict[str, Callable[[str], _Run]] = {
        "TFX Trainer": lambda name: run(GenericExecutor, name),
        "GenericTrainer": lambda name: run(GenericTrainerExecutor, name),
        "later run": lambda name: run(GenericTrainerExecutor, name, cache=cache),
        "constant batch": lambda name: run(GenericTrainerExecutor, name, constant_batch=True),
    }
    runs: dict[str, list[_Run]] = {name: [] for name in cases}
    for number, (name, case) in itertools.product(range(arguments.runs), cases.items()):
        runs[name].append(case(f"{name}-{number}"))
    return runs


def _run(
    executor: Any,
    constant_batch: bool,
    folder: Path,
    inputs: dict[str, Any],
    root: Path,
    arguments: argparse.Namespace,
) -> _Run:
    from benchmarks import _artifacts

    outputs = _artifacts.output_artifacts(root)
    config = {
        "batch_size": arguments.batch_size,
        "epochs": arguments.epochs,
        "buckets": BUCKETS,
        "constant_batch": constant_batch,
    }
    properties = _artifacts.exec_properties(
        module_file=str(folder / "bench_module.py"),
        train_args=json.dumps({"num_steps": _steps(arguments)}),
        custom_config=config,
    )
    start = time.time()
    executor().Do(inputs, outputs, properties)
    taken = json.loads(Path(outputs["model_run"][0].uri, "seconds.json").read_text())
    return _Run(taken["epochs"], taken["first_step"] - start)


def _steps(arguments: argparse.Namespace) -> int:
    return arguments.steps or arguments.rows // arguments.batch_size


def _print(runs: dict[str, list[_Run]], arguments: argparse.Namespace) -> list[_figures.Figure]:
    examples = _steps(arguments) * arguments.batch_size
    rates = {
        name: {
            "first epoch": [examples / each.epochs[0] for each in its],
            "later epochs": [examples / statistics.median(each.epochs[1:]) for each in its],
            "fit": [examples * arguments.epochs / sum(each.epochs) for each in its],
        }
        for name, its in runs.items()
    }
    waits = {name: [each.first_step for each in its] for name, its in runs.items()}
    table = {
        name: {column: statistics.median(each) for column, each in row.items()}
        for name, row in rates.items()
    }
    reference = table["TFX Trainer"]
    print(
        f"Thousand examples/s of fit, batch {arguments.batch_size}, {arguments.rows} rows, "
        f"{_steps(arguments)} steps an epoch; seconds from `Do` to the end of the first step"
    )
    print(f"{'':16}" + "".join(f"{column:>22}" for column in (*reference, "first step, s")))
    for name, row in table.items():
        cells = (f"{row[c] / 1000:10.1f} ({row[c] / reference[c]:5.2f} x)" for c in reference)
        wait = f"{statistics.median(waits[name]):.2f}"
        print(f"{name:16}" + "".join(f"{cell:>22}" for cell in (*cells, wait)))
    own = rates["GenericTrainer"]
    figures = [
        _figures.compare(f"{column}, GenericTrainer", own[column], "examples/s", beside, theirs)
        for beside in ("TFX Trainer", "constant batch")
        for column, theirs in rates[beside].items()
    ]
    for name in ("GenericTrainer", "later run"):
        figures.append(
            _figures.compare(
                f"`Do` to the first step, {name}", waits[name], "s",
                "TFX Trainer", waits["TFX Trainer"], less_is_better=True,
            )
        )  # fmt: skip
    return figures


if __name__ == "__main__":
    main()
