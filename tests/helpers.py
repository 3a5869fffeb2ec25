"""Small real parts for tests: artifacts on disk, module files, runs of the executor."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2
from tfx import types
from tfx.types import artifact_utils, standard_artifacts

from generic_trainer.executors import GenericTrainerExecutor

SCHEMA = """
    feature { name: "x" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
    feature { name: "y" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
"""

# Exports y = 2 x, in the shortest way that is still a model for every consumer.
EXPORT = """
import tensorflow as tf

class Doubler(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(self, examples):
        features = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        return {"outputs": features["x"] * self.weight}

def export(directory):
    model = Doubler()
    tf.saved_model.save(model, directory, signatures={"serving_default": model.serve})
"""


def write_module(directory: Path, source: str, name: str = "trainer.py") -> str:
    """Writes a module file, with `export` at hand, and returns its path."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXPORT + textwrap.dedent(source), encoding="utf-8")
    return str(path)


def install(site: Path, module: str, source: str, group: str, entry_point: str) -> None:
    """Writes what `pip install` leaves of a distribution of one module with one entry point."""
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry_point}\n")


def example(x: float) -> bytes:
    """Returns a serialized tf.Example with the features x and y = 2 x."""
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for name, value in {"x": x, "y": 2 * x}.items()
    }
    proto = tf.train.Example(features=tf.train.Features(feature=features))
    return proto.SerializeToString()


def write_examples(directory: Path, splits: dict[str, int] | None = None) -> types.Artifact:
    """Writes gzip TFRecords, one file per split, as ExampleGen does.

    Args:
        directory: the artifact's URI.
        splits: split name → number of examples.
    """
    splits = {"train": 32, "eval": 8} if splits is None else splits
    for split, count in splits.items():
        folder = directory / f"Split-{split}"
        folder.mkdir(parents=True)
        with tf.io.TFRecordWriter(str(folder / "data_tfrecord-00000.gz"), "GZIP") as writer:
            for index in range(count):
                writer.write(example(float(index)))
    artifact = standard_artifacts.Examples()
    artifact.uri = str(directory)
    artifact.split_names = artifact_utils.encode_split_names(list(splits))
    return artifact


def write_schema(directory: Path) -> types.Artifact:
    """Writes the schema of `write_examples`."""
    directory.mkdir(parents=True)
    (directory / "schema.pbtxt").write_text(SCHEMA, encoding="utf-8")
    return artifact_at(standard_artifacts.Schema, directory)


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
        statistics.datasets.add().num_examples = count
        (folder / "FeatureStats.pb").write_bytes(statistics.SerializeToString())
    artifact = artifact_at(standard_artifacts.ExampleStatistics, directory)
    artifact.split_names = artifact_utils.encode_split_names(list(counts))
    return artifact


def artifact_at(artifact_type: type[types.Artifact], uri: Path | str) -> types.Artifact:
    """Returns an artifact of a type that lies at a URI."""
    artifact = artifact_type()
    artifact.uri = str(uri)
    return artifact


def output_artifacts(root: Path | str, number: int = 1) -> dict[str, list[types.Artifact]]:
    """Returns the trainer's empty output artifacts, their directories made as a launcher does."""

    def uri(name: str) -> str:
        return os.path.join(root, name, str(number))

    model = artifact_at(standard_artifacts.Model, uri("model"))
    model_run = artifact_at(standard_artifacts.ModelRun, uri("model_run"))
    blessing = artifact_at(standard_artifacts.InfraBlessing, uri("blessing"))
    for artifact in (model, model_run, blessing):
        tf.io.gfile.makedirs(artifact.uri)
    return {"model": [model], "model_run": [model_run], "infra_blessing": [blessing]}


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
    GenericTrainerExecutor(context).Do(
        {"examples": [examples], **(inputs or {})},
        outputs,
        exec_properties(module_file=module_file, **properties),
    )


def published_model(outputs: dict[str, list[types.Artifact]]) -> str:
    """Returns the directory in which consumers look for the model."""
    return os.path.join(outputs["model"][0].uri, "Format-Serving")


def kept_log(outputs: dict[str, list[types.Artifact]]) -> str:
    """Returns what is kept of the output of `run_fn`."""
    return Path(outputs["model_run"][0].uri, "training.log").read_text(encoding="utf-8")
