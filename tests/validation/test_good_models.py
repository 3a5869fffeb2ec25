"""Good models of every kind pass, without a contract and with one, and without a false alarm."""

from pathlib import Path

import pytest

from generic_trainer.validation import ServingContract
from tests.validation import models
from tests.validation.broken_rows import SCHEMA, TRANSFORMED
from tests.validation.conftest import Check
from tests.validation.good import RECIPES

CONTRACT = ServingContract(
    examples=models.examples(100),
    schema=SCHEMA,
    transform_graph=TRANSFORMED.transform_graph,
    label_keys=("tips",),
    consumers=("Evaluator",),
)
# Signatures that take tensors instead of serialized examples: said, and no more than that.
TAKE_TENSORS = {
    "keras_2_save", "keras_3_export", "no_variables", "images_in_half_precision",
    "branches_and_loops",
}  # fmt: skip
# Padded to the longest row, so that a row alone has another shape.
PADDED = {"sequences_padded_to_the_longest"}


@pytest.mark.parametrize("name", RECIPES)
def test_passes(name: str, check: Check, tmp_path: Path) -> None:
    make, _ = RECIPES[name]
    make(tmp_path / "model")
    plain = check(tmp_path / "model")
    assert plain.passed, plain.summary()
    allowed = {"row_independence"} if name in PADDED else set()
    assert {result.name for result in plain.warnings} == allowed
    strict = check(tmp_path / "model", CONTRACT)
    assert strict.passed, strict.summary()
    # An Evaluator feeds inputs by the names of features, which these are not.
    expected = {"serialized_input", "schema_features"} if name in TAKE_TENSORS else set()
    assert {result.name for result in strict.warnings} - {"row_independence"} == expected
