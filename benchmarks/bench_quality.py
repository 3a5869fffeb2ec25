"""Whether training on GenericTrainer's reader is as good: one model, several seeds, same steps.

::

    python -m benchmarks.bench_quality --csv chicago_taxi/data.csv [--seeds 5] [--steps 1000]

Trains a small model with embeddings on four fifths of the taxi trips with TFX's reader and with
each of ours, with the same seeds for weights and shuffling, and scores the rest: area under the ROC
curve and cross-entropy. Files are sorted by label, so that a reader that shuffles worse shows.
Prints mean and standard deviation over the seeds, how far each reader is from TFX's in standard
errors of the difference (Welch's t; below 2 is noise).
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["GENERIC_TRAINER_CACHE_DIR"] = "off"

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.tfxio import tf_example_record
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from benchmarks import _figures
from generic_trainer.data import make_dataset_factory

LABEL = "label"
NUMERIC = ("fare", "trip_miles", "trip_seconds")
CATEGORICAL = ("trip_start_month", "trip_start_hour", "trip_start_day", "payment_type", "company")
SHARDS = 4

Factory = Callable[[str, TensorFlowDatasetOptions, schema_pb2.Schema], tf.data.Dataset]


def main() -> None:
    """Prints one table."""
    arguments = _arguments()
    logging.set_verbosity(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        train, evaluation, schema = _write(Path(folder), arguments.csv)
        scores: dict[str, list[dict[str, float]]] = {}
        for seed in range(arguments.seeds):
            for name, factory in _readers(arguments.memory_kb).items():
                score = _train_and_score(factory, train, evaluation, schema, seed, arguments)
                scores.setdefault(name, []).append(score)
    _print(scores, arguments)
    figures = [
        _figures.compare(
            f"{metric}, {reader}", [run[metric] for run in runs], metric,
            "TFX's reader", [run[metric] for run in scores["TFX"]], less_is_better=metric == "loss",
        )
        for reader, runs in scores.items() if reader != "TFX" for metric in runs[0]
    ]  # fmt: skip
    _figures.write(figures, arguments.json)


def _readers(memory_kb: int) -> dict[str, Factory]:
    return {
        "TFX": _tfx,
        "memory": make_dataset_factory(path="memory"),
        "disk": make_dataset_factory(path="disk", memory_budget_bytes=memory_kb * 1000),
        "stream": make_dataset_factory(path="stream"),
    }


def _tfx(
    pattern: str, options: TensorFlowDatasetOptions, schema: schema_pb2.Schema
) -> tf.data.Dataset:
    record = tf_example_record.TFExampleRecord(
        pattern, schema=schema, telemetry_descriptors=["bench"]
    )
    return record.TensorFlowDataset(options)


def _train_and_score(
    factory: Factory,
    train: str,
    evaluation: str,
    schema: schema_pb2.Schema,
    seed: int,
    arguments: argparse.Namespace,
) -> dict[str, float]:
    tf.keras.utils.set_random_seed(seed)
    options = TensorFlowDatasetOptions(
        batch_size=arguments.batch_size, label_key=LABEL, shuffle_seed=seed
    )
    model = _model(schema)
    model.fit(factory(train, options, schema), steps_per_epoch=arguments.steps, verbose=0)
    whole = options._replace(num_epochs=1, shuffle=False, batch_size=1000)
    scored = model.evaluate(_tfx(evaluation, whole, schema), verbose=0, return_dict=True)
    return {"auc": float(scored["auc"]), "loss": float(scored["loss"])}


def _model(schema: schema_pb2.Schema) -> tf.keras.Model:
    inputs, columns = {}, []
    for feature in schema.feature:
        if feature.name == LABEL:
            continue
        dtype = "float32" if feature.type == schema_pb2.FLOAT else "string"
        inputs[feature.name] = tensor = tf.keras.Input((1,), name=feature.name, dtype=dtype)
        if dtype == "string":
            buckets = tf.keras.layers.Hashing(100)(tensor)
            tensor = tf.keras.layers.Flatten()(tf.keras.layers.Embedding(100, 8)(buckets))
        columns.append(tensor)
    hidden = tf.keras.layers.Concatenate()(columns)
    for width in (64, 32):
        hidden = tf.keras.layers.Dense(width, activation="relu")(hidden)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(
        optimizer="adam", loss="binary_crossentropy", metrics=[tf.keras.metrics.AUC(name="auc")]
    )
    return model


def _write(folder: Path, path: str) -> tuple[str, str, schema_pb2.Schema]:
    """Writes every fifth trip for evaluation; returns both patterns and the schema."""
    trips = list(_trips(path))
    kept = sorted((trip for place, trip in enumerate(trips) if place % 5), key=lambda t: t[LABEL])
    split = {"train": kept, "eval": trips[::5]}
    for name, examples in split.items():
        for shard in range(SHARDS):
            size = math.ceil(len(examples) / SHARDS)
            with tf.io.TFRecordWriter(str(folder / f"{name}-{shard}.gz"), "GZIP") as writer:
                for trip in examples[shard * size : (shard + 1) * size]:
                    writer.write(_example(trip))
    text = "".join(
        f'feature {{ name: "{name}" type: {"BYTES" if name in CATEGORICAL else "FLOAT"} '
        "presence { min_fraction: 1.0 } shape { dim { size: 1 } } }\n"
        for name in (*NUMERIC, *CATEGORICAL, LABEL)
    )
    schema = text_format.Parse(text, schema_pb2.Schema())
    return str(folder / "train-*"), str(folder / "eval-*"), schema


def _trips(path: str) -> Iterator[dict[str, Any]]:
    with open(path, newline="") as file:
        for trip in csv.DictReader(file):
            row: dict[str, Any] = {
                name: math.log1p(max(0.0, float(trip[name] or 0))) for name in NUMERIC
            }
            row |= {name: trip[name].encode() for name in CATEGORICAL}
            yield {**row, LABEL: float(float(trip["tips"]) > 0.2 * float(trip["fare"]))}


def _example(trip: dict[str, Any]) -> bytes:
    example = tf.train.Example()
    for name, value in trip.items():
        feature = example.features.feature[name]
        (feature.bytes_list if isinstance(value, bytes) else feature.float_list).value.append(value)
    return example.SerializeToString()


def _print(scores: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name, runs in scores.items():
        table[name] = {metric: _summary(scores, name, metric) for metric in runs[0]}
    print(f"{arguments.seeds} seeds, {arguments.steps} steps of {arguments.batch_size}")
    print(f"{'reader':>8} | {'AUC':>30} | {'loss':>30}")
    for name, of_metric in table.items():
        cells = (
            f"{each['mean']:.4f} +- {each['sd']:.4f} ({each['t']:+.1f} s.e.)".rjust(30)
            for each in of_metric.values()
        )
        print(f"{name:>8} | " + " | ".join(cells))


def _summary(scores: dict[str, list[dict[str, float]]], name: str, metric: str) -> dict[str, float]:
    own, reference = (np.array([run[metric] for run in scores[reader]]) for reader in (name, "TFX"))
    error = math.sqrt((own.var(ddof=1) + reference.var(ddof=1)) / len(own))
    difference = float(own.mean() - reference.mean())
    return {
        "mean": float(own.mean()),
        "sd": statistics.stdev(own.tolist()),
        "t": difference / error if error else 0.0,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--csv", required=True, help="the Chicago taxi trips")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    _figures.add_json_option(parser)
    parser.add_argument("--memory-kb", type=int, default=100, help="budget of the disk path")
    return parser.parse_args()


if __name__ == "__main__":
    main()
