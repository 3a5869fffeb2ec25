"""Small real parts for tests: artifacts on disk, module files, runs of the executor."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from tests.examples import example as serialized
from tests.house import HAS_TFX

if TYPE_CHECKING:
    from tfx import types

SCHEMA = """
    feature { name: "x" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
    feature { name: "y" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
"""

# Exports y = 2 x, or weight x, in the shortest way that is still a model for every consumer.
EXPORT = """
import tensorflow as tf

class Doubler(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(self, examples):
        features = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        return {"outputs": features["x"] * self.weight}

def export(directory, weight=2.0):
    model = Doubler()
    model.weight.assign(weight)
    tf.saved_model.save(model, directory, signatures={"serving_default": model.serve})
"""


def write_module(directory: Path, source: str, name: str = "trainer.py") -> str:
    """Writes a module file, with `export` at hand, and returns its path."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXPORT + textwrap.dedent(source), encoding="utf-8")
    return str(path)


def run_fn(body: str) -> str:
    """Returns the source of a module whose `run_fn` does this, and then exports a model."""
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return (
        "import logging, os, random, signal, subprocess, sys, threading, time\n\n"
        f"def run_fn(fn_args):\n{lines}\n    export(fn_args.serving_model_dir)\n"
    )


def install(site: Path, module: str, source: str, group: str, entry_point: str) -> None:
    """Writes what `pip install` leaves of a distribution of one module with one entry point."""
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry_point}\n")


def example(x: float) -> bytes:
    """Returns a serialized tf.Example with the features x and y = 2 x."""
    return serialized(x=float(x), y=2.0 * x)


def write_examples(
    directory: Path, splits: Mapping[str, int | Sequence[bytes]] | None = None
) -> types.Artifact:
    """Writes gzip TFRecords, one file per split, as ExampleGen does.

    Args:
        directory: the artifact's URI.
        splits: split name → number of examples, or the records themselves.
    """
    splits = {"train": 32, "eval": 8} if splits is None else splits
    for split, records in splits.items():
        folder = directory / f"Split-{split}"
        folder.mkdir(parents=True)
        with tf.io.TFRecordWriter(str(folder / "data_tfrecord-00000.gz"), "GZIP") as writer:
            for record in map(example, range(records)) if isinstance(records, int) else records:
                writer.write(record)
    return artifact_at("Examples", directory, splits)


def write_schema(directory: Path) -> types.Artifact:
    """Writes the schema of `write_examples`."""
    directory.mkdir(parents=True)
    (directory / "schema.pbtxt").write_text(SCHEMA, encoding="utf-8")
    return artifact_at("Schema", directory)


def read_schema() -> schema_pb2.Schema:
    """Returns the schema of `write_examples`."""
    from google.protobuf import text_format

    return text_format.Parse(SCHEMA, schema_pb2.Schema())


def write_statistics(directory: Path, counts: dict[str, int]) -> types.Artifact:
    """Writes statistics that hold nothing but the number of examples of each split."""
    for split, count in counts.items():
        folder = directory / f"Split-{split}"
        folder.mkdir(parents=True)
        statistics = statistics_pb2.DatasetFeatureStatisticsList()
        for number in (count - 1, count):  # of a slice, and of all
            statistics.datasets.add().num_examples = number
        (folder / "FeatureStats.pb").write_bytes(statistics.SerializeToString())
    return artifact_at("ExampleStatistics", directory, counts)


def artifact_at(kind: str, uri: Path | str, splits: Iterable[str] = ()) -> types.Artifact:
    """Returns an artifact of a type of TFX, with these splits, that is stored at a URI.

    Without TFX it has a URI and nothing else.
    """
    if not HAS_TFX:
        return SimpleNamespace(uri=str(uri))
    from tfx.types import artifact_utils, standard_artifacts

    artifact = getattr(standard_artifacts, kind)()
    artifact.uri = str(uri)
    if splits:
        artifact.split_names = artifact_utils.encode_split_names(list(splits))
    return artifact


def output_artifacts(root: Path | str, number: int = 1) -> dict[str, list[types.Artifact]]:
    """Returns the trainer's empty output artifacts, their directories made as a launcher does."""

    def made(kind: str, name: str) -> list[types.Artifact]:
        artifact = artifact_at(kind, os.path.join(root, name, str(number)))
        tf.io.gfile.makedirs(artifact.uri)
        return [artifact]

    return {
        "model": made("Model", "model"),
        "model_run": made("ModelRun", "model_run"),
        "infra_blessing": made("InfraBlessing", "blessing"),
    }


def exec_properties(**properties: Any) -> dict[str, Any]:
    """Returns execution properties as a compiled pipeline hands them to the executor."""
    custom_config = json.dumps(properties.pop("custom_config", None))
    return {"train_args": "{}", "eval_args": "{}", "custom_config": custom_config, **properties}


def train(
    module_file: str,
    examples: types.Artifact,
    outputs: dict[str, list[types.Artifact]],
    inputs: dict[str, list[types.Artifact]] | None = None,
    context: Any = None,
    **properties: Any,
) -> None:
    """Runs the executor on a module file, without an orchestrator."""
    from generic_trainer.executors import GenericTrainerExecutor

    GenericTrainerExecutor(context).Do(
        {"examples": [examples], **(inputs or {})},
        outputs,
        exec_properties(module_file=module_file, **properties),
    )


def scores_of(model: Path | str, *values: float) -> list[float]:
    """Returns what an exported model gives for examples with these values of x."""
    serve = tf.saved_model.load(str(model)).signatures["serving_default"]
    (scores,) = serve(tf.constant([example(value) for value in values])).values()
    return scores.numpy().ravel().tolist()


def published_model(outputs: dict[str, list[types.Artifact]]) -> str:
    """Returns the directory in which consumers look for the model."""
    return os.path.join(outputs["model"][0].uri, "Format-Serving")


def kept_log(outputs: dict[str, list[types.Artifact]]) -> str:
    """Returns what is kept of the output of `run_fn`."""
    return Path(outputs["model_run"][0].uri, "training.log").read_text(encoding="utf-8")
