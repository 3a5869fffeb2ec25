"""Joins the inputs of a model to the features there are."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.training.export._examples import probe
from generic_trainer.training.export._features import Features
from generic_trainer.training.export._inputs import Declared

__all__ = ["Plan", "plan"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a prediction is made from raw features.

    Attributes:
        raw_spec: the raw features that are needed, name → `tf.io` parsing configuration.
        structure: what the model is called with, feature names in place of tensors.
    """

    raw_spec: dict[str, Any]
    structure: Any

    def arguments(self, features: Mapping[str, Any]) -> Any:
        """Returns the structure with the features themselves."""
        return _replace(self.structure, lambda name: features[name])


def plan(wanted: Any, features: Features, label_keys: Sequence[str] = ()) -> Plan:
    """Finds the features that the model is called with, and the raw ones that they come from.

    Args:
        wanted: feature names, or `Declared` inputs, in the structure that the model is called
            with; None for a dict of all features that can be computed without the labels.
        features: what there is.
        label_keys: raw features that a prediction must not need.

    Raises:
        ConfigurationError: inputs and features do not fit together; lists all that is wrong.
    """
    raise_problems(ConfigurationError, "label_keys", _unknown_labels(features, label_keys))
    unlabelled = {key: spec for key, spec in features.raw_spec.items() if key not in label_keys}
    found = probe(unlabelled, lambda raw: _specs(features(raw)))
    wanted = {name: name for name in found} if wanted is None else wanted
    declared = _replace(wanted, lambda leaf: leaf if isinstance(leaf, Declared) else Declared(leaf))
    problems = [text for one in _leaves(declared) for text in _problems(one, found)]
    subject = (
        f"the model's inputs must be features of {features.origin}, which without the labels has "
        f"{sorted(found)}"
    )
    raise_problems(ConfigurationError, subject, problems)
    structure = _replace(declared, lambda one: one.name)
    raw_names = features.raw_names(_leaves(structure))
    return Plan({key: spec for key, spec in unlabelled.items() if key in raw_names}, structure)


def _unknown_labels(features: Features, label_keys: Sequence[str]) -> list[str]:
    return [
        f"expected raw features of {features.origin}, got {key!r}"
        + _did_you_mean(key, features.raw_spec)
        for key in label_keys
        if key not in features.raw_spec
    ]


def _specs(features: Mapping[str, Any]) -> dict[str, tf.TypeSpec]:
    return {name: tf.type_spec_from_value(feature) for name, feature in features.items()}


def _problems(wanted: Declared, found: Mapping[str, Any]) -> Iterator[str]:
    if wanted.name is None:
        yield "an input has no name; say which features it takes with inputs="
        return
    spec = found.get(wanted.name)
    if spec is None:
        yield (
            f"no feature {wanted.name!r}{_did_you_mean(wanted.name, found)}; name the features in "
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


def _did_you_mean(name: str, names: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _replace(structure: Any, function: Callable[[Any], Any]) -> Any:
    """Returns the structure with `function` applied to its leaves."""
    if isinstance(structure, Mapping):
        return {key: _replace(value, function) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)):
        return [_replace(value, function) for value in structure]
    return function(structure)


def _leaves(structure: Any) -> list[Any]:
    found: list[Any] = []
    _replace(structure, found.append)
    return found
