"""What the contract of a run says that the user's does not."""

import dataclasses
from pathlib import Path

import pytest

from generic_trainer._run.contract import derived_contract
from tests import helpers
from tests._run.test_run_key import request_in


def test_raw_examples_are_those_that_the_transform_graph_was_made_from(tmp_path: Path) -> None:
    raw, gone, transformed = (tmp_path / name for name in ("raw", "gone", "transformed"))
    for folder in (raw, transformed):
        helpers.write_examples(folder)
    schema = tmp_path / "graph" / "transformed_metadata" / "schema.pbtxt"
    schema.parent.mkdir(parents=True)
    schema.write_text(helpers.SCHEMA)
    request = request_in(
        tmp_path,
        eval_files=(f"{transformed}/Split-eval/*",),
        transform_graph_path=str(tmp_path / "graph"),
    )
    contract = derived_contract(request)
    assert contract.examples == request.eval_files[0]
    assert contract.examples_transformed
    request = dataclasses.replace(request, raw_examples=(str(gone), str(raw)))
    contract = derived_contract(request)
    assert contract.examples == f"{raw}/Split-eval/*"
    assert not contract.examples_transformed
    request = dataclasses.replace(request, extra_inputs={"raw_examples": (str(gone),)})
    assert derived_contract(request).examples == f"{gone}/Split-eval/*"  # as the user has said
    optional = dataclasses.replace(request, extra_inputs={"raw_examples": ()})
    assert derived_contract(optional).examples == f"{raw}/Split-eval/*"


def test_the_first_eval_split_that_has_rows_is_scored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    helpers.write_examples(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "data").write_bytes(b"")
    patterns = f"{tmp_path}/empty/*", f"{tmp_path}/full/Split-eval/*"
    assert derived_contract(request_in(tmp_path, eval_files=patterns)).examples == patterns[1]
    assert derived_contract(request_in(tmp_path, eval_files=patterns[:1])).examples is None
    assert "empty/* has no examples" in caplog.text


# Types of `x` and `y` in the schema of the transformed examples; both are floats in the examples.
TRANSFORMED = {
    "FLOAT FLOAT": True,
    "FLOAT TYPE_UNKNOWN": True,
    "FLOAT INT": False,
    "BYTES FLOAT": False,
}


@pytest.mark.parametrize("types", TRANSFORMED)
def test_raw_features_can_have_the_names_of_transformed_ones(types: str, tmp_path: Path) -> None:
    helpers.write_examples(tmp_path / "examples")
    schema = tmp_path / "graph" / "transformed_metadata" / "schema.pbtxt"
    schema.parent.mkdir(parents=True)
    named = zip("xy", types.split(), strict=True)
    schema.write_text("".join(f"feature {{ name: '{n}' type: {kind} }}" for n, kind in named))
    request = request_in(
        tmp_path,
        eval_files=(f"{tmp_path}/examples/Split-eval/*",),
        transform_graph_path=str(tmp_path / "graph"),
    )
    assert derived_contract(request).examples_transformed == TRANSFORMED[types]
    # Of the same dtypes too: the graph was made from these examples.
    known = dataclasses.replace(request, raw_examples=(f"{tmp_path}/examples",))
    assert not derived_contract(known).examples_transformed
