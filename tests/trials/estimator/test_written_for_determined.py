"""Files written for Determined run with nothing but their import lines changed."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.trials._scripts.job import run_experiment
from generic_trainer.trials._trial import chosen_class

FILES = Path(__file__).with_name("written_for_determined")
IMPORTS = {
    "import tensorflow as tf": "from generic_trainer.estimator import tf",
    "import determined as det": "import generic_trainer.trials as det",
    "from determined.estimator import": "from generic_trainer.trials.estimator import",
    "from determined import": "from generic_trainer.trials import",
}


@pytest.fixture
def ported(tmp_path):
    """Returns a function that writes a file with its import lines changed."""

    def port(name: str) -> Path:
        lines = (FILES / f"{name}.py").read_text().splitlines()
        for old, new in IMPORTS.items():
            lines = [
                new + line.removeprefix(old) if line.startswith(old) else line for line in lines
            ]
        path = tmp_path / f"{name}.py"
        path.write_text("\n".join(lines))
        return path

    return port


def trial_class(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return chosen_class(module, None)


@pytest.fixture(autouse=True)
def forget_modules():
    before = set(sys.modules)
    yield
    for name in {"strokes", "wines"} & (set(sys.modules) - before):
        del sys.modules[name]


def test_a_convolutional_model(ported, run_experiment, tmp_path):
    config = {
        "hyperparameters": {
            "global_batch_size": 64,
            "learning_rate": 5e-3,
            "filters": 8,
            "dropout": 0.2,
        },
        "min_validation_period": {"batches": 60},
        "searcher": {"metric": "loss", "max_length": {"batches": 120}},
    }
    [trial] = run_experiment(trial_class(ported("strokes")), config)
    training = [entry["training"] for entry in trial["history"] if "training" in entry]
    assert training[0].keys() == {"loss", "right", "rate"}
    last = trial["history"][-1]["validation"]
    assert last["accuracy"] > 0.5
    assert last["share"] == pytest.approx(last["accuracy"])
    assert last["global_step"] == 120
    saved = tf.saved_model.load(str(tmp_path / "Format-Serving"))
    assert "serving_default" in saved.signatures


def test_feature_columns(ported, run_experiment, tmp_path):
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
    [trial] = run_experiment(trial_class(ported("wines")), config)
    assert trial["best"] > 0.7
    saved = tf.saved_model.load(str(tmp_path / "Format-Serving"))
    assert "predict" in saved.signatures


def test_a_script(ported, tmp_path, monkeypatch, capsys):
    path = ported("species_script")
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


def test_a_trial_that_its_script_creates(ported):
    runpy.run_path(str(ported("strokes")), run_name="__main__")
