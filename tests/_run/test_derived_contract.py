"""What the contract of a run says that the user's does not."""

import dataclasses
from pathlib import Path

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
