"""The penguin pipeline with two workers of Keras 3 on two nodes, to a blessed model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipelines import run_local
from pipelines._results import last_run
from tests.pipelines.penguin_run import with_output

pytestmark = pytest.mark.campaign("launchers")

MODULE_FILE = Path(__file__).parent.parent.parent.parent / "module_files/penguin_multi_worker.py"


def test_two_workers_train_to_a_blessed_model(ray_nodes: Any, tmp_path: Path) -> None:
    distribution = {
        "launcher": "ray",
        "num_workers": 2,
        "env": {"TF_USE_LEGACY_KERAS": "0"},
        "max_failures": 0,
    }
    arguments = ["--runs-dir", str(tmp_path), "--train-steps", "100"]
    arguments += ["--module-file", str(MODULE_FILE), "--distribution", json.dumps(distribution)]
    exit_code, output = with_output(lambda: run_local.main(arguments))
    assert exit_code == 0, output
    folder = tmp_path / "penguin"
    assert last_run(str(folder / "metadata.db")).blessed
    for worker in ("worker 0", "worker 1"):
        assert re.search(rf"\({worker} pid=.*\) Training on 2 replicas\.", output)
    assert not list(folder.glob("artifacts/GenericTrainer/.checkpoints/*/*"))
