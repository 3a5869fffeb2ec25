"""`generic-trainer publish`, called as a user calls it."""

import importlib
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer import cli
from generic_trainer._core.keras import is_keras_3
from tests import helpers

# Trains a weight of 3, and exports it under a name that nobody calls.
TRAINS = """
import os
from generic_trainer import training

def run_fn(fn_args):
    print("trained")
    with training.CheckpointManager(fn_args.checkpoint_dir) as manager:
        model = Doubler()
        model.weight.assign(3.0)
        manager.save_objects(1, {"model": model})
    signatures = {"predict": model.serve}
    tf.saved_model.save(model, fn_args.serving_model_dir, signatures=signatures)
"""
REPAIRED = """
from generic_trainer import training

def run_fn(fn_args):
    raise AssertionError("trained anew")

def export_fn(fn_args):
    model = Doubler()
    with training.CheckpointManager(fn_args.checkpoint_dir, writes=False) as manager:
        manager.restore_objects({"model": model})
    signatures = {"serving_default": model.serve}
    tf.saved_model.save(model, fn_args.serving_model_dir, signatures=signatures)
"""


class Runs:
    """Runs of one module file into one directory, of which the first has failed its check."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self._data = root, data
        self.contract = root / "contract.yaml"
        self.contract.write_text("signatures: [serving_default]")
        self.corrected = root / "corrected.yaml"
        self.corrected.write_text("signatures: [predict]")
        self.module_file = helpers.write_module(root, TRAINS)
        self.kept = root / "runs" / "model_run" / "1.failed"

    def run(self) -> int:
        words = ["--examples", self._data, "--output", self.root / "runs"]
        words += ["--contract", self.contract]
        return cli.main(["run", self.module_file, *map(str, words)])

    def publish(self, *words: object) -> int:
        return cli.main(["publish", str(self.kept), *map(str, words)])

    def model(self, number: int, output: str = "runs") -> Path:
        return self.root / output / "model" / str(number) / "Format-Serving"


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns what a failed run leaves, and the examples that it read."""
    root = tmp_path_factory.mktemp("publish")
    helpers.write_examples(root / "data")
    runs = Runs(root, root / "data")
    assert runs.run() == 126
    return root / "runs", root / "data"


@pytest.fixture
def runs(failed: tuple[Path, Path], tmp_path: Path) -> Runs:
    shutil.copytree(failed[0], tmp_path / "runs")
    return Runs(tmp_path, failed[1])


def test_another_contract(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.publish() == 1
    assert "FAILED" in capsys.readouterr().out

    assert runs.publish("--contract", runs.corrected) == 0
    assert "PASSED" in capsys.readouterr().out
    assert runs.kept.exists()


@pytest.mark.slow
def test_a_repaired_export_from_the_checkpoint(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired = helpers.write_module(tmp_path / "repaired", REPAIRED)
    with monkeypatch.context() as patch:  # another shell, in which the pipeline does not run
        other = importlib.import_module("tf_keras" if is_keras_3() else "keras")
        patch.setattr(tf, "keras", other)
        assert runs.publish("--module-file", repaired) == 0
    runs.module_file = repaired
    assert runs.run() == 0
    assert helpers.scores_of(runs.model(2), 1.0) == [3.0]
    assert not any((runs.root / "runs" / ".checkpoints").iterdir())


def test_publishing_at_once(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--contract", runs.corrected, "--output", tmp_path / "out"]
    assert runs.publish(*words) == 0
    assert (runs.model(1, "out") / "manifest.json").is_file()
    assert (tmp_path / "out" / "model_run" / "1" / "report.json").is_file()
    assert not runs.kept.exists()
    assert runs.publish() == 2
    assert "does not exist" in capsys.readouterr().err


def test_examples_of_a_csv_file_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x,company\n" + "".join(f"{row}.5,a\n" for row in range(30)))
    runs = Runs(tmp_path, table)
    assert runs.run() == 126
    capsys.readouterr()
    assert runs.publish("--contract", runs.corrected) == 1
    shown = capsys.readouterr().err
    assert "examples of the run are gone" in shown and "Split-eval/*" in shown
    runs.contract = runs.corrected  # what the message advises
    assert runs.run() == 0 and runs.model(2).exists(), capsys.readouterr().err
    assert "trained\n" not in capsys.readouterr().out
