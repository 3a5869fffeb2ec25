"""Trains a module file on the artifacts of the penguin pipeline, without running it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tfx import types

from generic_trainer import Distribution
from pipelines._results import RunResults
from tests.helpers import artifact_at, output_artifacts, train

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
    others = {
        "transform_graph": [artifact_at("TransformGraph", inputs.transform_graph)],
        "schema": [artifact_at("Schema", inputs.schema)],
    }
    if base_model:
        others["base_model"] = [artifact_at("Model", base_model)]
    outputs = output_artifacts(folder)
    train(
        str(MODULE_FILES / f"{module}.py"),
        artifact_at("Examples", inputs.examples, ("train", "eval")),
        outputs,
        others,
        train_args=json.dumps({"num_steps": TRAIN_STEPS}),
        eval_args=json.dumps({"num_steps": 5}),
        distribution=(distribution or Distribution()).to_json(),
    )
    return outputs["model"][0]
