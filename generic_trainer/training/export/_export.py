"""Exports of a model, in one call each."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.training.export._features import Features, features_of
from generic_trainer.training.export._inputs import declared_inputs, match_inputs
from generic_trainer.training.export._saving import ModelParts, outside_of_strategy, save
from generic_trainer.training.export._servable import make_predict, make_transform, signature

_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def export_model(
    model: Any,
    target: Any,
    *,
    transform_graph: Any = None,
    schema: Any = None,
    feature_spec: Mapping[str, Any] | None = None,
    inputs: Any = None,
    label_keys: Sequence[str] = (),
    preprocess: Callable[[dict[str, Any]], Any] | None = None,
    postprocess: Callable[[Any], Any] | None = None,
    output_name: str = "outputs",
) -> str:
    """Writes a SavedModel that Evaluator, BulkInferrer, Pusher and TF Serving can use.

    In most modules ``export_model(model, fn_args, label_keys=("tips",))`` is enough. It writes
    these signatures, for N examples:

    | name | input | outputs |
    |---|---|---|
    | `serving_default` | `examples`: serialized tf.Example [N] | the model's, each [N, ...] |
    | `transform_features` | `examples`, with the label | transformed features |
    | `transform_labels` | `examples`; only with label_keys | transformed labels |

    1. A prediction parses only the raw features that the model's inputs are computed from: the
       label and unused features may be missing.
    2. The transform signatures exist only with a transform graph; name them in the Evaluator's
       `preprocessing_function_names`. They return the dense features, label included.
    3. Variables, tables and assets of the model are saved, its optimizer and its functions are
       not. `tf.saved_model.load(directory).model_weights` are the variables in the order of
       `model.weights`, for a warm start.
    4. It may be called within the scope of a distribution strategy. With several workers each one
       must call it, as with `tf.saved_model.save`, and each writes into its own directory;
       `fn_args` names the right one.

    Args:
        model: a Keras 2 or Keras 3 model (TensorFlow backend), or a `tf.Module` with `__call__`.
        target: `fn_args`, which has the directory, schema and transform graph, or a directory.
        transform_graph: the path of Transform's output, or a `tft.TFTransformOutput`.
        schema: the path of a `schema.pbtxt`, or a `Schema`; read without a transform graph only.
        feature_spec: raw feature name → `tf.io.FixedLenFeature` and the like; these replace the
            features of the schema or of the transform graph.
        inputs: feature names, or a dict or list of them, as the model is called with. By default
            the model's inputs have the names of features.
        label_keys: raw features that no prediction may need.
        preprocess: function from the dict of features, less the labels, to the arguments of the
            model; tensors [N, ...]. For models whose inputs are not features.
        postprocess: function from the outputs of the model to a tensor or a dict of tensors, each
            [N, ...].
        output_name: name of a single output.

    Returns:
        The directory.

    Raises:
        ConfigurationError: arguments, model and features do not fit together.
        DataError: schema or transform graph cannot be read.
        ExportError: the model cannot be called with its features, or cannot be saved.
    """
    problems = []
    if isinstance(label_keys, str):
        problems.append(f"label_keys must be a sequence of names, such as ({label_keys!r},)")
    if inputs is not None and preprocess is not None:
        problems.append("inputs and preprocess both define the arguments of the model; pass one")
    raise_problems(ConfigurationError, "export_model", problems)
    directory, transform_graph, schema = _sources(target, transform_graph, schema)

    def export() -> None:
        features = features_of(transform_graph, schema, feature_spec or {})
        wanted = inputs
        if inputs is None and preprocess is None:  # a user's own function may look at any feature
            wanted = declared_inputs(model)
        needed, matched = match_inputs(wanted, features, label_keys)
        predict = make_predict(model, features, matched, preprocess, postprocess, output_name)
        signatures = {_DEFAULT: signature(predict, needed)}
        if transform_graph is not None:
            transform, spec = make_transform(features), features.raw_spec
            signatures["transform_features"] = signature(transform, spec)
            if label_keys:
                labels = {key: spec[key] for key in label_keys}
                signatures["transform_labels"] = signature(transform, labels)
        save(ModelParts(model, features.tracked), directory, signatures)

    outside_of_strategy(export)
    return directory


def export_on_tensors(model: Any, inputs: Any, directory: str) -> None:
    """Writes a SavedModel whose `serving_default` takes a tensor for each input of a model.

    For a model that is not called with features of tf.Examples.

    Args:
        model: see `export_model`.
        inputs: a `tf.TensorSpec` [None, ...] for each input, in the structure that the model is
            called with; the signature's inputs have their names.
        directory: the SavedModel is written there.

    Raises:
        ExportError: the model cannot be called with such tensors, does not return tensors
            [N, ...], or cannot be saved.
    """
    specs = {spec.name: spec for spec in tf.nest.flatten(inputs)}
    names = tf.nest.map_structure(lambda spec: spec.name, inputs)
    predict = make_predict(model, Features("the inputs", {}), names, None, None, "outputs")

    def export() -> None:
        function = tf.function(lambda **tensors: predict(tensors), autograph=False)
        concrete = function.get_concrete_function(**specs)
        save(ModelParts(model), directory, {_DEFAULT: concrete})

    outside_of_strategy(export)


def _sources(target: Any, transform_graph: Any, schema: Any) -> tuple[str, Any, Any]:
    """Returns directory, transform graph and schema; arguments override `target`."""
    directory = target
    if not isinstance(target, (str, os.PathLike)):
        directory = getattr(target, "serving_model_dir", None)
        transform_graph = transform_graph or getattr(target, "transform_graph_path", None)
        schema = schema or getattr(target, "schema_path", None)
    if not directory:
        raise ConfigurationError(
            "export_model needs a directory, or the fn_args of run_fn with a serving_model_dir, "
            f"but got {target!r}."
        )
    return os.fspath(directory), _path(transform_graph), _path(schema)


def _path(source: Any) -> Any:
    return os.fspath(source) if isinstance(source, os.PathLike) else source or None
