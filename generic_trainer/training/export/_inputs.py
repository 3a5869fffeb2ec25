"""The inputs that a model declares, matched with the available features."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.texts import did_you_mean
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.training.export._features import Features, probe, type_specs


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
    problems = [text for one in tf.nest.flatten(declared) for text in _problems(one, specs)]
    subject = (
        f"the model's inputs must be features of {features.origin}, which without the labels has "
        f"{sorted(specs)}"
    )
    raise_problems(ConfigurationError, subject, problems)
    structure = tf.nest.map_structure(lambda one: one.name, declared)
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
