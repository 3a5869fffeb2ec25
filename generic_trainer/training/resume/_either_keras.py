"""Callbacks for models of Keras 2 and Keras 3."""

import logging
from typing import Any

import tensorflow as tf

_logger = logging.getLogger(__name__)


class OfEitherKeras(tf.keras.callbacks.Callback):
    """Serves models of Keras 2 also where `tf.keras`, whose class it is, is Keras 3.

    Keras 2 asks its callbacks for these attributes and methods.
    """

    _supports_tf_logs = True  # the logs are not looked at, so there is nothing to convert

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks


class Copy(OfEitherKeras):
    """Takes the place of a copied `Resume`, which cannot know which of several fits it serves."""

    def on_train_begin(self, logs: Any = None) -> None:
        _logger.warning(
            "This fit starts afresh and saves no checkpoints: it got a copy of resume_callbacks, "
            "as KerasTuner makes for each trial, and its checkpoints could be those of another "
            "trial. To resume it, call resume_callbacks with another name for each fit, in "
            "HyperModel.fit for example."
        )
