"""Faults of exports by Keras, which are made with the Keras that is active."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation.catalogue.rows import add, fault
from tests.validation.models import ROWS, save
from tests.validation.recipes import EVALUATED, Make


def in_training(layer: Callable[[Any], Any]) -> Make:
    """A recipe of a network with a layer, which is exported as it is called in training."""

    def make(good: Path, folder: Path) -> None:
        layers, inputs = tf.keras.layers, tf.keras.Input([2], name="x")
        hidden = layer(layers)(layers.Dense(4, "relu")(inputs))
        model = tf.keras.Model(inputs, layers.Dense(1)(hidden))
        _export(model, folder, lambda x: model(x, training=True))

    return make


def _export(model: Any, folder: Path, function: Any, *specs: Any) -> None:
    """Exports a function of a model so that servers can restore its variables."""
    module = tf.Module()
    module.model, module.state = model, list(model.variables)
    module.values = [getattr(variable, "value", variable) for variable in model.variables]
    serve = tf.function(lambda x: {"outputs": function(x)}, input_signature=specs or [ROWS])
    save(module, folder, {"serving_default": serve})


for name, check, source, layer in (
    ("keras_model_called_as_in_training", "deterministic", "serving#602, serving#1670",
     lambda k: k.Dropout(0.5)),
    ("keras_normalises_by_the_batch", "row_independence", "tensorflow#9796, models#2776",
     lambda k: k.BatchNormalization()),
):  # fmt: skip
    add(name, check, source, "Evaluator", in_training(layer), EVALUATED)


@fault("deterministic", "keras RandomFlip: training=True", "all", EVALUATED)
def keras_augments_while_it_serves(good: Path, folder: Path) -> None:
    """Layers of augmentation, which Keras 3 takes to be in training where nobody says otherwise."""
    layer = tf.keras.layers
    inputs = tf.keras.Input([8, 8, 3], name="image")
    flipped = layer.RandomRotation(0.1)(inputs, training=True)
    model = tf.keras.Model(inputs, layer.Flatten()(flipped))
    image = tf.TensorSpec([None, 8, 8, 3], tf.float32, name="image")
    _export(model, folder, model, image)


if "tf_keras" not in tf.keras.Model.__module__:  # Keras 2 tracks what a module holds

    @fault("session", "tensorflow#72963, keras#20095", "TF Serving, BulkInferrer")
    def keras_3_inside_a_module(good: Path, folder: Path) -> None:
        module, layers = tf.Module(), tf.keras.layers
        module.model = tf.keras.Sequential([tf.keras.Input([2]), layers.Dense(1, name="dense")])
        serve = tf.function(lambda x: {"y": module.model(x)}, input_signature=[ROWS])
        save(module, folder, {"serving_default": serve})
