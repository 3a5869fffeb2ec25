"""`manifest.json` and the golden outputs in it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from generic_trainer.validation import Checker, ServingContract, write_manifest
from tests.validation import models

CONTRACT = ServingContract(examples=models.examples(), label_keys=("tips",))


def test_a_published_model_proves_itself(
    checker: Checker, good_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(good_model, model)
    report = checker.validate(str(model), CONTRACT)
    digest = write_manifest(str(model), report)
    content = (model / "manifest.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest
    manifest = json.loads(content)
    shard = "variables/variables.data-00000-of-00001"
    assert (
        manifest["files"][shard]["sha256"]
        == hashlib.sha256((model / shard).read_bytes()).hexdigest()
    )
    assert manifest["checks"]["loads"] == "pass"
    assert manifest["versions"]["tensorflow"]
    assert len(manifest["golden"]["serving_default"]["examples"]) == 3
    again = checker.validate(str(model))
    assert again.passed, again.summary()
    assert again["manifest_matches"].status == "pass"
    assert again["golden"].message == "3 golden examples give the published outputs"


def test_writing_twice_gives_the_same(checker: Checker, good_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(good_model, model)
    report = checker.validate(str(model), CONTRACT)
    assert write_manifest(str(model), report) == write_manifest(str(model), report)


def test_any_other_format_has_one_too(checker: Checker, tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(b"forest")
    contract = ServingContract(format="any")
    write_manifest(str(tmp_path), checker.validate(str(tmp_path), contract))
    assert checker.validate(str(tmp_path), contract).passed
    (tmp_path / "model.pkl").write_bytes(b"tree")
    damaged = checker.validate(str(tmp_path), contract)
    assert [failure.name for failure in damaged.failures] == ["manifest_matches"]
