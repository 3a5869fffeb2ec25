"""The list of checks."""

import re

from generic_trainer.validation import all_checks
from generic_trainer.validation._check import CHECKS as REGISTERED
from generic_trainer.validation._contract import CHECK_NAMES
from tests.validation import broken_evaluations, broken_rows

CHECKS = all_checks()
NAMES = [check.name for check in CHECKS]
# Their broken models are in test_tflite.
OF_TFLITE = {"other_formats", "format_consumers", "format_scores", "parity"}


def test_names_are_plain_and_unique_and_known_to_a_contract() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert all(re.fullmatch(r"[a-z_0-9]+", name) for name in NAMES)
    assert set(CHECK_NAMES) == set(REGISTERED)


def test_every_check_is_explained_and_needs_only_what_ran_before_it() -> None:
    for index, check in enumerate(CHECKS):
        assert re.fullmatch(r".{15,110}\.", check.summary), check
        why, _, example = check.explanation.rpartition("\n\n")
        assert len(why) > 40 and example.startswith("Example: "), check
        assert set(check.needs) <= set(NAMES[:index]), check


def test_every_check_has_a_broken_model_that_it_must_find() -> None:
    recipes = [*broken_rows.RECIPES.values(), *broken_evaluations.RECIPES.values()]
    found = {recipe.check for recipe in recipes} | {"eval_rehearsal"}
    found |= OF_TFLITE
    # The first compares and does not judge: test_base_model. The others only warn: test_quality,
    # test_outputs.
    assert set(NAMES) - found == {"base_model", "beats_constant", "outputs_utf8"}
