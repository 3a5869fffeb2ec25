"""`manifest.json` and the golden outputs in it."""

import hashlib
import json
from pathlib import Path

from generic_trainer.validation import ServingContract, write_manifest
from tests.validation import models
from tests.validation.conftest import Check

CONTRACT = ServingContract(examples=models.examples(), label_keys=("tips",))


def test_a_published_model_proves_itself(check: Check, copy: Path) -> None:
    model = copy
    report = check(model, CONTRACT)
    digest = write_manifest(str(model), report)
    content = (model / "manifest.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest
    manifest = json.loads(content)
    shard = "variables/variables.data-00000-of-00001"
    expected = hashlib.sha256((model / shard).read_bytes()).hexdigest()
    assert manifest["files"][shard]["sha256"] == expected
    assert manifest["checks"]["loads"] == "pass"
    assert manifest["versions"]["tensorflow"]
    assert len(manifest["golden"]["serving_default"]["examples"]) == 3
    assert write_manifest(str(model), report) == digest
    again = check(model)
    assert again.passed, again.summary()
    assert again["manifest_matches"].status == "pass"
    assert again["golden"].message == "3 golden examples give the published outputs"


def test_any_other_format_has_one_too(check: Check, tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(b"forest")
    contract = ServingContract(format="any")
    write_manifest(str(tmp_path), check(tmp_path, contract))
    assert check(tmp_path, contract).passed
    (tmp_path / "model.pkl").write_bytes(b"tree")
    damaged = check(tmp_path, contract)
    assert [failure.name for failure in damaged.failures] == ["manifest_matches"]
