"""Artifacts of TFX on disk, as a pipeline would hand them to a trainer's executor."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf
from tfx import types
from tfx.types import artifact_utils, standard_artifacts

__all__ = [
    "SCHEMA",
    "artifact_at",
    "exec_properties",
    "output_artifacts",
    "write_examples",
]

# Of the examples that `write_examples` writes.
SCHEMA = """
    feature { name: "x" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
    feature { name: "y" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
"""


def write_examples(directory: Path) -> types.Artifact:
    """Writes 32 examples to train on and 8 to evaluate on, of features x and y = 2 x."""
    splits = {"train": 32, "eval": 8}
    for split, count in splits.items():
        folder = directory / f"Split-{split}"
        folder.mkdir(parents=True)
        with tf.io.TFRecordWriter(str(folder / "data_tfrecord-00000.gz"), "GZIP") as writer:
            for number in range(count):
                writer.write(_example({"x": float(number), "y": 2.0 * number}))
    artifact = artifact_at(standard_artifacts.Examples, directory)
    artifact.split_names = artifact_utils.encode_split_names(list(splits))
    return artifact


def artifact_at(artifact_type: type[types.Artifact], uri: Path | str) -> types.Artifact:
    """Returns an artifact of a type that lies at a URI."""
    artifact = artifact_type()
    artifact.uri = str(uri)
    return artifact


def output_artifacts(root: Path) -> dict[str, list[types.Artifact]]:
    """Returns the trainer's empty output artifacts, their directories made as a launcher does."""
    outputs = {
        "model": [artifact_at(standard_artifacts.Model, root / "model" / "1")],
        "model_run": [artifact_at(standard_artifacts.ModelRun, root / "model_run" / "1")],
        "infra_blessing": [artifact_at(standard_artifacts.InfraBlessing, root / "blessing" / "1")],
    }
    for [artifact] in outputs.values():
        os.makedirs(artifact.uri)
    return outputs


def exec_properties(custom_config: Any = None, **properties: Any) -> dict[str, Any]:
    """Returns execution properties as a compiled pipeline hands them to the executor."""
    defaults = {"train_args": "{}", "eval_args": "{}", "custom_config": json.dumps(custom_config)}
    return {**defaults, **properties}


def _example(values: dict[str, float]) -> bytes:
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for name, value in values.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
