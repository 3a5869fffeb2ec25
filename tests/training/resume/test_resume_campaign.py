"""A few of the rounds of `benchmarks/resume_campaign.py`; ROUNDS=144 runs all combinations."""

from __future__ import annotations

import os

import pytest

from benchmarks import resume_campaign


@pytest.mark.slow
def test_fits_that_are_ended_at_random_equal_those_that_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = os.environ.get("ROUNDS", "4")
    status = resume_campaign.main(["--rounds", rounds, "--seed", "3"])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert f"{rounds} rounds" in printed
