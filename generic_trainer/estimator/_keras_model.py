"""Estimators that train a Keras model."""

from __future__ import annotations

from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator._importing import prepare
from generic_trainer.estimator._tensorflow import tf

__all__ = ["model_to_estimator", "model_to_estimator_v1"]


def model_to_estimator(keras_model: Any = None, *args: Any, **options: Any) -> Any:
    """`tf.keras.estimator.model_to_estimator`: returns an Estimator that trains a compiled model.

    Args:
        keras_model: a compiled functional or sequential model of Keras 2.
        *args: as of the original, `keras_model_path` first.
        **options: as of the original.

    Raises:
        ConfigurationError: the model is not one of Keras 2.
    """
    from tf_keras.api._v2.keras import estimator

    _prepare_for(keras_model)
    return estimator.model_to_estimator(keras_model, *args, **options)


def model_to_estimator_v1(keras_model: Any = None, *args: Any, **options: Any) -> Any:
    """`tf.compat.v1.keras.estimator.model_to_estimator`: the same, with TF 1 checkpoints."""
    from tf_keras.api._v1.keras import estimator

    _prepare_for(keras_model)
    return estimator.model_to_estimator(keras_model, *args, **options)


def _prepare_for(model: Any) -> None:
    if model is not None and not isinstance(model, tf.keras.Model):
        kind = type(model)
        raise ConfigurationError(
            "model_to_estimator takes a Keras 2 model, but got an object of type "
            f"{kind.__module__}.{kind.__qualname__}. Build the model with the tf.keras of "
            "`from generic_trainer.estimator import tf`, which is Keras 2 in every environment."
        )
    prepare()
