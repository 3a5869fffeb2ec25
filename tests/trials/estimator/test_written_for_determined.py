"""Files written for Determined run with nothing but their import lines changed."""

import json
import runpy
import sys
from pathlib import Path

import tensorflow as tf

from generic_trainer.trials._scripts.job import run_experiment
from tests.trials.conftest import ported, run_module_file, trials_of

FILES = Path(__file__).with_name("written_for_determined")


def written(name: str, directory: Path) -> Path:
    return ported(FILES / f"{name}.py", directory, tensorflow="tf")


def test_feature_columns(tmp_path):
    config = {
        "hyperparameters": {
            "global_batch_size": 32,
            "learning_rate": 0.1,
            "hidden_units": {"type": "const", "val": [32, 16]},
            "dropout": 0.1,
        },
        "searcher": {
            "metric": "accuracy",
            "smaller_is_better": False,
            "max_length": {"batches": 100},
        },
    }
    fn_args = run_module_file(written("wines", tmp_path), custom_config=config)
    [trial] = trials_of(fn_args)
    assert trial["best"] > 0.7
    saved = tf.saved_model.load(fn_args.serving_model_dir)
    assert "predict" in saved.signatures


def test_a_script(tmp_path, monkeypatch, capsys):
    path = written("species_script", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "12"])
    runpy.run_path(str(path), run_name="__main__")
    assert "trained 12" in capsys.readouterr().out

    config = {
        "hyperparameters": {"global_batch_size": 30, "learning_rate": 0.05},
        "searcher": {"metric": "accuracy", "max_length": {"batches": 50}},
    }
    run_experiment([str(path), "12"], config, str(tmp_path / "results"))
    assert "trained" not in capsys.readouterr().out  # the script ended where it would train
    [trial] = json.loads((tmp_path / "results" / "model_run" / "trials.json").read_text())
    assert trial["history"][-1]["validation"]["global_step"] == 50
