"""A few of the rounds of `benchmarks/resume_campaign.py`; ROUNDS=391 runs all combinations, and
SEED=1 others.
"""

import os

import pytest

from benchmarks import resume_campaign
from benchmarks.resume_campaign import COPIED, IN_PROCESS, TWO_FITS

ROUNDS = os.environ.get("ROUNDS", "4")
SEED = os.environ.get("SEED", "3")
NEW = ["own optimizers", "own variables", "adapted", TWO_FITS, COPIED]


@pytest.mark.campaign("data", "training")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", ROUNDS],
        *(["--rounds", "2", "--kind", kind, "--launcher", IN_PROCESS] for kind in NEW),
    ],
    ids=" ".join,
)
def test_fits_that_are_ended_at_random_equal_those_that_are_not(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    status = resume_campaign.main([*arguments, "--seed", SEED])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert f"{arguments[1]} rounds" in printed
