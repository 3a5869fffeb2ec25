"""Features that a model can be fed with, raw or transformed, and the inputs that it declares."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.lazy import needing_tfx
from generic_trainer._core.texts import argument_names, did_you_mean, load_schema
from generic_trainer.data import Parser, parse_spec
from generic_trainer.errors import ConfigurationError, DataError, raise_problems
from generic_trainer.training.export._saving import tracked_parts

EXAMPLES = tf.TensorSpec([None], tf.string, name="examples")


@dataclasses.dataclass(frozen=True)
class Features:
    """The features of a pipeline.

    Attributes:
        origin: the source of the features, for messages.
        raw_spec: raw feature name → `tf.io` parsing configuration.
        compute: returns the features that can be computed from some raw ones: just these, or those
            of the layer of a transform graph. The layer leaves out features that depend on raw
            features which it did not get.
        tracked: objects that must be saved with the model for `compute` to work.
    """

    origin: str
    raw_spec: Mapping[str, Any]
    compute: Callable[[dict[str, Any]], dict[str, Any]] = dict
    tracked: Sequence[Any] = ()

    def raw_names(self, names: Iterable[str]) -> set[str]:
        """Returns the raw features that the features `names` are computed from.

        It leaves out one raw feature after the other to see which features are lost. So a
        prediction needs no label.
        """
        wanted = set(names)

        def needed(raw: dict[str, tf.Tensor]) -> set[str]:
            keys = set()
            for key in raw:
                others = {name: raw[name] for name in raw if name != key}
                if not wanted <= self.compute(others).keys():
                    keys.add(key)
            return keys

        return probe(self.raw_spec, needed)


def features_of(transform_graph: Any, schema: Any, feature_spec: Mapping[str, Any]) -> Features:
    """Returns the features of the transform graph if there is one, else the raw ones.

    The features in `feature_spec` replace those of the same names.

    Raises:
        ConfigurationError: all three sources are missing.
        DataError: the transform graph or the schema cannot be read.
    """
    if transform_graph is not None:
        return _transformed(transform_graph, feature_spec)
    if schema is None and not feature_spec:
        raise ConfigurationError(
            "export_model needs the raw features: pass transform_graph=, schema= or feature_spec=; "
            "fn_args has them if the component gets the outputs of Transform or SchemaGen"
        )
    raw_spec = {**parse_spec(load_schema(schema)), **feature_spec}
    return Features("the schema" if schema is not None else "feature_spec", raw_spec)


def probe(raw_spec: Mapping[str, Any], look: Callable[[dict[str, Any]], Any]) -> Any:
    """Returns `look(raw features)`, called once on symbolic tensors in a graph thrown away."""
    seen = []

    def trace(examples: tf.Tensor) -> None:
        seen.append(look(tf.io.parse_example(examples, raw_spec)))

    tf.function(trace, input_signature=[EXAMPLES], autograph=False).get_concrete_function()
    return seen[0]


def type_specs(features: Mapping[str, Any]) -> dict[str, tf.TypeSpec]:
    """Returns feature name → type, shape and kind of tensor."""
    return {name: tf.type_spec_from_value(feature) for name, feature in features.items()}


def _transformed(graph: Any, feature_spec: Mapping[str, Any]) -> Features:
    """Returns the features of the transform graph, with its vocabularies."""
    with needing_tfx("A transform graph"):
        import tensorflow_transform as tft

    origin = f"the transform graph {graph!r}" if isinstance(graph, str) else "the graph"
    try:
        output = tft.TFTransformOutput(graph) if isinstance(graph, str) else graph
        raw_spec = {**output.raw_feature_spec(), **feature_spec}
        layer = output.transform_features_layer()
        order = Parser.from_schema(output.transformed_metadata.schema, None).element_spec(None)
    except OSError as error:
        raise DataError(
            f"{origin} must be the transform_graph of a Transform component, a directory "
            f"with metadata, transform_fn and transformed_metadata, but: {error}",
            path=graph if isinstance(graph, str) else None,
        ) from error

    def compute(raw: dict[str, Any]) -> dict[str, Any]:
        # The layer's order is that of a set. A model, or preprocess, may join their values(), so
        # they come as they do in training.
        computed = layer(raw)
        return {name: computed[name] for name in order if name in computed}

    return Features(origin, raw_spec, compute, tracked_parts(layer))


@dataclasses.dataclass(frozen=True)
class _Declared:
    """One input.

    Attributes:
        name: the feature that the model wants; None if the input has no name.
        dtype: its type; None for any.
        sparse: whether it takes a `tf.SparseTensor`; None for either.
    """

    name: str | None
    dtype: tf.DType | None = None
    sparse: bool | None = None


def inference_arguments(model: Any) -> dict[str, bool]:
    """Returns `{"training": False}` for a model that takes this argument, else nothing."""
    function = getattr(model, "call", None) or _call_of(model)
    parameters = inspect.signature(getattr(function, "python_function", function)).parameters
    return {"training": False} if "training" in parameters else {}


def declared_inputs(model: Any) -> Any:
    """Returns the model's inputs, declared in the structure that the model is called with.

    Sources, in this order: the `input` of a functional or sequential Keras model, what a subclassed
    Keras model was built or called with, and the `input_signature` of a `tf.function`.

    Returns:
        The structure, for `match_inputs`; None if the model does not declare its inputs.
    """
    symbolic = getattr(model, "inputs", None)
    if symbolic:
        structure = getattr(model, "input", None)  # a Sequential of Keras 3 has none
        return _declared(symbolic[0] if structure is None else structure)
    saved = getattr(model, "save_spec", lambda: None)()  # of Keras 2
    if saved:
        return _declared(saved[0][0])
    config: Any = getattr(model, "get_build_config", dict)() or {}
    shapes = config.get("input_shape")
    if isinstance(shapes, dict):
        return {name: _Declared(name) for name in shapes}
    signature = getattr(_call_of(model), "input_signature", None)
    return _declared(signature[0]) if signature else None


def match_inputs(
    wanted: Any, features: Features, label_keys: Sequence[str] = ()
) -> tuple[dict[str, Any], Any]:
    """Finds the features that the model is called with, and the raw ones that they come from.

    Args:
        wanted: feature names, or `declared_inputs`, in the structure that the model is called
            with; None for a dict of all features that can be computed without the labels.
        features: the available features.
        label_keys: raw features that a prediction must not need.

    Returns:
        The raw features that are needed, name → `tf.io` parsing configuration, and the arguments of
        the model, with feature names in place of tensors.

    Raises:
        ConfigurationError: inputs and features do not fit together; lists all problems.
    """
    unknown_labels = [
        f"expected raw features of {features.origin}, got {key!r}"
        + did_you_mean(key, features.raw_spec)
        for key in label_keys
        if key not in features.raw_spec
    ]
    raise_problems(ConfigurationError, "label_keys", unknown_labels)
    unlabelled = {key: spec for key, spec in features.raw_spec.items() if key not in label_keys}
    specs: dict[str, tf.TypeSpec] = probe(unlabelled, lambda raw: type_specs(features.compute(raw)))
    wanted = {name: name for name in specs} if wanted is None else wanted
    declared = tf.nest.map_structure(
        lambda leaf: leaf if isinstance(leaf, _Declared) else _Declared(leaf), wanted
    )
    problems = [text for leaf in tf.nest.flatten(declared) for text in _problems(leaf, specs)]
    subject = (
        f"the model's inputs must be features of {features.origin}, which without the labels has "
        f"{sorted(specs)}"
    )
    raise_problems(ConfigurationError, subject, problems)
    structure = tf.nest.map_structure(lambda leaf: leaf.name, declared)
    raw_names = features.raw_names(tf.nest.flatten(structure))
    return {key: spec for key, spec in unlabelled.items() if key in raw_names}, structure


def _call_of(model: Any) -> Any:
    is_function = hasattr(model, "get_concrete_function")
    return model if is_function else getattr(model, "__call__", model)  # noqa: B004


def _declared(structure: Any) -> Any:
    """Replaces each symbolic tensor or spec; a dict's key is the name, else its own."""
    if isinstance(structure, dict):
        return {key: _one(spec, key) for key, spec in structure.items()}
    if isinstance(structure, (list, tuple)):
        return type(structure)([_declared(spec) for spec in structure])
    return _one(structure, getattr(structure, "name", None))


def _one(spec: Any, name: str | None) -> _Declared:
    type_spec = getattr(spec, "type_spec", spec)
    sparse = getattr(spec, "sparse", isinstance(type_spec, tf.SparseTensorSpec))
    dtype = getattr(spec, "dtype", None)
    return _Declared(name, None if dtype is None else tf.as_dtype(dtype), sparse)


def _problems(wanted: _Declared, specs: Mapping[str, Any]) -> Iterator[str]:
    if wanted.name is None:
        yield "an input has no name; name its features with inputs="
        return
    spec = specs.get(wanted.name)
    if spec is None:
        yield (
            f"no feature {wanted.name!r}{did_you_mean(wanted.name, specs)}; name the features in "
            "the order or by the names of the inputs with inputs="
        )
        return
    is_sparse = isinstance(spec, tf.SparseTensorSpec)
    if wanted.sparse is False and is_sparse:
        yield (
            f"input {wanted.name!r} is dense and the feature is sparse (not always there, or of "
            "varying length); make it dense with preprocess=, or with "
            f"feature_spec={{{wanted.name!r}: tf.io.FixedLenFeature(shape, dtype, default)}}"
        )
    if wanted.dtype is not None and (wanted.dtype == tf.string) != (spec.dtype == tf.string):
        yield (
            f"input {wanted.name!r} is {wanted.dtype.name} and the feature is {spec.dtype.name}; "
            "convert it with preprocess="
        )


def signature_of_columns(
    compute: Callable[[dict[str, Any]], dict[str, tf.Tensor]], spec: Mapping[str, Any]
) -> Any:
    """Returns a signature that takes a tensor for each raw feature; see `export_model`.

    Args:
        compute: gets the raw features.
        spec: raw feature name → `tf.io` parsing configuration.

    Raises:
        ConfigurationError: a feature cannot be such a tensor.
    """
    problems = [
        f"{name!r} is neither of fixed shape nor a list, but a {type(config).__name__}"
        for name, config in spec.items()
        if not isinstance(config, (tf.io.FixedLenFeature, tf.io.VarLenFeature))
    ]
    raise_problems(ConfigurationError, "columns_signature", problems)
    inputs = [_column_spec(name, spec[key]) for key, name in argument_names(spec).items()]

    def serve(*columns: tf.Tensor) -> dict[str, tf.Tensor]:
        configs = zip(spec.items(), columns, strict=True)
        return compute({name: _raw(column, config) for (name, config), column in configs})

    return tf.function(serve, input_signature=inputs, autograph=False)


def _column_spec(name: str, config: Any) -> tf.TensorSpec:
    if isinstance(config, tf.io.FixedLenFeature):
        shape = [] if list(config.shape) == [1] else list(config.shape)
        return tf.TensorSpec([None, *shape], config.dtype, name)
    # NaN stands for a missing value; float32 would round the numbers of accounts and the like.
    dtype = {tf.string: tf.string, tf.int64: tf.float64}.get(config.dtype, tf.float32)
    return tf.TensorSpec([None], dtype, name)


def _raw(column: tf.Tensor, config: Any) -> Any:
    """Returns a raw feature, as it is parsed from a tf.Example, of a column."""
    if isinstance(config, tf.io.FixedLenFeature):
        return tf.reshape(column, [-1, *config.shape])
    is_there = column != "" if config.dtype == tf.string else ~tf.math.is_nan(column)
    rows = tf.where(is_there)
    values = tf.cast(tf.gather(column, rows[:, 0]), config.dtype)
    shape = [tf.size(column, tf.int64), tf.constant(1, tf.int64)]
    return tf.SparseTensor(tf.pad(rows, [[0, 0], [0, 1]]), values, tf.stack(shape))
