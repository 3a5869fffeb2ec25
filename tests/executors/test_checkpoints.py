"""The checkpoints of a run outlive its failure, and not its success."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tfx import types

from generic_trainer.errors import TrainingError
from tests import helpers

MODULE = """
import os

def run_fn(fn_args):
    path = os.path.join(fn_args.checkpoint_dir, "progress")
    if not os.path.exists(path):
        open(path, "w").close()
        raise RuntimeError("killed in mid-epoch")
    export(fn_args.serving_model_dir)
"""


def after_a_failed_run(examples: types.Artifact, outputs: Any, folder: Path) -> tuple[str, Path]:
    """Returns the module of a run that was killed in mid-epoch, and the node's checkpoints."""
    module_file = helpers.write_module(folder / "code", MODULE)
    with pytest.raises(TrainingError, match="killed in mid-epoch"):
        helpers.train(module_file, examples, outputs)
    return module_file, Path(outputs["model_run"][0].uri).parent.parent / ".checkpoints"


def test_a_retry_finds_what_the_failed_run_saved(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    module_file, checkpoints = after_a_failed_run(examples, outputs, tmp_path)
    assert [path.name for path in checkpoints.glob("*/progress")] == ["progress"]
    helpers.train(module_file, examples, outputs)
    assert Path(helpers.published_model(outputs)).is_dir()
    assert list(checkpoints.iterdir()) == []


def test_checkpoints_stay_for_another_run_that_is_at_work_there(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    module_file, checkpoints = after_a_failed_run(examples, outputs, tmp_path)
    [directory] = checkpoints.iterdir()
    command = ["flock", str(directory / ".lock"), "sh", "-c", "echo held; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other_run:
        assert other_run.stdout is not None and other_run.stdout.readline() == b"held\n"
        helpers.train(module_file, examples, outputs)
        assert (directory / "progress").exists()
        other_run.communicate()
    helpers.train(module_file, examples, outputs)
    assert list(checkpoints.iterdir()) == []


def test_what_cannot_be_deleted_does_not_fail_a_published_run(
    examples: types.Artifact,
    outputs: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module_file = helpers.write_module(
        tmp_path / "code", "def run_fn(fn_args):\n    export(fn_args.serving_model_dir)\n"
    )
    delete = tf.io.gfile.rmtree

    def delete_no_checkpoints(path: str) -> None:
        if ".checkpoints" in path:
            raise tf.errors.PermissionDeniedError(None, None, "read-only")
        delete(path)

    monkeypatch.setattr(tf.io.gfile, "rmtree", delete_no_checkpoints)
    helpers.train(module_file, examples, outputs)
    assert Path(helpers.published_model(outputs)).is_dir()
    assert "could not be deleted: read-only" in caplog.text
