"""A little of each campaign of `benchmarks`.

INPUTS=10000 and CAMPAIGNS="kills=1000 disk=240" run them as they are meant; SEED=1 with others.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.house import run_python

# One command, because importing takes longer than any of them.
SMALL = "kills=3 disk=3 concurrency=4 growth=18 object_store=1"
SEEDED = "--seed", os.environ.get("SEED", "0")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the campaigns look into /proc and limit their memory"
)


def output_of(module: str, *words: str, **environment: str) -> str:
    return run_python("-W", "ignore", "-m", f"benchmarks.{module}", *words, **environment).stdout


@pytest.mark.campaign("_core", "components", "data", "executors", "user_code")
def test_bad_inputs_get_clear_errors() -> None:
    inputs = os.environ.get("INPUTS", "100")
    assert f"{inputs} inputs" in output_of("input_campaign", "--inputs", inputs, *SEEDED)


@pytest.mark.campaign("_core", "_run", "data", "executors", "launchers", "training", "trials")
def test_campaigns_find_no_violation(tmp_path: Path) -> None:
    campaigns = os.environ.get("CAMPAIGNS", SMALL).split()
    output = output_of("campaigns", *campaigns, *SEEDED, TMPDIR=str(tmp_path))
    assert output.count("no violation") == len(campaigns), output
