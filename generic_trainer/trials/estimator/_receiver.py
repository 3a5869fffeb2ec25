"""What is served of a trial that has no serving input receiver functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from generic_trainer import estimator as tf_estimator
from generic_trainer._core.files import gfile
from generic_trainer.errors import ExportError
from generic_trainer.estimator import export as tf_export
from generic_trainer.trials._pipeline import are_features

__all__ = ["name_default_signature", "receiver_of"]

_LONE = "features"
_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_PREDICT = tf.saved_model.PREDICT_METHOD_NAME.rpartition("/")[2]


def receiver_of(estimator: Any, input_fn: Callable[..., Any], fn_args: Any) -> Callable[[], Any]:
    """Returns a receiver function of the features that an input function gives.

    It takes serialized tf.Examples where the pipeline's schema, or Transform's, has all of them by
    name, else a tensor per feature.

    Args:
        estimator: calls the input function as for an evaluation.
        input_fn: the input function.
        fn_args: the argument of `run_fn`.

    Raises:
        ExportError: a feature is sparse or ragged.
    """
    with tf.Graph().as_default():
        mode = tf_estimator.ModeKeys.EVAL
        features, *_ = estimator._get_features_and_labels_from_input_fn(input_fn, mode)
    named = features if isinstance(features, Mapping) else {_LONE: features}
    specs = {name: _spec(name, tensor) for name, tensor in named.items()}
    if isinstance(features, Mapping) and are_features(specs, fn_args) and _have_shapes(specs):
        return lambda: _parsing(specs)
    return lambda: _tensors(specs, is_lone=not isinstance(features, Mapping))


def name_default_signature(directory: str) -> None:
    """Gives a SavedModel the signature that is served by default, where it has only others.

    Those of premade classifiers take serialized tf.Examples only, but for the one of predictions.
    """
    path = os.path.join(directory, "saved_model.pb")
    model = saved_model_pb2.SavedModel()
    with gfile().GFile(path, "rb") as file:
        model.ParseFromString(file.read())
    for graph in model.meta_graphs:
        signatures = graph.signature_def
        if signatures and _DEFAULT not in signatures:
            name = _PREDICT if _PREDICT in signatures else min(signatures)
            signatures[_DEFAULT].CopyFrom(signatures[name])
    with gfile().GFile(path, "wb") as file:
        file.write(model.SerializeToString())


def _spec(name: str, tensor: Any) -> tf.TensorSpec:
    if not isinstance(tensor, tf.Tensor):
        raise ExportError(
            f"The feature {name!r} is a {type(tensor).__name__}, which a signature cannot take. "
            "Define build_serving_input_receiver_fns in the EstimatorTrial."
        )
    known = tensor.shape.rank is not None
    return tf.TensorSpec([None, *tensor.shape[1:]] if known else None, tensor.dtype, name)


def _have_shapes(specs: Mapping[str, tf.TensorSpec]) -> bool:
    return all(spec.shape.rank and None not in spec.shape[1:] for spec in specs.values())


def _tensors(specs: Mapping[str, tf.TensorSpec], *, is_lone: bool) -> Any:
    received = {
        name: tf.compat.v1.placeholder(spec.dtype, spec.shape, name) for name, spec in specs.items()
    }
    if is_lone:
        return tf_export.TensorServingInputReceiver(received[_LONE], received)
    return tf_export.ServingInputReceiver(received, received)


def _parsing(specs: Mapping[str, tf.TensorSpec]) -> Any:
    examples = tf.compat.v1.placeholder(tf.string, [None], "examples")
    wire = {
        name: tf.io.FixedLenFeature(spec.shape[1:], _wire(spec.dtype))
        for name, spec in specs.items()
    }
    parsed = tf.io.parse_example(examples, wire)
    features = {name: tf.cast(parsed[name], spec.dtype) for name, spec in specs.items()}
    return tf_export.ServingInputReceiver(features, {"examples": examples})


def _wire(dtype: tf.DType) -> tf.DType:
    if dtype == tf.string:
        return dtype
    return tf.float32 if dtype.is_floating else tf.int64
