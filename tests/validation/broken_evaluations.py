"""Recipes for the mistakes that the Evaluator meets, or overlooks: each must be found before."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_model_analysis.proto import config_pb2

from generic_trainer.validation import ServingContract
from tests.validation import models
from tests.validation.broken import Recipe
from tests.validation.models import FEATURES, SERIALIZED, save, serving

THRESHOLD = "threshold { value_threshold { upper_bound { value: 1e9 } } }"
MSE = f'metrics_specs {{ metrics {{ class_name: "MeanSquaredError" {THRESHOLD} }} }}'
GOOD_CONFIG = f'model_specs {{ label_key: "tips" }} {MSE}'

RECIPES: dict[str, Recipe] = {}


def contract(config: str) -> ServingContract:
    """A contract with examples and this eval config."""
    proto = text_format.Parse(config, config_pb2.EvalConfig())
    return ServingContract(
        examples=models.examples(), label_keys=("tips",), signatures=(), eval_config=proto
    )


def recipe(
    check: str, told: str, config: str = GOOD_CONFIG, status: str = "fail"
) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    """Registers a function that makes a model, to be evaluated with a config."""

    def register(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
        RECIPES[make.__name__] = Recipe(
            lambda good, folder: make(folder), check, status, told, contract(config)
        )
        return make

    return register


def config_recipe(name: str, check: str, told: str, config: str, status: str = "fail") -> None:
    """Registers a wrong config for the good model."""
    RECIPES[name] = Recipe(shutil.copytree, check, status, told, contract(config))


# Mistakes in the config.

config_recipe("no_model_specs", "eval_config", "no model_specs", MSE)
config_recipe(
    "wrong_label_key_that_is_silent",
    "eval_config",
    "label_key 'tip' is not a feature",
    f'model_specs {{ label_key: "tip" }} metrics_specs {{ metrics {{ class_name: "MeanPrediction" '
    f"{THRESHOLD} }} }}",
)
config_recipe(
    "wrong_label_key",
    "eval_config",
    "label_key 'tip' is not a feature",
    f'model_specs {{ label_key: "tip" }} metrics_specs {{ metrics {{ class_name: "AUC" '
    f"{THRESHOLD} }} }}",
)
config_recipe(
    "wrong_example_weight_key",
    "eval_config",
    "example_weight_key 'weight' is not a feature",
    f'model_specs {{ label_key: "tips" example_weight_key: "weight" }} {MSE}',
)
config_recipe(
    "slice_on_an_absent_feature",
    "eval_config",
    "slicing_specs feature 'city' is not a feature",
    f'{GOOD_CONFIG} slicing_specs {{ feature_keys: "city" }}',
)
config_recipe(
    "unknown_metric",
    "eval_config",
    "metric 'MeanSquareError' cannot be made",
    f'model_specs {{ label_key: "tips" }} metrics_specs {{ metrics {{ class_name: '
    f'"MeanSquareError" {THRESHOLD} }} }}',
)
config_recipe(
    "bounds_that_exclude_each_other",
    "eval_config",
    "above upper_bound",
    'model_specs { label_key: "tips" } metrics_specs { metrics { class_name: "MeanSquaredError" '
    "threshold { value_threshold { lower_bound { value: 1 } upper_bound { value: 0.5 } } } } }",
)
config_recipe(
    "no_thresholds",
    "eval_config",
    "never writes a blessing",
    f'model_specs {{ label_key: "tips" }} {MSE.replace(THRESHOLD, "")}',
    status="warn",
)
config_recipe(
    "wrong_signature_name",
    "eval_signatures",
    "the Evaluator calls signature 'score'",
    f'model_specs {{ label_key: "tips" signature_name: "score" }} {MSE}',
)
config_recipe(
    "wrong_preprocessing_function",
    "eval_signatures",
    "preprocessing_function_names has 'transform'",
    f'model_specs {{ label_key: "tips" preprocessing_function_names: "transform" }} {MSE}',
)


# Mistakes in the model.


@recipe("eval_signatures", "the Evaluator calls signature 'serving_default'")
def no_serving_default(folder: Path) -> None:
    module = models.linear(folder)
    save(module, folder, {"serve": module.serve})


@recipe(
    "eval_config",
    "label_key 'tip' is not a feature",
    'model_specs { label_key: "tip" preprocessing_function_names: "transform_labels" } '
    f'metrics_specs {{ metrics {{ class_name: "MeanPrediction" {THRESHOLD} }} }}',
)
def wrong_label_key_beside_preprocessing(folder: Path) -> None:
    module = models.linear(folder)

    @tf.function(input_signature=[SERIALIZED])
    def transform_labels(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        tips = tf.io.FixedLenFeature([1], tf.float32)
        return {"tips_xf": tf.math.log1p(tf.io.parse_example(examples, {"tips": tips})["tips"])}

    module.transform_labels = transform_labels
    save(module, folder, {"serving_default": module.serve, "transform_labels": transform_labels})


@recipe("eval_signatures", "input 'distance' of signature 'serving_default' is not a feature")
def input_that_is_not_a_feature(folder: Path) -> None:
    spec = tf.TensorSpec([None, 1], tf.float32, name="distance")
    save(serving(lambda distance: {"score": distance * 2.0}, spec), folder)


@recipe("eval_signatures", "is float64[None, 1], the feature is float32")
def input_of_another_dtype(folder: Path) -> None:
    spec = tf.TensorSpec([None, 1], tf.float64, name="miles")
    save(serving(lambda miles: {"score": tf.cast(miles, tf.float32)}, spec), folder)


TWO_OUTPUTS = f'model_specs {{ label_key: "tips" prediction_key: "scor" }} {MSE}'


@recipe("eval_signatures", "does not name the prediction")
def several_outputs_without_prediction_key(folder: Path) -> None:
    _two_outputs(folder)


@recipe("eval_signatures", "prediction_key 'scor' is not an output", TWO_OUTPUTS)
def wrong_prediction_key(folder: Path) -> None:
    _two_outputs(folder)


@recipe("outputs_finite", "NaN")
def nan_predictions(folder: Path) -> None:
    _scoring(folder, lambda miles: tf.math.log(miles - 1.0)[:, None])


@recipe("output_shape", "found float32[]")
def scalar_prediction(folder: Path) -> None:
    _scoring(folder, tf.reduce_mean)


@recipe("scores", "single rows are scored")
def prediction_only_at_batch_one(folder: Path) -> None:
    _scoring(folder, lambda miles: tf.squeeze(miles, 0)[None, None])


@recipe("scores", "kilometers")
def feature_that_examples_lack(folder: Path) -> None:
    spec = {"kilometers": tf.io.FixedLenFeature([], tf.float32)}
    save(serving(lambda x: {"y": tf.io.parse_example(x, spec)["kilometers"]}, SERIALIZED), folder)


def _two_outputs(folder: Path) -> None:
    module = models.linear(folder)

    @tf.function(input_signature=[SERIALIZED])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        score = module.score(tf.io.parse_example(examples, FEATURES))
        return {"score": score, "rank": -score}

    save(module, folder, {"serving_default": serve})


def _scoring(folder: Path, function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    spec = {"miles": tf.io.FixedLenFeature([], tf.float32)}
    module = serving(
        lambda x: {"score": function(tf.io.parse_example(x, spec)["miles"])}, SERIALIZED
    )
    save(module, folder)


# What only the rehearsal can know.
REHEARSED = {
    name: dataclasses.replace(RECIPES[name], check="eval_rehearsal", told="")
    for name in ("nan_predictions", "scalar_prediction")
}
