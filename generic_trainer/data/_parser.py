"""The parser that a schema makes, as TFX's reader has it, and the tensors that it describes.

TFX's reader (tfx_bsl) has the rules for these tensors as well, but comes with Apache Beam, which a
training without TFX does not need. `tests/data/test_representations.py` holds one against the
other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer._core.machine import available_cpus, free_memory_bytes
from generic_trainer.data._graph import traced
from generic_trainer.data._sources import fits, source_features
from generic_trainer.errors import ConfigurationError, DataError

# TensorFlow takes default values as a Python list of this length.
_MOST_DEFAULTS = 1 << 26
_TYPES = {schema_pb2.BYTES: tf.string, schema_pb2.INT: tf.int64, schema_pb2.FLOAT: tf.float32}
# Stages of a feature's life in which it is not read.
_STAGES = "DEPRECATED", "DISABLED", "PLANNED", "ALPHA", "DEBUG_ONLY", "VALIDATION_DERIVED"
_NOT_READ = {getattr(schema_pb2, stage) for stage in _STAGES}
# `tf.io.parse_example` reads them under the names of their columns, and cannot rename them.
_OF_ONE_COLUMN = tf.io.FixedLenFeature, tf.io.VarLenFeature
# Name in `tfx.proto.example_gen_pb2.PayloadFormat`.
TF_EXAMPLE = "FORMAT_TF_EXAMPLE"
_PARSED_BYTES = 1 << 30
# A batch may be in memory so many times: parsed, put together, and waiting to be taken.
_ROOM_FOR = 3


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
        inferred = {name: tensor for name, tensor in _inferred(schema, types) if name not in used}
    except KeyError as error:
        raise ValueError(
            f"a tensor is made of {error}, which is no feature, or is used twice"
        ) from error
    tensors = {**given, **{name: tensor for name, tensor in inferred.items() if name not in given}}
    for name, tensor in tensors.items():
        if tensor.config.dtype is None:
            raise ValueError(f"{name!r} is neither BYTES nor INT nor FLOAT, as tf.Examples are")
    return tensors


def _explicit(name: str, tensor: Any, types: Mapping[str, Any]) -> Representation:
    """Returns the representation that a `TensorRepresentation` describes."""
    kind = tensor.WhichOneof("kind")
    if kind == "dense_tensor":
        dense = tensor.dense_tensor
        shape = _sizes(dense.shape)
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
        keys = list(sparse.index_column_names)
        sizes = _sizes(sparse.dense_shape)
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
        indices = [features.pop(index.name) for index in sparse.index_feature]
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
    lengths = [part.row_length for part in ragged.partition if part.HasField("row_length")]
    partitions = [
        of.RowLengths(part.row_length)
        if part.HasField("row_length")
        else of.UniformRowLength(part.uniform_row_length)
        for part in ragged.partition
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


@dataclass(frozen=True)
class Parser:
    """Turns batches of serialized tf.Examples into the elements of TFX's reader.

    Attributes:
        features: tf.Example feature → its `tf.io` parsing configuration.
        tensor_names: tf.Example feature → name of the tensor made from it.
        label_key: the tensor that is split off as the label; None: no label.
    """

    features: Mapping[str, Any]
    tensor_names: Mapping[str, str]
    label_key: str | None

    @classmethod
    def from_schema(cls, schema: schema_pb2.Schema | None, label_key: str | None) -> Parser:
        """Reads the tensor representations of a schema as tfx_bsl does.

        Raises:
            ConfigurationError: no schema, an invalid one, or a `label_key` that it does not have;
                a ValueError, as tfx_bsl's own are.
            DataError: the schema has a shape that no memory could hold.
        """
        if schema is None:
            raise ConfigurationError("Examples are read by a schema, and there is none: pass one.")
        features: dict[str, Any] = {}
        tensor_names: dict[str, str] = {}
        try:
            for name, tensor in representations(schema).items():
                is_plain = isinstance(tensor.config, (tf.io.FixedLenFeature, tf.io.VarLenFeature))
                # The key of any other is TFX's, as it decides the order.
                column = tensor.columns[0] if len(tensor.columns) == 1 else name
                key = tensor.columns[0] if is_plain else f"_tfx_bsl_{name}_{column}"
                if key in features:
                    raise ValueError(f"{tensor_names[key]!r} and {name!r} are made of {key!r}")
                features[key] = tensor.config
                tensor_names[key] = name
            parse = tf.function(cls(features, tensor_names, None).parse, autograph=False)
            graph = parse.get_concrete_function(tf.TensorSpec([None], tf.string))
            # The order of TFX's elements: a model may join their `values()`.
            features = {key: features[key] for key in graph.structured_outputs}
        except DataError:
            raise
        except Exception as error:  # of TensorFlow, for configurations that cannot be parsed with
            raise ConfigurationError(
                f"Examples cannot be read by the schema: {error}. Correct the schema."
            ) from error
        if label_key is not None and label_key not in tensor_names.values():
            raise ConfigurationError(
                f"The `label_key` provided ({label_key}) must be one of the following tensor "
                f"names: {sorted(tensor_names.values())}."
            )
        return cls(features, tensor_names, label_key)

    def check_room(self, rows: int) -> None:
        """Raises `DataError` if so many examples cannot be in memory at once.

        TensorFlow allocates memory for the shapes in the schema, and crashes if that fails.
        """
        dense = self._dense_bytes()
        free = free_memory_bytes()
        if rows * sum(dense.values()) > free:
            feature = max(dense, key=lambda key: dense[key])
            raise DataError(
                f"feature {feature!r}: by the schema it has the shape "
                f"{list(self.features[feature].shape)}, and a batch of {rows} examples has "
                f"{rows * sum(dense.values()):,} bytes, of which {free:,} are free. Correct the "
                "shape in the schema, or make batches smaller.",
                feature=feature,
            )

    def rows_at_once(self, most: int) -> int:
        """Returns how many examples to parse together, at least one and at most `most`.

        The number does not depend on the machine, as the order of examples must not.
        """
        return max(1, min(most, _PARSED_BYTES // max(1, sum(self._dense_bytes().values()))))

    def threads(self, rows: int, wanted: int) -> int:
        """Returns how many batches of so many examples to parse at once, at least one.

        Args:
            rows: examples of a batch.
            wanted: how many at most; -1 leaves it to `tf.data`, which takes all processors.
        """
        most = wanted if wanted > 0 else len(available_cpus())
        fitting = free_memory_bytes() // max(1, rows * sum(self._dense_bytes().values()))
        return wanted if fitting >= _ROOM_FOR * most else max(1, fitting // _ROOM_FOR)

    def _dense_bytes(self) -> dict[str, int]:
        # TensorFlow multiplies sizes from first to last, so a 0 at the end prevents no overflow.
        num_bytes = {}
        for key, feature in self.features.items():
            if isinstance(feature, tf.io.FixedLenFeature):
                num_values = math.prod(max(1, size) for size in feature.shape)
                num_bytes[key] = num_values * feature.dtype.size
        return num_bytes

    def parse(self, serialized: tf.Tensor) -> dict[str, Any]:
        """Parses a string tensor [batch] into tf.Example feature → tensor."""
        parsed: dict[str, Any] = tf.io.parse_example(serialized, dict(self.features))
        return parsed

    def parse_lists(self, serialized: tf.Tensor) -> dict[str, Any]:
        """Parses as `parse_fitting` does; `VarLenFeature`s are ragged tensors, which cost less."""
        features = {
            key: tf.io.RaggedFeature(spec.dtype) if isinstance(spec, tf.io.VarLenFeature) else spec
            for key, spec in self.features.items()
        }
        return _parse_fitting(serialized, features)

    def parse_fitting(self, serialized: tf.Tensor) -> dict[str, Any]:
        """Parses as `parse` does, if the columns of a tensor fit each other in each row.

        Raises:
            tf.errors.InvalidArgumentError: they do not, or the examples cannot be parsed.
        """
        return _parse_fitting(serialized, dict(self.features))

    def dataset(
        self, serialized: tf.data.Dataset, num_threads: int, deterministic: bool
    ) -> tf.data.Dataset:
        """Parses batches of serialized tf.Examples into TFX's elements, in parallel."""
        parse = tf.data.experimental.parse_example_dataset(
            dict(self.features), num_threads, deterministic
        )
        return serialized.apply(parse).map(traced(self.element))

    def element_spec(self, batch_size: int | None) -> Any:
        """Returns the `element_spec` of TFX's dataset; `batch_size`: its static size, or None."""
        return self.element(self._specs(batch_size))

    def _specs(self, batch_size: int | None) -> dict[str, Any]:
        """Returns tf.Example feature → type of the tensor made from it."""
        specs: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for key, feature in self.features.items():
            if isinstance(feature, tf.io.FixedLenFeature):
                specs[key] = tf.TensorSpec([batch_size, *feature.shape], feature.dtype)
            elif isinstance(feature, tf.io.VarLenFeature):
                specs[key] = tf.SparseTensorSpec([batch_size, None], feature.dtype)
            else:
                others[key] = feature
        if others:  # there is no simple rule: ask the graph that TFX has
            parse = tf.data.experimental.parse_example_dataset(others)
            records = tf.data.Dataset.from_tensor_slices([b""])
            batches = records.batch(batch_size or 1, drop_remainder=batch_size is not None)
            specs |= batches.apply(parse).element_spec
        return {key: specs[key] for key in self.features}

    def element(self, parsed: Mapping[str, Any]) -> Any:
        """Returns an element of the dataset: `{tensor name: tensor}`, or that and the label."""
        tensors = {self.tensor_names[feature]: tensor for feature, tensor in parsed.items()}
        if self.label_key is None:
            return tensors
        label = tensors.pop(self.label_key)
        return tensors, label

    def ragged_specs(self) -> dict[str, Any]:
        """Returns the `tf.RaggedTensorSpec` of each feature that is a ragged tensor of lists."""
        nested = [key for key, spec in self.features.items() if getattr(spec, "partitions", None)]
        specs = self._specs(None) if nested else {}
        return {key: specs[key] for key in nested}

    def column(self, key: str) -> str:
        """Returns the name of a feature's values in the records."""
        return getattr(self.features[key], "value_key", None) or key

    def key(self) -> str:
        """Returns a string that differs if the parsed columns of two parsers do."""
        return repr(sorted(self.features.items()))


def _parse_fitting(serialized: tf.Tensor, features: dict[str, Any]) -> dict[str, Any]:
    parsed = tf.io.parse_example(serialized, {**source_features(features), **features})
    for fitting in fits(features, parsed):
        tf.debugging.Assert(fitting, ["the columns of a tensor do not fit each other"])
    return {key: parsed[key] for key in features}
