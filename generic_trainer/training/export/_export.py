"""Exports of a model, in one call each: the functions behind the signatures, and their outputs."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, ExportError, raise_problems
from generic_trainer.training.export import _inputs, _saving

_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
# From raw features to named outputs.
Compute = Callable[[dict[str, Any]], dict[str, tf.Tensor]]
Signature: TypeAlias = tf.types.experimental.PolymorphicFunction


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
    columns_signature: str | None = None,
) -> str:
    """Writes a SavedModel that Evaluator, BulkInferrer, Pusher and TF Serving can use.

    In most modules ``export_model(model, fn_args, label_keys=("tips",))`` is enough. It writes
    these signatures, for N examples:

    | name | input | outputs |
    |---|---|---|
    | `serving_default` | `examples`: serialized tf.Example [N] | the model's, each [N, ...] |
    | `transform_features` | `examples`, with the label | transformed features |
    | `transform_labels` | `examples`; only with label_keys | transformed labels |
    | `columns_signature` | a tensor [N] for each raw feature | those of `serving_default` |

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
        schema: the path of a `schema.pbtxt`, or a `Schema`, for a model that was trained on raw
            examples: it takes the place of the transform graph of `fn_args`.
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
        columns_signature: name of one more signature, which takes the raw features themselves, as
            a REST client sends them in JSON: an input for each, named as the feature with `_` for
            all but ASCII letters, digits, `_` and `.`. It is int64, float32 or string [N] for
            features with one value, [N, ...] for those of another fixed shape. Of a sparse feature
            with at most one value it is float32, for integers float64, or string [N], with NaN or
            "" where the value is missing.

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
        features = _inputs.features_of(transform_graph, schema, feature_spec or {})
        wanted = inputs
        if inputs is None and preprocess is None:  # a user's own function may look at any feature
            wanted = _inputs.declared_inputs(model)
        needed, matched = _inputs.match_inputs(wanted, features, label_keys)
        predict = make_predict(model, features, matched, preprocess, postprocess, output_name)
        signatures = {_DEFAULT: signature(predict, needed)}
        if columns_signature is not None:
            signatures[columns_signature] = _inputs.signature_of_columns(predict, needed)
        if transform_graph is not None:
            transform = make_transform(features)
            spec = features.raw_spec
            signatures["transform_features"] = signature(transform, spec)
            if label_keys:
                labels = {key: spec[key] for key in label_keys}
                signatures["transform_labels"] = signature(transform, labels)
        _saving.save(_saving.ModelParts(model, features.tracked), directory, signatures)

    _saving.outside_of_strategy(export)
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
    predict = make_predict(model, _inputs.Features("the inputs", {}), names, None, None, "outputs")

    def serve(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return predict(dict(zip(specs, tensors, strict=True)))

    def export() -> None:
        function = tf.function(serve, input_signature=[*specs.values()], autograph=False)
        _saving.save(_saving.ModelParts(model), directory, {_DEFAULT: function})

    _saving.outside_of_strategy(export)


def _sources(target: Any, transform_graph: Any, schema: Any) -> tuple[str, Any, Any]:
    """Returns directory, transform graph and schema; arguments override `target`."""
    directory = target
    if not isinstance(target, (str, os.PathLike)):
        directory = getattr(target, "serving_model_dir", None)
        if not schema:
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


def signature(compute: Compute, spec: Mapping[str, Any]) -> Signature:
    """Returns a signature that takes serialized tf.Examples, string [N].

    Args:
        compute: gets the raw features.
        spec: raw feature name → `tf.io` parsing configuration, of the features to parse.
    """

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return compute(tf.io.parse_example(examples, spec))

    return tf.function(serve, input_signature=[_inputs.EXAMPLES], autograph=False)


def make_predict(
    model: Any,
    features: _inputs.Features,
    inputs: Any,
    preprocess: Callable[[dict[str, Any]], Any] | None,
    postprocess: Callable[[Any], Any] | None,
    output_name: str,
) -> Compute:
    """Returns the function that predicts; see `export_model`.

    It raises `ExportError` if the model cannot be called with the features, or does not return
    tensors. `inputs` is the structure of `match_inputs`.
    """
    prepare = preprocess or (lambda values: tf.nest.map_structure(values.__getitem__, inputs))
    arguments = _inputs.inference_arguments(model)

    # The user's code is traced as a tf.function of its own, so that its Python `if` and `for` over
    # tensors work as they do elsewhere.
    @tf.function
    def user_code(values: dict[str, Any]) -> Any:
        outputs = model(prepare(values), **arguments)
        return postprocess(outputs) if postprocess else outputs

    def predict(raw: dict[str, Any]) -> dict[str, tf.Tensor]:
        values = features.compute(raw)
        try:
            outputs = user_code(values)
        except Exception as error:
            raise ExportError(
                f"the model cannot be called with {inputs} out of the features "
                f"{_inputs.type_specs(values)}: {error}"
            ) from error
        return named_outputs(outputs, output_name, getattr(model, "output_names", None))

    return predict


def make_transform(features: _inputs.Features) -> Compute:
    """Returns the function that computes the dense features, for the Evaluator.

    Others are left out: a signature cannot return sparse features, and if they were filled up,
    their width would depend on the other rows of the batch.
    """

    def transform(raw: dict[str, Any]) -> dict[str, tf.Tensor]:
        computed = features.compute(raw)
        dense = {name: value for name, value in computed.items() if isinstance(value, tf.Tensor)}
        if not dense:
            raise ConfigurationError(
                f"from the raw features {list(raw)} alone {features.origin} computes only sparse "
                "features, which a signature cannot return"
            )
        return dense

    return transform


def named_outputs(outputs: Any, output_name: str, names: Any = None) -> dict[str, tf.Tensor]:
    """Returns the outputs of a signature.

    1. A tensor is called `output_name`.
    2. A dict and a named tuple keep their names.
    3. A list takes `names`, the model's `output_names`, if there are as many different ones; else
       `output_name` with `_0`, `_1`, ... Those of Keras 3 are names of layers, of which one may
       have several outputs.

    Raises:
        ExportError: some are not tensors with a row per example; lists all problems.
    """
    named = {
        name: tf.convert_to_tensor(value) if hasattr(value, "__array__") else value
        for name, value in _named(outputs, output_name, names).items()
    }
    problems = [
        f"output {name!r} should be a dense tensor [batch, ...], found a {type(value).__name__} "
        f"of shape {getattr(value, 'shape', 'unknown')}"
        for name, value in named.items()
        if not isinstance(value, tf.Tensor) or value.shape.rank == 0
    ]
    raise_problems(
        ExportError,
        "the model's outputs cannot be served (change them with postprocess=)",
        problems,
    )
    return named


def _named(outputs: Any, output_name: str, names: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    if not isinstance(outputs, (list, tuple)):
        return {output_name: outputs}
    if not names or len({*names}) != len(outputs):
        names = [f"{output_name}_{index}" for index in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))
