"""Differences to the model that serves now."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.bypasses import _hostile as hostile
from generic_trainer.validation import ServingContract
from tests.validation import models
from tests.validation.broken_evaluations import GOOD_CONFIG, contract
from tests.validation.conftest import Check
from tests.validation.models import SERIALIZED, aborted, save, serving


def _contract(base: Path, **severities: str) -> ServingContract:
    return ServingContract(examples=models.examples(), base_model=str(base), severities=severities)


def test_the_same_model_is_no_warning(check: Check, good_model: Path) -> None:
    result = check(good_model, _contract(good_model))["base_model"]
    assert result.status == "pass"
    assert "differs by 0 on average" in result.message


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changed") / "model"
    module = models.linear(folder)
    module.weight.assign([[900.0]])
    module.serve = module.serving(
        lambda score: {"score": tf.math.sinh(score) / 1000.0, "probability": score}
    )
    return save(module, folder)


def test_differences_warn_or_as_agreed(check: Check, good_model: Path, changed: Path) -> None:
    report = check(changed, _contract(good_model))
    assert report.passed, report.summary()
    result = report["base_model"]
    assert result.status == "warn"
    for told in ("outputs were", "probability", "Sinh", "assets were", "differs by"):
        assert told in result.message, told
    report = check(changed, _contract(good_model, base_model="fail"))
    assert [failure.name for failure in report.failures] == ["base_model"]


@pytest.mark.parametrize(("shift", "status"), [(1, "warn"), (0, "pass")])
def test_classes_that_are_all_others(shift: int, status: str, check: Check, tmp_path: Path) -> None:
    """Numbers that are all different, and a name of the model, rightly change."""

    def classified(folder: Path, shift: int) -> Path:
        def outputs(score: tf.Tensor) -> dict[str, tf.Tensor]:
            row = tf.range(tf.shape(score)[0])[:, None]
            version = tf.fill(tf.shape(score), tf.constant(folder.name))
            return {"class": (row + shift) % 3, "cents": row * 1000 + shift, "version": version}

        module = models.linear(folder, "words")
        module.serve = module.serving(outputs)
        return save(module, folder)

    base = classified(tmp_path / "base", 0)
    report = check(classified(tmp_path / "new", shift), _contract(base))
    result = report["base_model"]
    assert result.status == status, result
    assert "output 'class': " + ("100%" if shift else "0%") in result.message


def _unsafe(folder: Path) -> Path:
    hostile.RECIPES["writes_on_every_call"].make(folder / "unsafe", folder / "leak", 0)
    return folder / "unsafe"


def _crashing(folder: Path) -> Path:
    module = serving(lambda x: {"score": aborted(tf.size(x) > 0, tf.zeros([1, 1]))}, SERIALIZED)
    return save(module, folder / "crashing")


def _hanging(folder: Path) -> Path:
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        count = tf.while_loop(lambda i: i >= 0, lambda i: (i * 0 + 1,), (1,))[0]
        return {"score": tf.zeros([tf.size(examples), 1]) + tf.cast(count, tf.float32)}

    return save(serving(serve, SERIALIZED), folder / "hanging")


def _answering_in_words(folder: Path) -> Path:
    module = models.linear(folder / "words")
    module.serve = module.serving(lambda score: {"score": tf.fill(tf.shape(score), "high")})
    return save(module, folder / "words")


HARM = [
    (Path, "cannot be read"),
    (_answering_in_words, "outputs were (score: string"),
    (_unsafe, "not run, because it would reach files"),
    (_crashing, "SIGABRT"),
    (_hanging, "no answer within"),
]


@pytest.mark.parametrize("make, told", HARM)
def test_a_base_model_that_does_harm_is_a_warning(
    make: Callable[[Path], Path], told: str, check: Check, good_model: Path, tmp_path: Path
) -> None:
    report = check(good_model, _contract(make(tmp_path)))
    assert report.passed, report.summary()
    assert report["base_model"].status == "warn"
    assert told in report["base_model"].message
    assert not list(tmp_path.glob("leak*"))


def test_an_unsafe_base_is_not_rehearsed(check: Check, good_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_model_analysis")
    config = GOOD_CONFIG.replace("model_specs {", 'model_specs { name: "new"', 1)
    config = 'model_specs { name: "old" label_key: "tips" is_baseline: true } ' + config
    changed = dataclasses.replace(contract(config), base_model=str(_unsafe(tmp_path)))
    report = check(good_model, changed)
    assert report["eval_rehearsal"].status == "pass", report.summary()
