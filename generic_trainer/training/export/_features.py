"""What a model can be fed with: raw features as they are, or through the transform graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from generic_trainer.errors import ConfigurationError
from generic_trainer.training.export._schema import parse_spec_of
from generic_trainer.training.export._source import Source
from generic_trainer.training.export._transform import TransformedFeatures

__all__ = ["Features", "features_of"]


class Features(Protocol):
    """From raw features to the features that the model was trained on.

    Attributes:
        origin: where the features are described, for messages.
        raw_spec: raw feature name → `tf.io` parsing configuration.
        tracked: what must be saved with the model for `__call__` to work.
    """

    origin: str
    raw_spec: dict[str, Any]
    tracked: list[Any]

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the features that can be computed from some raw ones."""

    def raw_names(self, names: Iterable[str]) -> set[str]:
        """Returns the raw features that the features `names` are computed from."""


def features_of(source: Source, feature_spec: Mapping[str, Any]) -> Features:
    """Returns the features of the transform graph where there is one, else the raw ones.

    Args:
        source: transform graph and schema.
        feature_spec: parsing configurations that the user names; they replace those found.

    Raises:
        ConfigurationError: nothing says which features there are.
    """
    if source.transform_graph is not None:
        return TransformedFeatures(source, feature_spec)
    if source.schema is None and not feature_spec:
        raise ConfigurationError(
            "export_model has to know the raw features: pass transform_graph=, schema= or "
            "feature_spec=; from fn_args they come when the component is given the outputs of "
            "Transform or SchemaGen"
        )
    return RawFeatures(source.schema, feature_spec)


class RawFeatures:
    """The model reads raw features: there is no Transform, or the model has it inside."""

    def __init__(self, schema: Any, feature_spec: Mapping[str, Any]) -> None:
        """Reads the schema, if there is one."""
        self.origin = "the schema" if schema is not None else "feature_spec"
        found = parse_spec_of(schema) if schema is not None else {}
        self.raw_spec = {**found, **feature_spec}
        self.tracked: list[Any] = []

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the raw features."""
        return dict(raw)

    def raw_names(self, names: Iterable[str]) -> set[str]:
        """Returns the names."""
        return set(names)
