"""Faults of exports by Keras, which are made with the Keras that is active."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation.catalogue.rows import add, fault
from tests.validation.models import ROWS, save
from tests.validation.recipes import EVALUATED


def keras() -> Any:
    """The Keras that is active."""
    return tf.keras


def dropping(**call: Any) -> Any:
    """A recipe of a network of which a function is exported with arguments for its call."""

    def make(good: Path, folder: Path, *layers: Any) -> None:
        layer = keras().layers
        inputs = keras().Input([2], name="x")
        hidden = layer.Dense(4, "relu")(inputs)
        for add_layer in layers or (layer.Dropout(0.5),):
            hidden = add_layer(hidden)
        model = keras().Model(inputs, layer.Dense(1)(hidden))
        _export(model, folder, lambda x: model(x, **call))

    return make


def _export(model: Any, folder: Path, function: Any, *specs: Any) -> None:
    """Exports a function of a model so that servers can restore its variables."""
    module = tf.Module()
    module.model, module.state = model, list(model.variables)
    module.values = [getattr(variable, "value", variable) for variable in model.variables]
    serve = tf.function(lambda x: {"outputs": function(x)}, input_signature=specs or [ROWS])
    save(module, folder, {"serving_default": serve})


for entry in (
    ("keras_model_called_as_in_training", "deterministic", "serving#602, serving#1670", "Evaluator",
     dropping(training=True), EVALUATED),
    ("keras_normalises_by_the_batch", "row_independence", "tensorflow#9796, models#2776",
     "Evaluator",
     lambda good, folder: dropping(training=True)(good, folder,
         keras().layers.BatchNormalization()), EVALUATED),
):  # fmt: skip
    add(*entry)


@fault("deterministic", "keras RandomFlip: training=True", "all", EVALUATED)
def keras_augments_while_it_serves(good: Path, folder: Path) -> None:
    """Layers of augmentation, which Keras 3 takes to be in training where nobody says otherwise."""
    layer = keras().layers
    inputs = keras().Input([8, 8, 3], name="image")
    flipped = layer.RandomRotation(0.1)(inputs, training=True)
    model = keras().Model(inputs, layer.Flatten()(flipped))
    image = tf.TensorSpec([None, 8, 8, 3], tf.float32, name="image")
    _export(model, folder, model, image)


if "tf_keras" not in keras().Model.__module__:  # Keras 2 tracks what a module holds

    @fault("session", "tensorflow#72963, keras#20095", "TF Serving, BulkInferrer")
    def keras_3_inside_a_module(good: Path, folder: Path) -> None:
        module, layers = tf.Module(), keras().layers
        module.model = keras().Sequential([keras().Input([2]), layers.Dense(1, name="dense")])
        serve = tf.function(lambda x: {"y": module.model(x)}, input_signature=[ROWS])
        save(module, folder, {"serving_default": serve})
