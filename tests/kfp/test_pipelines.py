"""Whole pipelines, run by `kfp.local`."""

from pathlib import Path

import pytest

pytest.importorskip("kfp.local.pipeline_orchestrator")  # KFP 2.5 runs single components only
from kfp import dsl, local

from generic_trainer import cli
from generic_trainer.kfp import train
from pipelines import run_kfp_local

pytestmark = pytest.mark.slow


def test_a_csv_becomes_a_pushed_model(tmp_path: Path) -> None:
    assert run_kfp_local.main(["--root", str(tmp_path), "--train-steps", "60"]) == 0
    (pushed,) = (tmp_path / "serving").iterdir()
    assert cli.main(["validate", str(pushed)]) == 0


@dsl.component
def note(path: str) -> None:
    open(path, "w").close()


def test_a_loop_trains_several_models_and_an_exit_handler_follows_a_failure(tmp_path: Path) -> None:
    project = tmp_path / "houses"
    assert cli.main(["init", str(project)]) == 0
    # The second round of the loop fails: its learning rate is text.
    rounds = [{"learning_rate": 0.03}, {"learning_rate": "fast"}]

    @dsl.pipeline(name="rounds")
    def pipeline(table: str, end: str) -> None:
        with dsl.ExitHandler(note(path=end)):
            taken = run_kfp_local.take_examples(table=table)
            with dsl.ParallelFor(rounds) as hyperparameters:
                train(
                    examples=taken.outputs["examples"],
                    module_file=str(project / "trainer.py"),
                    hyperparameters=hyperparameters,
                    train_steps=10,
                    eval_steps=1,
                )

    root = tmp_path / "artifacts"
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(root))
    with pytest.raises(RuntimeError, match=r"FAILURE|failed"):
        pipeline(table=str(project / "data" / "houses.csv"), end=str(tmp_path / "end"))
    assert (tmp_path / "end").exists()
    assert len(list(root.rglob("model/saved_model.pb"))) == 1
