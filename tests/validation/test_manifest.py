"""`manifest.json` and the golden outputs in it."""

import hashlib
import json
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.validation import ServingContract, write_manifest
from tests.examples import example
from tests.validation import models
from tests.validation.conftest import Check
from tests.validation.models import FEATURES, SERIALIZED, serving
from tests.validation.recipes import Features

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


@pytest.mark.parametrize("way", ["padded", "scaled"])
def test_golden_outputs_that_depend_on_their_batch(way: str, check: Check, tmp_path: Path) -> None:
    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.io.parse_example(rows, {"x": tf.io.VarLenFeature(tf.float32)})["x"]
        dense = tf.sparse.to_dense(x)
        return {"y": dense if way == "padded" else dense[:, :1] / tf.reduce_sum(dense)}

    examples = tuple(example(x=[1.0] * (1 + row % 9)) for row in range(40))
    contract = ServingContract(examples=examples, consumers=("Pusher",))
    write_manifest(str(tmp_path / "model"), check(serving(serve, SERIALIZED), contract))
    again = check(tmp_path / "model", ServingContract(consumers=("Pusher",)))
    assert again["golden"].message == "3 golden examples give the published outputs", again


def test_numbers_that_json_does_not_have(check: Check, tmp_path: Path) -> None:
    def odd(features: Features) -> tf.Tensor:
        miles = features["miles"]
        some = [miles, tf.math.log(miles), -miles / 0.0 * 0.0, tf.cast(miles, tf.float32) / 0.0]
        return tf.stack(some, axis=1)

    module = serving(
        lambda x: {
            "score": (score := odd(tf.io.parse_example(x, FEATURES))),
            "half": tf.cast(score, tf.bfloat16),
        },
        SERIALIZED,
    )
    report = check(module, ServingContract(examples=models.examples(), consumers=("Pusher",)))
    write_manifest(str(tmp_path / "model"), report)

    def refuse(constant: str) -> None:
        raise ValueError(f"not JSON: {constant}")

    texts = report.to_json(), (tmp_path / "model" / "manifest.json").read_text(encoding="utf-8")
    facts, manifest = (json.loads(text, parse_constant=refuse) for text in texts)
    assert facts["facts"]["golden"] == manifest["golden"]
    outputs = manifest["golden"]["serving_default"]["outputs"]
    assert outputs["score"][0][1:] == ["-Infinity", "NaN", "NaN"]
    assert outputs["half"][1][3] == "Infinity"
    again = check(tmp_path / "model", ServingContract(consumers=("Pusher",)))
    assert again["golden"].message == "3 golden examples give the published outputs"


def test_any_other_format_has_one_too(check: Check, tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(b"forest")
    contract = ServingContract(format="any")
    write_manifest(str(tmp_path), check(tmp_path, contract))
    assert check(tmp_path, contract).passed
    (tmp_path / "model.pkl").write_bytes(b"tree")
    damaged = check(tmp_path, contract)
    assert [failure.name for failure in damaged.failures] == ["manifest_matches"]
