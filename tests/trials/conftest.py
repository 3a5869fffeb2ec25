"""Runs experiments without a pipeline around them."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.trials import run_fn_from_trial


@pytest.fixture
def run_experiment(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that runs an experiment and returns what `trials.json` says."""

    def run(trial_class: type, config: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        run_fn_from_trial(trial_class)(make_fn_args(tmp_path, custom_config=config, **fields))
        return json.loads((tmp_path / "run" / "trials.json").read_text())

    return run


def make_fn_args(directory: Path, **fields: Any) -> Any:
    """Returns what `run_fn` needs of its argument."""
    (directory / "run").mkdir(exist_ok=True)
    return types.SimpleNamespace(
        **{
            "hyperparameters": None,
            "schema_path": None,
            "transform_graph_path": None,
            "model_run_dir": str(directory / "run"),
            "checkpoint_dir": str(directory / "checkpoints"),
            "serving_model_dir": str(directory / "Format-Serving"),
            **fields,
        }
    )
