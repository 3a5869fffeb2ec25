"""Features that TensorFlow Transform computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from generic_trainer.errors import DataError
from generic_trainer.training.export._examples import probe
from generic_trainer.training.export._source import Source
from generic_trainer.training.export._tracked import tracked_parts

__all__ = ["TransformedFeatures"]


class TransformedFeatures:
    """The transform graph, with its vocabularies.

    The layer leaves out what depends on raw features that it is not given; so one finds out which
    ones a transformed feature needs, and no label has to be there for a prediction.
    """

    def __init__(self, source: Source, feature_spec: Mapping[str, Any]) -> None:
        """Loads the graph.

        Raises:
            DataError: there is no transform graph at that path.
        """
        import tensorflow_transform as tft

        graph = source.transform_graph
        self.origin = f"the transform graph {graph!r}" if isinstance(graph, str) else "the graph"
        try:
            output = tft.TFTransformOutput(graph) if isinstance(graph, str) else graph
            self.raw_spec = {**output.raw_feature_spec(), **feature_spec}
            self._layer = output.transform_features_layer()
        except OSError as error:
            raise DataError(
                f"{self.origin} must be the transform_graph of a Transform component, a directory "
                f"with metadata, transform_fn and transformed_metadata, but: {error}"
            ) from error
        self.tracked = tracked_parts(self._layer)

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Applies the graph to the raw features that are there."""
        return dict(self._layer(dict(raw)))

    def raw_names(self, names: Iterable[str]) -> set[str]:
        """Leaves out one raw feature after the other and looks what is lost."""
        wanted = set(names)

        def look(raw: dict[str, tf.Tensor]) -> set[str]:
            return {key for key in raw if not wanted <= self(_without(raw, key)).keys()}

        return probe(self.raw_spec, look)


def _without(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: tensor for name, tensor in raw.items() if name != key}
