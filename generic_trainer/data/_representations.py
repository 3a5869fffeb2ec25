"""The tensors that a schema describes: names, columns and parsing configurations, as TFX's.

TFX's reader (tfx_bsl) has these rules as well, but comes with Apache Beam, which a training without
TFX does not need. `tests/data/test_representations.py` holds one against the other.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.errors import ConfigurationError, DataError

# TensorFlow takes default values as a Python list of this length.
_MOST_DEFAULTS = 1 << 26
_TYPES = {schema_pb2.BYTES: tf.string, schema_pb2.INT: tf.int64, schema_pb2.FLOAT: tf.float32}
# Stages of a feature's life in which it is not read.
_STAGES = "DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED"
_NOT_READ = {getattr(schema_pb2, stage) for stage in _STAGES}
# `tf.io.parse_example` reads them under the names of their columns, and cannot rename them.
_OF_ONE_COLUMN = tf.io.FixedLenFeature, tf.io.VarLenFeature


@dataclass(frozen=True)
class Representation:
    """A tensor of a schema.

    Attributes:
        columns: the features of a tf.Example that it is made of.
        config: its `tf.io` parsing configuration.
    """

    columns: tuple[str, ...]
    config: Any


def representations(schema: schema_pb2.Schema) -> dict[str, Representation]:
    """Returns tensor name → representation.

    Those of the default `tensor_representation_group` come first. The shape of every other feature
    says what it is: dense with a fixed shape, else sparse of any length, or ragged if the schema
    wants it so. A `sparse_feature` is one tensor made of several columns.

    Raises:
        ValueError: a tf.Example cannot hold the features, or the schema contradicts itself.
        DataError: the default values of a tensor would fill the memory.
    """
    types = {feature.name: _TYPES.get(feature.type) for feature in schema.feature}
    groups = schema.tensor_representation_group
    # Reading a group that is not there would add it to the schema.
    explicit = groups[""].tensor_representation if "" in groups else {}
    try:
        given = {name: _explicit(name, tensor, types) for name, tensor in explicit.items()}
        used = {column for tensor in given.values() for column in tensor.columns}
        inferred = {name: each for name, each in _inferred(schema, types) if name not in used}
    except KeyError as error:
        raise ValueError(
            f"a tensor is made of {error}, which is no feature, or is used twice"
        ) from error
    found = {**given, **{name: each for name, each in inferred.items() if name not in given}}
    for name, each in found.items():
        if each.config.dtype is None:
            raise ValueError(f"{name!r} is neither BYTES nor INT nor FLOAT, as tf.Examples are")
    return found


def _explicit(name: str, tensor: Any, types: Mapping[str, Any]) -> Representation:
    """Returns what a `TensorRepresentation` describes."""
    kind = tensor.WhichOneof("kind")
    if kind == "dense_tensor":
        dense, shape = tensor.dense_tensor, _sizes(tensor.dense_tensor.shape)
        default = dense.default_value.WhichOneof("kind")
        if default and math.prod(shape) > _MOST_DEFAULTS:
            raise DataError(
                f"tensor {name!r}: by the schema's tensor_representation_group it has a default "
                f"value and the shape {shape}; expected at most {_MOST_DEFAULTS:,} values. Correct "
                "the shape in the schema.",
                feature=dense.column_name,
            )
        values = default and [getattr(dense.default_value, default)] * math.prod(shape)
        config = tf.io.FixedLenFeature(shape, types[dense.column_name], values)
        return Representation((dense.column_name,), config)
    if kind == "varlen_sparse_tensor":
        column = tensor.varlen_sparse_tensor.column_name
        return Representation((column,), tf.io.VarLenFeature(types[column]))
    if kind == "sparse_tensor":
        sparse = tensor.sparse_tensor
        keys, sizes = list(sparse.index_column_names), _sizes(sparse.dense_shape)
        return _sparse(keys, sparse.value_column_name, sizes, sparse.already_sorted, types)
    path = tensor.ragged_tensor.feature_path.step
    if len(path) != 1:
        raise ValueError(f"{name!r}: expected a ragged_tensor with a feature_path of one step")
    return _ragged(path[0], tensor.ragged_tensor, types)


def _inferred(
    schema: schema_pb2.Schema, types: Mapping[str, Any]
) -> Iterator[tuple[str, Representation]]:
    """Yields a tensor for each feature and each sparse feature that is in use."""
    features = {feature.name: feature for feature in schema.feature}
    for sparse in filter(is_read, schema.sparse_feature):
        indices = [features.pop(each.name) for each in sparse.index_feature]
        value = features.pop(sparse.value_feature.name)
        sizes = [_index_size(sparse.name, index) for index in indices]
        keys = [index.name for index in indices]
        yield sparse.name, _sparse(keys, value.name, sizes, sparse.is_sorted, types)
    for name, feature in features.items():
        if not is_read(feature):
            continue
        if feature.HasField("shape"):
            if feature.presence.min_fraction != 1:
                raise ValueError(
                    f"{name!r} has a shape, and its presence.min_fraction is not 1: a feature that "
                    "may be missing has a value_count"
                )
            config = tf.io.FixedLenFeature(_sizes(feature.shape), types[name])
            yield name, Representation((name,), config)
        elif schema.represent_variable_length_as_ragged:
            yield name, _ragged(name, schema_pb2.TensorRepresentation().ragged_tensor, types)
        else:
            yield name, Representation((name,), tf.io.VarLenFeature(types[name]))


def is_read(feature: Any) -> bool:
    """Whether a feature of a schema is in use."""
    return not (feature.deprecated or feature.lifecycle_stage in _NOT_READ)


def _index_size(sparse: str, index: Any) -> int:
    """Returns the size of a dimension by the domain of its index; -1: unknown."""
    domain = index.int_domain
    if not index.HasField("int_domain"):
        return -1
    if domain.min or not (domain.HasField("min") and domain.HasField("max")):
        raise ValueError(f"{sparse!r}: the int_domain of {index.name!r} must have min: 0 and a max")
    return int(domain.max + 1)


def _sparse(
    keys: list[str], value: str, sizes: list[int], is_sorted: bool, types: Mapping[str, Any]
) -> Representation:
    config = tf.io.SparseFeature(keys, value, types[value], sizes, is_sorted)
    return Representation((*keys, value), config)


def _ragged(column: str, ragged: Any, types: Mapping[str, Any]) -> Representation:
    of = tf.io.RaggedFeature
    lengths = [each.row_length for each in ragged.partition if each.HasField("row_length")]
    partitions = [
        of.RowLengths(each.row_length)
        if each.HasField("row_length")
        else of.UniformRowLength(each.uniform_row_length)
        for each in ragged.partition
    ]
    is_int32 = ragged.row_partition_dtype == schema_pb2.TensorRepresentation.INT32
    splits_dtype = tf.int32 if is_int32 else tf.int64
    return Representation((column, *lengths), of(types[column], column, partitions, splits_dtype))


def _sizes(shape: schema_pb2.FixedShape) -> list[int]:
    return [dim.size for dim in shape.dim]


def parse_spec(schema: Any) -> dict[str, Any]:
    """Returns feature name → `tf.io` parsing configuration of a `Schema` proto or None.

    The tensors are those that TFXIO (`tf_dataset_factory`) reads with the same schema: a feature
    of fixed shape that is always present is dense, any other is sparse.

    Raises:
        ConfigurationError: a tensor has another name than its column, for example.
    """
    if schema is None:
        return {}
    try:
        tensors = representations(schema)
        for name, tensor in tensors.items():
            if (name,) != tensor.columns and isinstance(tensor.config, _OF_ONE_COLUMN):
                raise ValueError(f"tensor {name!r} is made of {tensor.columns[0]!r}")
        return {name: tensor.config for name, tensor in tensors.items()}
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the schema describes features that a tf.Example cannot give ({error}); name the ones "
            "that the model needs with feature_spec={name: tf.io.FixedLenFeature(...)}"
        ) from error
