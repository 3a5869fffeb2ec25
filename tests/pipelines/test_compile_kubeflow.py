from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.compile_kubeflow import compile_penguin, main

pytest.importorskip("kfp", reason="compiling needs kfp: GenericTrainer's extra `kfp`")

IMAGE = "registry.example/generic-trainer:0.1.0"


def containers(job: dict[str, Any]) -> dict[str, Any]:
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    return {name: spec["container"] for name, spec in executors.items() if "container" in spec}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return compile_penguin(str(tmp_path_factory.mktemp("bucket")), IMAGE)


def test_every_step_runs_in_the_image(job: dict[str, Any]) -> None:
    assert {container["image"] for container in containers(job).values()} == {IMAGE}
    assert "Pusher_executor" in containers(job)


def test_the_trainer_step_names_the_public_executor(job: dict[str, Any]) -> None:
    arguments = containers(job)["GenericTrainer_executor"]["args"]

    executor = arguments[arguments.index("--executor_class_path") + 1]
    assert executor == "generic_trainer.executors.GenericTrainerExecutor"


def test_the_job_names_neither_project_nor_region(job: dict[str, Any]) -> None:
    assert "project" not in json.dumps(job).lower()
    assert job["pipelineSpec"]["schemaVersion"] == "2.0.0"


def test_the_command_writes_the_job_of_the_newer_schema(tmp_path: Path) -> None:
    output = tmp_path / "penguin.json"
    arguments = ["--root", str(tmp_path), "--image", IMAGE, "--output", str(output)]

    assert main([*arguments, "--pipeline-spec-2-1"]) == 0
    assert json.loads(output.read_text())["pipelineSpec"]["schemaVersion"] == "2.1.0"
