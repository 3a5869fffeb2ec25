"""Whether a model's inputs are features of the pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from generic_trainer._core.protos import read_schema

__all__ = ["are_features"]


def are_features(names: Iterable[str], fn_args: Any) -> bool:
    """Returns whether the pipeline's schema, or Transform's, has features of all these names.

    Args:
        names: of a model's inputs.
        fn_args: the argument of `run_fn`.
    """
    if getattr(fn_args, "transform_graph_path", None):
        import tensorflow_transform as tft

        transformed = tft.TFTransformOutput(fn_args.transform_graph_path)
        return set(names) <= transformed.transformed_feature_spec().keys()
    if not getattr(fn_args, "schema_path", None):
        return False
    return set(names) <= {feature.name for feature in read_schema(fn_args.schema_path).feature}
