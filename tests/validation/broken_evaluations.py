"""Recipes for the mistakes that the Evaluator meets, or overlooks: each must be found before."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from generic_trainer._core.texts import parse_eval_config
from generic_trainer.validation import ServingContract
from tests.house import HAS_TFX
from tests.validation import models
from tests.validation.models import SERIALIZED, save
from tests.validation.recipes import Make, Recipe, model, parsing, scored

THRESHOLD = "threshold { value_threshold { upper_bound { value: 1e9 } } }"


def metric(name: str = "MeanSquaredError", more: str = THRESHOLD) -> str:
    return f'metrics_specs {{ metrics {{ class_name: "{name}" {more} }} }}'


def spec(label: str = "tips", more: str = "") -> str:
    return f'model_specs {{ label_key: "{label}" {more} }}'


MSE = metric()
GOOD_CONFIG = f"{spec()} {MSE}"

RECIPES: dict[str, Recipe] = {}


def contract(config: str) -> ServingContract:
    """A contract with examples and this eval config, which nothing reads without TFX."""
    proto = parse_eval_config(config) if HAS_TFX else None
    return ServingContract(
        examples=models.examples(), label_keys=("tips",), signatures=(), eval_config=proto
    )


def wrong_config(name: str, check: str, told: str, config: str, status: str = "fail") -> None:
    """Registers a wrong config for the good model."""
    RECIPES[name] = Recipe(shutil.copytree, check, status, told, contract(config))


def wrong_model(name: str, check: str, told: str, make: Make, config: str = GOOD_CONFIG) -> None:
    """Registers a model that does not fit its config."""
    RECIPES[name] = Recipe(make, check, "fail", told, contract(config))


# Mistakes in the config.

NO_TIP = "label_key 'tip' is not a feature"
EXCLUDED = "threshold { value_threshold { lower_bound { value: 1 } upper_bound { value: 0.5 } } }"
WEIGHTED = spec(more='example_weight_key: "weight"') + MSE
SLICED = GOOD_CONFIG + 'slicing_specs { feature_keys: "city" }'
UNBOUNDED = spec() + metric(more="")
OF_SCORE = spec(more='signature_name: "score"') + MSE
TRANSFORM = spec(more='preprocessing_function_names: "transform"') + MSE
for name, told, config in (
    ("no_model_specs", "no model_specs", MSE),
    ("wrong_label_key_that_is_silent", NO_TIP, spec("tip") + metric("MeanPrediction")),
    ("wrong_label_key", NO_TIP, spec("tip") + metric("AUC")),
    ("wrong_example_weight_key", "example_weight_key 'weight' is not a feature", WEIGHTED),
    ("unknown_metric", "'MeanSquareError' cannot be made", spec() + metric("MeanSquareError")),
    ("bounds_that_exclude_each_other", "above upper_bound", spec() + metric(more=EXCLUDED)),
):
    wrong_config(name, "eval_config", told, config)
# Without a schema, the first examples may lack it.
told = "no example that was read has the slicing_specs feature 'city'"
wrong_config("slice_on_an_absent_feature", "eval_config", told, SLICED, status="warn")
wrong_config("no_thresholds", "eval_config", "never writes a blessing", UNBOUNDED, status="warn")
for name, told, config in (
    ("wrong_signature_name", "the Evaluator calls signature 'score'", OF_SCORE),
    ("wrong_preprocessing_function", "preprocessing_function_names has 'transform'", TRANSFORM),
):
    wrong_config(name, "eval_signatures", told, config)

# Mistakes in the model.


def _misnamed(good: Path, folder: Path) -> None:
    module = models.linear(folder)
    save(module, folder, {"serve": module.serve})


def _labels(good: Path, folder: Path) -> None:
    module = models.linear(folder)

    @tf.function(input_signature=[SERIALIZED])
    def transform_labels(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        tips = tf.io.FixedLenFeature([1], tf.float32)
        return {"tips_xf": tf.math.log1p(tf.io.parse_example(examples, {"tips": tips})["tips"])}

    module.transform_labels = transform_labels
    save(module, folder, {"serving_default": module.serve, "transform_labels": transform_labels})


def _two_outputs(good: Path, folder: Path) -> None:
    module = models.linear(folder)
    module.serve = module.serving(lambda score: {"score": score, "rank": -score})
    save(module, folder)


def _taking(name: str, dtype: Any) -> Make:
    column = tf.TensorSpec([None, 1], dtype, name=name)
    return model(lambda value: {"score": tf.cast(value, tf.float32) * 2.0}, column)


UNKNOWN_INPUT = "input 'distance' of signature 'serving_default' is not a feature"
NO_SIGNATURE = "the Evaluator calls signature 'serving_default'"
NO_KEY = "does not name the prediction"
DISTANCE, DOUBLE = _taking("distance", tf.float32), _taking("miles", tf.float64)
LABELS = 'preprocessing_function_names: "transform_labels"'
PREDICTION = spec(more='prediction_key: "scor"') + MSE
for name, told, make, config in (
    ("no_serving_default", NO_SIGNATURE, _misnamed, GOOD_CONFIG),
    ("input_that_is_not_a_feature", UNKNOWN_INPUT, DISTANCE, GOOD_CONFIG),
    ("input_of_another_dtype", "is float64[None, 1], the feature is float32", DOUBLE, GOOD_CONFIG),
    ("several_outputs_without_prediction_key", NO_KEY, _two_outputs, GOOD_CONFIG),
    ("wrong_prediction_key", "prediction_key 'scor' is not an output", _two_outputs, PREDICTION),
):
    wrong_model(name, "eval_signatures", told, make, config)
TRANSFORMED = spec("tip", LABELS) + metric("MeanPrediction")
NAN = scored(lambda features: tf.math.log(features["miles"] - 1.0)[:, None])
SCALAR = scored(lambda features: tf.reduce_mean(features["miles"]))
SINGLE = scored(lambda features: tf.squeeze(features["miles"], 0)[None, None])
KILOMETERS = parsing("kilometers", tf.float32)
for name, check, told, make, config in (
    ("wrong_label_key_beside_preprocessing", "eval_config", NO_TIP, _labels, TRANSFORMED),
    ("nan_predictions", "outputs_finite", "NaN", NAN, GOOD_CONFIG),
    ("scalar_prediction", "output_shape", "found float32[]", SCALAR, GOOD_CONFIG),
    ("prediction_only_at_batch_one", "scores", "single rows are scored", SINGLE, GOOD_CONFIG),
    ("feature_that_examples_lack", "scores", "kilometers", KILOMETERS, GOOD_CONFIG),
):
    wrong_model(name, check, told, make, config)
# What only the rehearsal can know.
REHEARSED = {
    name: dataclasses.replace(RECIPES[name], check="eval_rehearsal", told="")
    for name in ("nan_predictions", "scalar_prediction")
}
