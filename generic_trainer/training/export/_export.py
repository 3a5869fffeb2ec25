"""Exports of a model, in one call each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.training.export._features import EXAMPLES, features_of
from generic_trainer.training.export._inputs import (
    declared_inputs,
    inference_arguments,
    match_inputs,
)
from generic_trainer.training.export._saving import (
    MOST_REQUESTS,
    ModelParts,
    outside_of_strategy,
    save,
    write_warm_up,
)
from generic_trainer.training.export._servable import Servable, make_predict
from generic_trainer.training.export._tensors import named_outputs

_OWN_NAMES = ("transform_features", "transform_labels", "serving_raw", "classification")
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
    aliases: Sequence[str] = (),
    raw_signature: bool = False,
    class_names: Sequence[str] = (),
    warmup_examples: Sequence[bytes] = (),
) -> str:
    """Writes a SavedModel that Evaluator, BulkInferrer, Pusher and TF Serving can use.

    ``export_model(model, fn_args, label_keys=("tips",))`` is all that most modules need. These
    signatures are written, for N examples:

    ======================  =========================================  ========================
    name                    input                                      outputs
    ======================  =========================================  ========================
    ``serving_default``     ``examples``: serialized tf.Example [N]    the model's, each [N, ...]
    ``transform_features``  ``examples``, with the label               transformed features
    ``transform_labels``    ``examples``; where there are label_keys   transformed labels
    ``serving_raw``         a tensor for each raw feature              the model's
    ``classification``      ``inputs``: serialized tf.Example [N]      ``classes``, ``scores``
    ======================  =========================================  ========================

    1. A prediction parses only the raw features that the model's inputs are computed from: the
       label and whatever else is not used need not be there.
    2. The transform signatures exist where there is a transform graph; name them in the
       Evaluator's `preprocessing_function_names`. They return the dense features, label included.
    3. Variables, tables and assets of the model are saved, its optimizer and its own functions are
       not. `tf.saved_model.load(directory).model_weights` are the variables in the order of
       `model.weights`, for a warm start.
    4. It may be called within the scope of a distribution strategy. With several workers each one
       must call it, as with `tf.saved_model.save`, and each writes into its own directory;
       `fn_args` names the right one.

    Args:
        model: a Keras 2 or Keras 3 model (TensorFlow backend), or a `tf.Module` with `__call__`.
        target: `fn_args`, which names everything, or a directory.
        transform_graph: the path of Transform's output, or a `tft.TFTransformOutput`.
        schema: the path of a `schema.pbtxt`, or a `Schema`; read where there is no transform graph.
        feature_spec: raw feature name → `tf.io.FixedLenFeature` and the like; these come before
            those of the schema or of the transform graph.
        inputs: feature names, or a dict or list of them, as the model is called with. By default
            the model's inputs have the names of features.
        label_keys: raw features that no prediction may need.
        preprocess: from the dict of features, less the labels, to what the model is called with;
            tensors [N, ...]. For models whose inputs are not features.
        postprocess: from what the model returns to a tensor or a dict of tensors, each [N, ...].
        output_name: name of a single output.
        aliases: further names of `serving_default`, such as ``"predict"``.
        raw_signature: writes `serving_raw`. A feature of varying length is a tensor [N, longest],
            in which NaN and the empty string mean that there is no value.
        class_names: the K classes, in the order of the model's scores float [N, K]; writes
            `classification`, which is what TF Serving's Classify API calls.
        warmup_examples: serialized tf.Examples with raw features, at most 1000; TF Serving
            predicts from each before it calls the model ready.

    Returns:
        The directory.

    Raises:
        ConfigurationError: arguments, model and features do not fit together.
        DataError: schema or transform graph cannot be read.
        ExportError: the model cannot be called with its features, or not be saved.
    """
    _check(inputs, preprocess, label_keys, aliases, warmup_examples)
    directory, transform_graph, schema = _sources(target, transform_graph, schema)

    def export() -> None:
        features = features_of(transform_graph, schema, feature_spec or {})
        wanted = inputs
        if inputs is None and preprocess is None:  # a user's own function may look at any feature
            wanted = declared_inputs(model)
        matched = match_inputs(wanted, features, label_keys)
        predict = make_predict(model, features, matched, preprocess, postprocess, output_name)
        servable = Servable(model, features, matched, predict)
        signatures = dict.fromkeys((_DEFAULT, *aliases), servable.serve())
        if transform_graph is not None:
            signatures["transform_features"] = servable.transform()
            if label_keys:
                signatures["transform_labels"] = servable.transform(label_keys)
        if raw_signature:
            signatures["serving_raw"] = servable.serve_raw()
        if class_names:
            signatures["classification"] = servable.classify(class_names)
        save(servable, directory, signatures)

    outside_of_strategy(export)
    if warmup_examples:
        write_warm_up(directory, _DEFAULT, EXAMPLES.name, warmup_examples)
    return directory


def export_on_tensors(model: Any, inputs: Any, directory: str) -> None:
    """Writes a SavedModel whose `serving_default` takes a tensor for each input of a model.

    For a model that is called with something else than features of tf.Examples.

    Args:
        model: see `export_model`.
        inputs: a `tf.TensorSpec` [None, ...] for each input, in the structure that the model is
            called with; the signature's inputs have their names.
        directory: the SavedModel is written there.

    Raises:
        ExportError: the model returns something else than tensors [N, ...], or cannot be saved.
    """
    specs = tf.nest.flatten(inputs)
    arguments = inference_arguments(model)
    # The user's code needs its `if` and `for` over tensors to work as they do elsewhere.
    call = tf.function(lambda structure: model(structure, **arguments))

    def serve(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        structure = tf.nest.pack_sequence_as(inputs, [tensors[spec.name] for spec in specs])
        return named_outputs(call(structure), "outputs", getattr(model, "output_names", None))

    def export() -> None:
        function = tf.function(serve, autograph=False)
        signature = function.get_concrete_function(**{spec.name: spec for spec in specs})
        save(ModelParts(model), directory, {_DEFAULT: signature})

    outside_of_strategy(export)


def _sources(target: Any, transform_graph: Any, schema: Any) -> tuple[str, Any, Any]:
    """Returns directory, transform graph and schema; what the user names comes first."""
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


def _check(
    inputs: Any,
    preprocess: Any,
    label_keys: Sequence[str],
    aliases: Sequence[str],
    warmup_examples: Sequence[bytes],
) -> None:
    taken = [name for name in aliases if name in _OWN_NAMES]
    problems = [f"aliases: {name!r} is the name of another signature" for name in taken]
    for name, value in (("label_keys", label_keys), ("aliases", aliases)):
        if isinstance(value, str):
            problems.append(f"{name} must be a sequence of names, such as ({value!r},)")
    if inputs is not None and preprocess is not None:
        problems.append("inputs and preprocess both say what the model is called with; pass one")
    if len(warmup_examples) > MOST_REQUESTS:
        problems.append(
            f"warmup_examples: TF Serving takes at most {MOST_REQUESTS}, got {len(warmup_examples)}"
        )
    raise_problems(ConfigurationError, "export_model", problems)
