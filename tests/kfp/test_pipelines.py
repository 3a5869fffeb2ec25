"""Whole pipelines, run by `kfp.local`."""

import builtins
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kfp.local.pipeline_orchestrator")  # KFP 2.5 runs single components only
from kfp import dsl, local
from kfp.local.logging_utils import MillisecondFormatter

from generic_trainer import cli
from generic_trainer.kfp import train
from pipelines import run_kfp_local

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undoes what threads of `kfp.local` leave behind: a `print` that indents, a log on stdout."""
    monkeypatch.setattr(builtins, "print", builtins.print)
    yield
    root = logging.getLogger()
    for handler in [*root.handlers]:
        if isinstance(handler.formatter, MillisecondFormatter):
            root.removeHandler(handler)


def test_a_csv_becomes_a_pushed_model(tmp_path: Path) -> None:
    assert run_kfp_local.main(["--root", str(tmp_path), "--train-steps", "60"]) == 0
    (pushed,) = (tmp_path / "serving").iterdir()
    assert cli.main(["validate", str(pushed)]) == 0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    assert cli.main(["init", str(tmp_path / "houses")]) == 0
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "artifacts"))
    return tmp_path / "houses"


def test_a_loop_trains_a_model_for_each_of_its_rounds(project: Path, tmp_path: Path) -> None:
    @dsl.pipeline(name="rounds")
    def pipeline(table: str) -> None:
        taken = run_kfp_local.take_examples(table=table)
        with dsl.ParallelFor([{"learning_rate": 0.03}, {"learning_rate": 3.0}]) as values:
            train(
                examples=taken.outputs["examples"],
                module_file=str(project / "trainer.py"),
                hyperparameters=values,
                train_steps=10,
                eval_steps=1,
            )

    pipeline(table=str(project / "data" / "houses.csv"))
    models = [*(tmp_path / "artifacts").rglob("model/variables/variables.data*")]
    assert len({model.read_bytes() for model in models}) == 2
