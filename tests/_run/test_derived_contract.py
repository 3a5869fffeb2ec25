"""What the contract of a run says that the user's does not."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from generic_trainer import ServingContract
from generic_trainer._run.derived_contract import derived_contract
from generic_trainer.launchers import ExamplesFormat
from generic_trainer.user_code import bundle_module_file
from tests import helpers
from tests._run.test_run_key import request_in

LINKED = b"\x7fELF ... libtensorflow_framework.so.2 ..."


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, with a package of ops and one of others."""
    folder = tmp_path / "site-packages"
    for package, library in {"my_ops": LINKED, "other": b"\x7fELF", "empty": b""}.items():
        (folder / package / "lib").mkdir(parents=True)
        (folder / package / "__init__.py").write_text("raise AssertionError('imported')")
        (folder / package / "lib" / "ops.so").write_bytes(library)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return folder


def test_packages_that_may_register_ops_are_found_among_imports(
    site_packages: Path, tmp_path: Path
) -> None:
    helper = "def tokenize():\n    import my_ops, json\n"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper.py").write_text(helper)
    module_file = tmp_path / "code" / "trainer.py"
    module_file.write_text("import helper, other, empty, nowhere\ndef run_fn(fn_args): ...\n")
    code = bundle_module_file(str(module_file), str(tmp_path / "bundle"))
    # Other than tf.Examples: nothing is read from them.
    request = request_in(tmp_path, user_code=code, examples_format=ExamplesFormat(0))
    assert derived_contract(request).op_libraries == ("my_ops",)
    named = dataclasses.replace(request, contract=ServingContract(op_libraries=("mine",)))
    assert derived_contract(named).op_libraries == ("mine",)


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
