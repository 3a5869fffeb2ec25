"""The list of checks."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from generic_trainer import cli
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation import ServingContract, _check, all_checks
from generic_trainer.validation._check import CHECKS as REGISTERED
from tests.validation import broken_evaluations, broken_rows

CHECKS = all_checks()
NAMES = [check.name for check in CHECKS]
# Their broken models are in test_tflite.
OF_TFLITE = {"other_formats", "format_consumers", "format_scores", "parity"}


def test_names_are_plain_and_unique_and_registered() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert all(re.fullmatch(r"[a-z_0-9]+", name) for name in NAMES)
    assert set(NAMES) == set(REGISTERED)  # an `after` of an unknown check would lose one


def test_registering_a_check_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    @_check.check(needs="scores")
    def no_drift(model: Any) -> Iterator[_check.Finding]:
        """The scores are those of last week."""
        yield from ()

    try:
        assert [known.name for known in all_checks()] == [*NAMES, "no_drift"]
        ServingContract(severities={"no_drift": "warn"})
        assert cli.main(["explain", "no_drift"]) == 0
        assert "The scores are those of last week." in capsys.readouterr().out
    finally:
        del REGISTERED["no_drift"]
    with pytest.raises(ConfigurationError, match="no_drift"):
        ServingContract(severities={"no_drift": "warn"})


def test_every_check_is_explained_and_needs_only_what_ran_before_it() -> None:
    for index, check in enumerate(CHECKS):
        assert re.fullmatch(r".{15,110}\.", check.summary), check
        why, _, example = check.explanation.rpartition("\n\n")
        assert len(why) > 40 and example.startswith("Example: "), check
        assert set(check.needs) <= set(NAMES[:index]), check


def test_every_check_has_a_broken_model_that_it_must_find() -> None:
    recipes = [*broken_rows.RECIPES.values(), *broken_evaluations.RECIPES.values()]
    found = {recipe.check for recipe in recipes} | {"eval_rehearsal"}
    found |= {"bulk_inference"}  # test_consumers
    found |= OF_TFLITE
    # The first compares and does not judge: test_base_model. The others only warn: test_quality,
    # test_outputs.
    assert set(NAMES) - found == {"base_model", "beats_constant", "outputs_utf8"}
