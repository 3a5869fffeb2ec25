"""Differences to the model that serves now."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.validation import Checker, ServingContract
from tests.validation import models
from tests.validation.models import FEATURES, SERIALIZED, save


def _contract(base: Path, **severities: str) -> ServingContract:
    return ServingContract(examples=models.examples(), base_model=str(base), severities=severities)


def test_the_same_model_is_no_warning(checker: Checker, good_model: Path) -> None:
    result = checker.validate(str(good_model), _contract(good_model))["base_model"]
    assert result.status == "pass"
    assert "differs by 0 on average" in result.message


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changed") / "model"
    module = models.linear(folder)
    module.weight.assign([[900.0]])

    @tf.function(input_signature=[SERIALIZED])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        score = module.score(tf.io.parse_example(examples, FEATURES))
        return {"score": tf.math.sinh(score) / 1000.0, "probability": score}

    return save(module, folder, {"serving_default": serve})


def test_differences_are_warnings(checker: Checker, good_model: Path, changed: Path) -> None:
    report = checker.validate(str(changed), _contract(good_model))
    assert report.passed, report.summary()
    result = report["base_model"]
    assert result.status == "warn"
    for told in ("outputs were", "probability", "Sinh", "assets were", "differs by"):
        assert told in result.message, told


def test_they_fail_where_the_contract_says_so(
    checker: Checker, good_model: Path, changed: Path
) -> None:
    contract = _contract(good_model, base_model="fail")
    report = checker.validate(str(changed), contract)
    assert [failure.name for failure in report.failures] == ["base_model"]


def test_a_base_model_that_is_none(checker: Checker, good_model: Path, tmp_path: Path) -> None:
    result = checker.validate(str(good_model), _contract(tmp_path))["base_model"]
    assert result.status == "fail"
    assert "cannot be read" in result.message
