"""The parser that a schema makes, as TFX's reader has it, and the structure of its elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer._core.machine import available_cpus, free_memory_bytes
from generic_trainer.data._graph import traced
from generic_trainer.data._representations import representations
from generic_trainer.errors import ConfigurationError, DataError

# Name in `tfx.proto.example_gen_pb2.PayloadFormat`.
TF_EXAMPLE = "FORMAT_TF_EXAMPLE"

_PARSED_BYTES = 1 << 30
# A batch may be in memory so many times: parsed, put together, and waiting to be taken.
_ROOM_FOR = 3


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
                # The key of any other has no meaning, and must not be that of a plain one.
                key = tensor.columns[0] if is_plain else f"{name} of {tensor.columns}"
                if key in features:
                    raise ValueError(f"{tensor_names[key]!r} and {name!r} are made of {key!r}")
                features[key], tensor_names[key] = tensor.config, name
            parse = tf.function(cls(features, tensor_names, None).parse, autograph=False)
            parse.get_concrete_function(tf.TensorSpec([None], tf.string))
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
            feature = max(dense, key=lambda each: dense[each])
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
        return {
            key: math.prod(max(1, size) for size in feature.shape) * feature.dtype.size
            for key, feature in self.features.items()
            if isinstance(feature, tf.io.FixedLenFeature)
        }

    def parse(self, serialized: tf.Tensor) -> dict[str, Any]:
        """Parses a string tensor [batch] into tf.Example feature → tensor."""
        parsed: dict[str, Any] = tf.io.parse_example(serialized, dict(self.features))
        return parsed

    def parse_lists(self, serialized: tf.Tensor) -> dict[str, Any]:
        """Parses as `parse` does, with ragged tensors for `VarLenFeature`s: they cost less."""
        features = {
            key: tf.io.RaggedFeature(each.dtype) if isinstance(each, tf.io.VarLenFeature) else each
            for key, each in self.features.items()
        }
        parsed: dict[str, Any] = tf.io.parse_example(serialized, features)
        return parsed

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
        nested = [key for key, each in self.features.items() if getattr(each, "partitions", None)]
        specs = self._specs(None) if nested else {}
        return {key: specs[key] for key in nested}

    def column(self, key: str) -> str:
        """Returns the name of a feature's values in the records."""
        return getattr(self.features[key], "value_key", None) or key

    def key(self) -> str:
        """Returns a string that differs if the parsed columns of two parsers do."""
        return repr(sorted(self.features.items()))
