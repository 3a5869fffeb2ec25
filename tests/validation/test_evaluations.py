"""Mistakes between a model, its examples and an eval config are found before the Evaluator runs."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_model_analysis.proto import config_pb2
from tensorflow_model_analysis.utils import config_util

from generic_trainer.errors import DataError
from generic_trainer.validation import Checker, ServingContract, _evaluation, lint_eval_config
from generic_trainer.validation._model import ModelUnderTest
from tests.validation import models
from tests.validation.broken_evaluations import GOOD_CONFIG, RECIPES, REHEARSED, contract

# The rehearsal takes seconds; where another check is meant to find the mistake it stays away.
WITHOUT_REHEARSAL = {"eval_rehearsal": "skip"}
SCHEMA = schema_pb2.Schema(
    feature=[
        {"name": "miles", "type": schema_pb2.FLOAT, "presence": {"min_fraction": 1.0}},
        {"name": "payment", "type": schema_pb2.BYTES},
        {"name": "tips", "type": schema_pb2.FLOAT},
    ]
)


@pytest.mark.parametrize("name", RECIPES)
def test_is_found(name: str, checker: Checker, good_model: Path, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    assert recipe.contract is not None
    recipe.make(good_model, tmp_path / "model")
    wanted = dataclasses.replace(recipe.contract, severities=WITHOUT_REHEARSAL)
    report = checker.validate(str(tmp_path / "model"), wanted)
    assert report[recipe.check].status == recipe.status, report.summary()
    assert recipe.told in report[recipe.check].message
    assert report.passed == (recipe.status == "warn"), report.summary()


@pytest.mark.parametrize("name", REHEARSED)
def test_the_rehearsal_finds_it_too(
    name: str, checker: Checker, good_model: Path, tmp_path: Path
) -> None:
    recipe = REHEARSED[name]
    recipe.make(good_model, tmp_path / "model")
    report = checker.validate(str(tmp_path / "model"), recipe.contract)
    assert report["eval_rehearsal"].status == "fail", report["eval_rehearsal"]


def test_a_good_model_is_rehearsed(checker: Checker, good_model: Path) -> None:
    report = checker.validate(str(good_model), contract(GOOD_CONFIG))
    assert report.passed, report.summary()
    assert report["eval_rehearsal"].status == "pass"
    assert report.facts["rehearsed_metrics"]["mean_squared_error"] > 0


def test_with_schema_slices_and_baseline(checker: Checker, good_model: Path) -> None:
    config = contract(GOOD_CONFIG + ' slicing_specs { feature_keys: "payment" }')
    wanted = dataclasses.replace(config, schema=SCHEMA, base_model=str(good_model))
    report = checker.validate(str(good_model), wanted)
    assert report.passed, report.summary()
    assert report["eval_rehearsal"].status == "pass"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of NumPy, in TFMA
def test_evaluates_the_same_without_beams_runner(good_model: Path) -> None:
    config = text_format.Parse(
        """
        model_specs { name: "new" label_key: "tips" example_weight_key: "miles" }
        model_specs { name: "old" label_key: "tips" example_weight_key: "miles" is_baseline: true }
        slicing_specs {}
        slicing_specs { feature_keys: "payment" }
        cross_slicing_specs {
          baseline_spec {}
          slicing_specs { feature_keys: "payment" }
        }
        metrics_specs { metrics { class_name: "MeanSquaredError" } metrics { class_name: "AUC" }
          metrics { class_name: "CalibrationPlot" } }
        """,
        config_pb2.EvalConfig(),
    )
    config = config_util.update_eval_config_with_defaults(config, has_baseline=True)
    words = models.VOCABULARY
    examples = [
        models.example(0.1 * row, words[row % 2], label=row % 3 % 2) for row in range(1, 30)
    ]
    wanted = ServingContract(examples=tuple(examples), schema=SCHEMA, base_model=str(good_model))
    model = ModelUnderTest(good_model, wanted, str(good_model))
    written = _evaluation.in_process(model, config)
    with_beam = _evaluation.with_beam(model, config)
    kind = type(with_beam[0])
    alone = [each for each in written if isinstance(each, kind)]
    assert len(alone) == len(with_beam) == 5  # all, two slices, and two compared with all
    assert sorted(map(str, alone)) == sorted(map(str, with_beam))
    assert {type(each).__name__ for each in written} >= {"PlotsForSlice", "ValidationResult"}


def test_what_is_loaded_is_not_loaded_again(
    good_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = contract(GOOD_CONFIG)
    model = ModelUnderTest(good_model, wanted, str(good_model))
    config = config_util.update_eval_config_with_defaults(model.eval_config)
    expected = _evaluation.in_process(model, config)

    def load_again(*arguments: object, **options: object) -> None:
        raise AssertionError("loaded again")

    monkeypatch.setattr(tf.compat.v1.saved_model, "load_v2", load_again)
    assert list(map(str, _evaluation.in_process(model, config))) == list(map(str, expected))


def test_what_was_lent_is_freed_with_the_model(good_model: Path) -> None:
    model = ModelUnderTest(good_model, contract(GOOD_CONFIG), str(good_model))
    config = config_util.update_eval_config_with_defaults(model.eval_config)
    assert _evaluation.in_process(model, config)
    loaded = weakref.ref(model.loaded)
    assert loaded() is not None
    model.release()
    assert loaded() is None


def test_a_model_of_keras_2_is_loaded_once(
    good_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []

    def load_model(path: str) -> tf.keras.Model:
        loads.append(path)
        model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
        model.signatures = tf.saved_model.load(path).signatures
        return model

    monkeypatch.setattr(tf.keras.models, "load_model", load_model)
    wanted = contract(GOOD_CONFIG)
    model = ModelUnderTest(good_model, wanted, str(good_model))
    config = config_util.update_eval_config_with_defaults(model.eval_config)
    assert _evaluation.in_process(model, config)
    assert loads == [str(good_model)]
    assert tf.keras.models.load_model is load_model


def test_a_config_can_be_a_file(checker: Checker, good_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "eval_config.pbtxt"
    file.write_text(GOOD_CONFIG.replace("tips", "tip"))
    wanted = ServingContract(
        examples=models.examples(), eval_config=str(file), severities=WITHOUT_REHEARSAL
    )
    assert checker.validate(str(good_model), wanted)["eval_config"].status == "fail"


def test_lint_before_training() -> None:
    config = text_format.Parse(GOOD_CONFIG, config_pb2.EvalConfig())
    assert lint_eval_config(config, SCHEMA).status == "pass"
    config.model_specs[0].label_key = "tip"
    config.slicing_specs.add(feature_keys=["city"])
    found = lint_eval_config(config, SCHEMA)
    assert found.status == "fail"
    assert "'tip'" in found.message
    assert "'city'" in found.message
    assert lint_eval_config(config).status == "pass"


def test_lint_leaves_names_open_that_a_preprocessing_function_may_return() -> None:
    config = text_format.Parse(GOOD_CONFIG, config_pb2.EvalConfig())
    config.model_specs[0].label_key = "tips_xf"
    config.model_specs[0].preprocessing_function_names.append("transform_labels")
    assert lint_eval_config(config, SCHEMA).status == "warn"


def test_lint_of_a_file_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "eval_config.pbtxt"
    file.write_text("model_spec {}")
    for path in (file, str(file)):
        with pytest.raises(DataError, match=r"eval_config\.pbtxt cannot be read") as caught:
            lint_eval_config(path)
        assert caught.value.path == str(file)
