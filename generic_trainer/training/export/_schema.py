"""How raw features are parsed, as a schema tells."""

from __future__ import annotations

from typing import Any

from generic_trainer._core.protos import read_schema
from generic_trainer.errors import ConfigurationError

__all__ = ["parse_spec_of"]


def parse_spec_of(schema: Any) -> dict[str, Any]:
    """Returns feature name → `tf.io` parsing configuration.

    The tensors are the ones that TFXIO (`tf_dataset_factory`) reads with the same schema: a feature
    of fixed shape that is always present is dense, any other is sparse.

    Args:
        schema: a `Schema` proto, or the path of one in text format.

    Raises:
        DataError: the file cannot be read or holds no schema.
        ConfigurationError: a feature cannot be parsed from a tf.Example.
    """
    from tfx_bsl.tfxio import tensor_representation_util as representations

    proto = read_schema(schema) if isinstance(schema, str) else schema
    types = {feature.name: feature.type for feature in proto.feature}
    spec = {}
    try:
        tensors = representations.InferTensorRepresentationsFromMixedSchema(proto)
        for name, tensor in tensors.items():
            column = representations.GetSourceValueColumnFromTensorRepresentation(tensor)
            feature_type = types[column.steps()[0]]
            spec[name] = representations.CreateTfExampleParserConfig(tensor, feature_type)
    except (KeyError, NotImplementedError, ValueError) as error:
        raise ConfigurationError(
            f"the schema describes features that a tf.Example cannot hold ({error}); name the "
            "ones that the model needs with feature_spec={name: tf.io.FixedLenFeature(...)}"
        ) from error
    return spec
