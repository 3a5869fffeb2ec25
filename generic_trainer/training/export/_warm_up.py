"""Requests that TF Serving replays before it calls a new model ready."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training.export._examples import EXAMPLES

__all__ = ["MOST_REQUESTS", "write_warm_up"]

# TF Serving refuses a model that brings more.
MOST_REQUESTS = 1000


def write_warm_up(directory: str, examples: Sequence[bytes], signature_name: str) -> None:
    """Writes one Predict request per example to `assets.extra/tf_serving_warmup_requests`.

    Args:
        directory: the SavedModel.
        examples: serialized tf.Examples with raw features, at most `MOST_REQUESTS`.
        signature_name: the signature that is called.

    Raises:
        ConfigurationError: the package with TF Serving's protos is missing.
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError as error:
        raise ConfigurationError(
            "warmup_examples needs the protos of TF Serving: pip install tensorflow-serving-api"
        ) from error
    folder = os.path.join(directory, "assets.extra")
    tf.io.gfile.makedirs(folder)
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.model_spec.signature_name = signature_name
    inputs = log.predict_log.request.inputs[EXAMPLES.name]
    with tf.io.TFRecordWriter(os.path.join(folder, "tf_serving_warmup_requests")) as writer:
        for example in examples:
            inputs.CopyFrom(tf.make_tensor_proto([example], tf.string))
            writer.write(log.SerializeToString())
