"""A few of the inputs of `benchmarks/input_campaign.py`; INPUTS=10000 runs it as it is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.campaign("_core", "components", "data", "executors", "user_code")
@pytest.mark.skipif(sys.platform != "linux", reason="the campaign limits its processes' memory")
def test_bad_inputs_get_clear_errors() -> None:
    inputs = os.environ.get("INPUTS", "100")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.input_campaign", "--inputs", inputs],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{inputs} inputs" in done.stdout
