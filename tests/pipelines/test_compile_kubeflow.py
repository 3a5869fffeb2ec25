import json
from pathlib import Path

import pytest

from pipelines.compile_kubeflow import compile_penguin, main

pytest.importorskip("kfp", reason="compiling needs kfp: GenericTrainer's extra `kfp`")

IMAGE = "registry.example/generic-trainer:0.1.0"


def test_every_step_runs_in_the_image_and_the_trainer_by_its_public_name(tmp_path: Path) -> None:
    job = compile_penguin(str(tmp_path), IMAGE)
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    containers = {
        name: each["container"] for name, each in executors.items() if "container" in each
    }
    assert {container["image"] for container in containers.values()} == {IMAGE}
    assert "Pusher_executor" in containers
    arguments = containers["GenericTrainer_executor"]["args"]
    executor = arguments[arguments.index("--executor_class_path") + 1]
    assert executor == "generic_trainer.executors.GenericTrainerExecutor"
    assert "project" not in json.dumps(job).lower()
    assert job["pipelineSpec"]["schemaVersion"] == "2.0.0"


def test_the_command_writes_the_job_of_the_newer_schema(tmp_path: Path) -> None:
    output = tmp_path / "penguin.json"
    arguments = ["--root", str(tmp_path), "--image", IMAGE, "--output", str(output)]

    assert main([*arguments, "--pipeline-spec-2-1"]) == 0
    assert json.loads(output.read_text())["pipelineSpec"]["schemaVersion"] == "2.1.0"
