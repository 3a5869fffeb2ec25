"""Trains a module file on the artifacts of the penguin pipeline, without running it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tfx import types
from tfx.types import artifact_utils, standard_artifacts

from generic_trainer import Distribution
from generic_trainer.executors import GenericTrainerExecutor
from pipelines._results import RunResults

MODULE_FILES = Path(__file__).resolve().parents[2] / "module_files"
TRAIN_STEPS = 100


@dataclass(frozen=True)
class Inputs:
    """URIs of what a trainer reads; small enough to hand to another process."""

    examples: str
    transform_graph: str
    schema: str

    @classmethod
    def of(cls, results: RunResults) -> Inputs:
        """Returns the inputs that the trainer of a run had."""
        uri = results.uri
        return cls(uri("transformed_examples"), uri("transform_graph"), uri("schema"))


def train_module(
    module: str,
    inputs: Inputs,
    folder: Path,
    base_model: str | None = None,
    distribution: Distribution | None = None,
) -> types.Artifact:
    """Trains ``module_files/<module>.py`` and returns its Model artifact."""
    input_dict = {
        "examples": [_examples(inputs.examples)],
        "transform_graph": [_artifact(standard_artifacts.TransformGraph, inputs.transform_graph)],
        "schema": [_artifact(standard_artifacts.Schema, inputs.schema)],
    }
    if base_model:
        input_dict["base_model"] = [_artifact(standard_artifacts.Model, base_model)]
    outputs = {
        "model": [_artifact(standard_artifacts.Model, str(folder / "model"))],
        "model_run": [_artifact(standard_artifacts.ModelRun, str(folder / "model_run"))],
    }
    for artifacts in outputs.values():
        Path(artifacts[0].uri).mkdir(parents=True)
    properties = {
        "module_file": str(MODULE_FILES / f"{module}.py"),
        "train_args": json.dumps({"num_steps": TRAIN_STEPS}),
        "eval_args": json.dumps({"num_steps": 5}),
        "custom_config": "null",
        "distribution": (distribution or Distribution()).to_json(),
    }
    GenericTrainerExecutor().Do(input_dict, outputs, properties)
    return outputs["model"][0]


def _artifact(artifact_type: type[types.Artifact], uri: str) -> types.Artifact:
    artifact = artifact_type()
    artifact.uri = uri
    return artifact


def _examples(uri: str) -> types.Artifact:
    examples = _artifact(standard_artifacts.Examples, uri)
    examples.split_names = artifact_utils.encode_split_names(["train", "eval"])
    return examples
