"""A few of the kills of `benchmarks/kill_campaign.py`; KILLS=200 runs it as it is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the campaign looks into /proc")
def test_random_kills_leave_whole_models_that_equal_the_uninterrupted_one() -> None:
    kills = os.environ.get("KILLS", "8")
    arguments = ["--kills", kills] if int(kills) >= 50 else ["--kills", kills, "--only", "loop"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "benchmarks/kill_campaign.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no violation" in done.stdout
