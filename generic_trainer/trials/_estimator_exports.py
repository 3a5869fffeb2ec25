"""The export of an estimator without serving input receiver functions: by its data."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from generic_trainer import estimator as tf_estimator
from generic_trainer._core import internals
from generic_trainer._core.files import copy_tree, read_whole, write_whole
from generic_trainer.errors import ExportError
from generic_trainer.estimator import export as tf_export
from generic_trainer.trials._pipeline import are_features, signature_spec

_LONE = "features"
_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_PREDICT = tf.saved_model.PREDICT_METHOD_NAME.rpartition("/")[2]


def export_features(
    estimator: Any,
    input_fn: Callable[..., Any],
    folder: str,
    fn_args: Any,
    remedy: str = "define build_serving_input_receiver_fns in the EstimatorTrial.",
) -> None:
    """Publishes an export for the features that an input function gives.

    It takes serialized tf.Examples where the pipeline's schema, or Transform's, has all of them by
    name, else a tensor per feature.

    Args:
        estimator: has a checkpoint.
        input_fn: is called as for an evaluation.
        folder: an empty one, to write to on the way.
        fn_args: the argument of `run_fn`.
        remedy: what to do if the features cannot be served.

    Raises:
        ExportError: no model can be served for the features.
    """
    try:
        receiver = _receiver_of(estimator, input_fn, fn_args)
        export = estimator.export_saved_model(folder, receiver)
    except Exception as error:  # of the user's model function, without labels
        raise ExportError(
            "No serving input receiver functions are defined, and no model can be served for the "
            "features of the validation data. The model function must return predictions in the "
            f"mode PREDICT, where it gets no labels. If it does, {remedy} "
            f"Found: {type(error).__name__}: {error}"
        ) from error
    copy_tree(tf.compat.as_str(export), fn_args.serving_model_dir)
    name_default_signature(fn_args.serving_model_dir)


def _receiver_of(estimator: Any, input_fn: Callable[..., Any], fn_args: Any) -> Callable[[], Any]:
    with tf.Graph().as_default():
        features_and_labels = internals.ESTIMATOR_FEATURES_AND_LABELS.of(estimator)
        features, *_ = features_and_labels(input_fn, tf_estimator.ModeKeys.EVAL)
    is_lone = not isinstance(features, Mapping)
    named = {_LONE: features} if is_lone else features
    specs = {name: signature_spec(name, tensor) for name, tensor in named.items()}
    shapes = [spec.shape for spec in specs.values()]
    have_shapes = all(shape.rank and None not in shape.as_list()[1:] for shape in shapes)
    if not is_lone and have_shapes and are_features(specs, fn_args):
        return lambda: _parsing(specs)
    receive = tf_export.build_raw_serving_input_receiver_fn(named)
    if not is_lone:
        return receive  # type: ignore[no-any-return]

    def receive_lone() -> Any:
        received = receive().receiver_tensors
        return tf_export.TensorServingInputReceiver(received[_LONE], received)

    return receive_lone


def _parsing(specs: Mapping[str, tf.TensorSpec]) -> Any:
    wire = {
        name: tf.io.FixedLenFeature(spec.shape[1:], _wire(spec.dtype))
        for name, spec in specs.items()
    }
    received = tf_export.build_parsing_serving_input_receiver_fn(wire)()
    parsed = received.features
    return received._replace(
        features={name: tf.cast(parsed[name], spec.dtype) for name, spec in specs.items()}
    )


def _wire(dtype: tf.DType) -> tf.DType:
    if dtype == tf.string:
        return dtype
    return tf.float32 if dtype.is_floating else tf.int64


def name_default_signature(directory: str) -> None:
    """Gives a SavedModel the signature that is served by default, if it has only others.

    Those of premade classifiers take serialized tf.Examples only, but for the one of predictions.
    """
    path = os.path.join(tf.compat.as_str(directory), tf.saved_model.SAVED_MODEL_FILENAME_PB)
    model = saved_model_pb2.SavedModel.FromString(read_whole(path))
    for graph in model.meta_graphs:
        signatures = graph.signature_def
        if signatures and _DEFAULT not in signatures:
            name = _PREDICT if _PREDICT in signatures else min(signatures)
            signatures[_DEFAULT].CopyFrom(signatures[name])
    write_whole(path, model.SerializeToString())
