"""Features that a model can be fed with: raw ones as they are, or through the transform graph."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.lazy import needing_tfx
from generic_trainer._core.protos import load_schema
from generic_trainer.data import parse_spec
from generic_trainer.errors import ConfigurationError, DataError
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
            return {
                key
                for key in raw
                if not wanted
                <= self.compute({name: raw[name] for name in raw if name != key}).keys()
            }

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
    except OSError as error:
        raise DataError(
            f"{origin} must be the transform_graph of a Transform component, a directory "
            f"with metadata, transform_fn and transformed_metadata, but: {error}",
            path=graph if isinstance(graph, str) else None,
        ) from error
    return Features(origin, raw_spec, layer, tracked_parts(layer))
