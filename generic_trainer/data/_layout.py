"""How the features of a schema are laid out in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from generic_trainer.data._column import ArraySpec, Block
from generic_trainer.data._lists import ListPart
from generic_trainer.data._nested import RaggedPart, SparsePart
from generic_trainer.data._parse import Parser
from generic_trainer.data._parts import DensePart, Features, Part

__all__ = ["Layout", "make_layout"]


@dataclass(frozen=True)
class Layout:
    """All parts that the features of a schema are stored in."""

    parts: tuple[Part, ...]

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """All arrays of all parts."""
        return tuple(
            array for part in self.parts for column in part.columns for array in column.arrays
        )

    def pack(self, parsed: Mapping[str, Any]) -> tuple[tuple[Block, ...], tf.Tensor]:
        """Returns the arrays of a block of parsed features, and whether one cannot be stored."""
        packed = [part.pack(parsed) for part in self.parts]
        arrays = tuple(
            array for part in packed for column_arrays in part.arrays for array in column_arrays
        )
        return arrays, tf.reduce_any([part.spoiled for part in packed])

    def take(self, arrays: Sequence[tf.Tensor], vocabulary: tf.Tensor, rows: tf.Tensor) -> Features:
        """Returns all features of many batches; see `Part.take`.

        Args:
            arrays: as they are stored.
            vocabulary: what codes stand for, string [codes].
            rows: int64 [batches, batch size].
        """
        features: Features = {}
        for part, part_arrays in zip(self.parts, self._by_part(arrays, vocabulary), strict=True):
            features.update(part.take(part_arrays, rows))
        return features

    def _by_part(
        self, arrays: Sequence[tf.Tensor], vocabulary: tf.Tensor
    ) -> Iterator[tuple[tuple[tf.Tensor, ...], ...]]:
        rest = iter(arrays)
        for part in self.parts:
            yield tuple(
                (*(next(rest) for _ in column.arrays), vocabulary) for column in part.columns
            )


def make_layout(parser: Parser, separator: bytes, coded: AbstractSet[str]) -> Layout:
    """Returns the layout of the features that a parser yields.

    Args:
        parser: it knows the features.
        separator: what ends strings that are stored as words.
        coded: the features whose strings are stored as codes.
    """
    dense: dict[tuple[tf.DType, bytes | None], dict[str, tuple[int, ...]]] = {}
    lists: dict[tuple[tf.DType, tf.DType | None, bytes | None], list[str]] = {}
    nested: list[Part] = []
    for key, feature in parser.features.items():
        ending = None if key in coded else separator
        kind = feature.dtype, ending if feature.dtype == tf.string else None
        if isinstance(feature, tf.io.FixedLenFeature):
            dense.setdefault(kind, {})[key] = tuple(feature.shape)
        elif isinstance(feature, tf.io.VarLenFeature):
            lists.setdefault((kind[0], None, kind[1]), []).append(key)
        elif isinstance(feature, tf.io.SparseFeature):
            nested.append(SparsePart(key, feature.dtype, _dense_shape(feature), kind[1]))
        elif feature.partitions:
            nested.append(RaggedPart(key, _ragged_spec(key, feature), kind[1]))
        else:
            lists.setdefault((kind[0], feature.row_splits_dtype, kind[1]), []).append(key)
    return Layout(
        (
            *(DensePart(dtype, shapes, end) for (dtype, end), shapes in dense.items()),
            *(ListPart(dtype, tuple(keys), to, end) for (dtype, to, end), keys in lists.items()),
            *nested,
        )
    )


def _dense_shape(feature: tf.io.SparseFeature) -> tuple[int, ...]:
    size = feature.size
    return tuple(size) if isinstance(size, (list, tuple)) else (size,)


def _ragged_spec(key: str, feature: Any) -> tf.RaggedTensorSpec:
    parsed = tf.function(
        lambda records: tf.io.parse_example(records, {key: feature}), autograph=False
    )
    function = parsed.get_concrete_function(tf.TensorSpec([None], tf.string))
    return tf.RaggedTensorSpec.from_value(function.structured_outputs[key])
