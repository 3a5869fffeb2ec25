"""The parser that TFX's reader makes of a schema for tf.SequenceExamples."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar

import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer._core import internals
from generic_trainer.data._parser import MappedParser, as_lists, check_defaults, check_label
from generic_trainer.errors import ConfigurationError


@dataclass(frozen=True)
class SequenceParser(MappedParser):
    """Turns batches of serialized tf.SequenceExamples into what TFX's reader delivers.

    Attributes:
        features: tensor → its `tf.io` parsing configuration, of context and sequence.
        sequence: names of those of the sequence: ragged, the first dimension its steps.
    """

    sequence: frozenset[str] = field(default_factory=frozenset)
    record_type: ClassVar[str] = "tf.SequenceExample"

    @classmethod
    def from_schema(cls, schema: schema_pb2.Schema | None, label_key: str | None) -> SequenceParser:
        """Reads the tensor representations of a schema exactly as tfx_bsl does.

        Raises:
            ConfigurationError: no schema, one without tensor representations, or a `label_key`
                that is none of them; a ValueError, as tfx_bsl's own are.
            DataError: the schema has a shape that no memory could hold.
        """
        if schema is None:
            raise ConfigurationError(
                "no schema: expected one with tensor representations, which tf.SequenceExamples "
                "are read by."
            )
        check_defaults(schema)
        try:
            context, sequence = internals.TFX_BSL_SEQUENCE_PARSER_CONFIG.get()(schema)
        except Exception as error:  # whatever it stumbles over
            raise ConfigurationError(
                f"tfx_bsl cannot read sequence examples by the schema: {error}"
            ) from error
        features = {**context, **sequence}
        check_label(label_key, features)
        return cls(features, {key: key for key in features}, label_key, frozenset(sequence))

    def nested(self) -> AbstractSet[str]:
        return self.sequence | super().nested()

    def parse(self, serialized: tf.Tensor) -> dict[str, Any]:
        return self._parse(serialized, self.features)

    def parse_lists(self, serialized: tf.Tensor) -> dict[str, Any]:
        return self._parse(serialized, as_lists(self.features))

    def _parse(self, serialized: tf.Tensor, features: Mapping[str, Any]) -> dict[str, Any]:
        context, sequence, _ = tf.io.parse_sequence_example(
            serialized,
            {key: each for key, each in features.items() if key not in self.sequence} or None,
            {key: each for key, each in features.items() if key in self.sequence} or None,
        )
        return {**context, **sequence}

    def values_of(self, record: bytes) -> dict[str, list[tf.train.Feature | None]]:
        example = tf.train.SequenceExample.FromString(record)
        context, lists = example.context.feature, example.feature_lists.feature_list
        return {
            key: list(lists[self.column(key)].feature)  # a missing one is empty
            if key in self.sequence
            else [context.get(self.column(key))]
            for key in self.features
        }

    def key(self) -> str:
        return repr(("sequence", sorted(self.sequence), super().key()))
