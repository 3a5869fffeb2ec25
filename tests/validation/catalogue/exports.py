"""Faults of exports by Keras, which are made with the Keras that is active."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation.broken import EVALUATED
from tests.validation.catalogue.rows import add, fault
from tests.validation.models import ROWS, save


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


add("keras_model_called_as_in_training", "deterministic", "serving#602, serving#1670",
    "Evaluator", dropping(training=True), EVALUATED)
add("keras_normalises_by_the_batch", "row_independence", "tensorflow#9796, models#2776",
    "Evaluator", lambda good, folder: dropping(training=True)(
        good, folder, keras().layers.BatchNormalization()), EVALUATED)
