"""A little of each campaign; CAMPAIGNS="kills=1000 disk=240" runs them as they are meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# One command, because importing takes longer than any of them.
SMALL = "kills=3 disk=3 concurrency=4 growth=18 object_store=1"


@pytest.mark.campaign("_core", "_run", "data", "executors", "launchers", "training", "trials")
@pytest.mark.skipif(sys.platform != "linux", reason="the campaigns look into /proc")
def test_campaigns_find_no_violation(tmp_path: Path) -> None:
    campaigns = os.environ.get("CAMPAIGNS", SMALL).split()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.campaigns", *campaigns],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("no violation") == len(campaigns), done.stdout
