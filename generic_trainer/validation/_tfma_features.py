"""Which features the Evaluator will see."""

from __future__ import annotations

from generic_trainer.validation._model import ModelUnderTest

__all__ = ["feature_dtypes"]

_OF_SCHEMA = {1: "string", 2: "int64", 3: "float32"}  # schema_pb2.FeatureType
_OF_EXAMPLE = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}


def feature_dtypes(model: ModelUnderTest) -> dict[str, str] | None:
    """Returns feature → dtype, from the schema or else from the examples; None without either."""
    if model.schema is not None:
        return {feature.name: _OF_SCHEMA.get(feature.type, "") for feature in model.schema.feature}
    if not model.records:
        return None
    import tensorflow as tf

    found: dict[str, str] = {}
    for record in model.records:
        for name, feature in tf.train.Example.FromString(record).features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind is not None:
                found[name] = _OF_EXAMPLE[kind]
    return found
