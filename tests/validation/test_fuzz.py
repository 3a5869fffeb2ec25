"""Random byte edits: the validator never crashes or hangs, and passes no changed prediction.

`FUZZ_EDITS=3000` makes a longer run than the default.
"""

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.validation import Checker, ValidationReport, write_manifest
from tests.validation import models
from tests.validation.broken_files import SHARD

EDITS = int(os.environ.get("FUZZ_EDITS", "200"))
# Without a manifest, an asset is the one part of a model that nothing else vouches for.
WITHOUT_MANIFEST = ("saved_model.pb", "fingerprint.pb", "variables/variables.index", SHARD)


def _damage(content: bytearray, generator: random.Random) -> None:
    start = generator.randrange(len(content))
    noise = generator.randbytes(generator.randint(1, 16))
    kind = generator.choice(["flip", "flip", "overwrite", "cut", "remove", "insert"])
    if kind == "flip":
        content[start] ^= 1 << generator.randrange(8)
        return
    end = {"insert": start, "cut": len(content)}.get(kind, start + len(noise))
    content[start:end] = noise if kind in ("overwrite", "insert") else b""


def predictions(model: Path) -> np.ndarray:
    loaded = tf.saved_model.load(str(model)).signatures["serving_default"]
    return loaded(tf.constant(models.examples(20)))["score"].numpy()


def edited(model: Path, folder: Path, name: str, generator: random.Random) -> Path:
    copied = folder / "edited"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(model, copied)
    content = bytearray((copied / name).read_bytes())
    _damage(content, generator)
    (copied / name).write_bytes(bytes(content))
    return copied


@pytest.mark.campaign("validation")
def test_no_edit_of_predictions_passes(checker: Checker, good_model: Path, tmp_path: Path) -> None:
    generator = random.Random(7)
    expected = predictions(good_model)
    passed = 0
    for _ in range(EDITS):
        name = generator.choice(WITHOUT_MANIFEST)
        copied = edited(good_model, tmp_path, name, generator)
        if checker.validate(str(copied)).passed:
            passed += 1
            np.testing.assert_array_equal(predictions(copied), expected, err_msg=name)
    assert passed < EDITS / 2


@pytest.mark.campaign("validation")
def test_no_edit_once_published_passes(checker: Checker, good_model: Path, tmp_path: Path) -> None:
    published = tmp_path / "published"
    shutil.copytree(good_model, published)
    write_manifest(str(published), ValidationReport(str(published), ()))
    names = [str(p.relative_to(published)) for p in published.rglob("*") if p.is_file()]
    names.remove("manifest.json")
    generator = random.Random(8)
    for _ in range(EDITS // 4):
        name = generator.choice(names)
        copied = edited(published, tmp_path, name, generator)
        if (copied / name).read_bytes() != (published / name).read_bytes():
            report = checker.validate(str(copied))
            assert report["manifest_matches"].status == "fail"
