"""How the features of a schema are laid out in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from generic_trainer.data._column import ArraySpec
from generic_trainer.data._nested import RaggedPart, SparsePart
from generic_trainer.data._parse import Parser
from generic_trainer.data._parts import DensePart, Features, GroupPart, Part

__all__ = ["Layout", "PartArrays", "make_layout", "take"]

PartArrays = Sequence[Sequence[Sequence[tf.Tensor]]]


@dataclass(frozen=True)
class Layout:
    """All parts that the features of a schema are stored in.

    Attributes:
        dense: parts whose batches have one size; many batches are made at once and then cut.
        ragged: parts whose batches depend on their rows; made batch by batch.
    """

    dense: tuple[Part, ...]
    ragged: tuple[Part, ...]

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """All arrays of all parts."""
        parts = (*self.dense, *self.ragged)
        return tuple(array for part in parts for column in part.columns for array in column.arrays)

    def pack(self, parsed: Mapping[str, Any]) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        """Returns the arrays of a block of parsed features, and whether one cannot be stored."""
        packed = [part.pack(parsed) for part in (*self.dense, *self.ragged)]
        arrays = tuple(
            array for part in packed for column_arrays in part.arrays for array in column_arrays
        )
        return arrays, tf.reduce_any([part.spoiled for part in packed])

    def split(self, arrays: Sequence[tf.Tensor]) -> tuple[PartArrays, PartArrays]:
        """Returns stored arrays by part and column: those of `dense` and those of `ragged`."""
        rest = iter(arrays)
        dense, ragged = (
            tuple(
                tuple(tuple(next(rest) for _ in column.arrays) for column in part.columns)
                for part in parts
            )
            for parts in (self.dense, self.ragged)
        )
        return dense, ragged


def take(parts: Iterable[Part], arrays: PartArrays, rows: tf.Tensor) -> Features:
    """Returns the features of some parts for chosen rows."""
    features: Features = {}
    for part, part_arrays in zip(parts, arrays, strict=True):
        features.update(part.take(part_arrays, rows))
    return features


def make_layout(parser: Parser, separator: bytes) -> Layout:
    """Returns the layout of the features that a parser yields."""
    features = parser.features
    dense, groups = _Grouped(), _Grouped()
    nested: list[Part] = []
    for key, feature in features.items():
        if isinstance(feature, tf.io.FixedLenFeature):
            dense.add(feature.dtype, key, tuple(feature.shape))
        elif isinstance(feature, tf.io.VarLenFeature):
            groups.add(feature.dtype, key, None)
        elif isinstance(feature, tf.io.SparseFeature):
            nested.append(SparsePart(key, feature.dtype, _dense_shape(feature), separator))
        elif feature.partitions:
            nested.append(RaggedPart(key, _ragged_spec(key, feature), separator))
        else:
            groups.add(feature.dtype, key, feature.row_splits_dtype)
    return Layout(
        tuple(DensePart(dtype, shapes, separator) for dtype, shapes in dense.items()),
        (*(GroupPart(dtype, kinds, separator) for dtype, kinds in groups.items()), *nested),
    )


class _Grouped(dict[tf.DType, dict[str, Any]]):
    def add(self, dtype: tf.DType, key: str, value: Any) -> None:
        self.setdefault(dtype, {})[key] = value


def _dense_shape(feature: tf.io.SparseFeature) -> tuple[int, ...]:
    size = feature.size
    return tuple(size) if isinstance(size, (list, tuple)) else (size,)


def _ragged_spec(key: str, feature: Any) -> tf.RaggedTensorSpec:
    parsed = tf.function(
        lambda records: tf.io.parse_example(records, {key: feature}), autograph=False
    )
    function = parsed.get_concrete_function(tf.TensorSpec([None], tf.string))
    return tf.RaggedTensorSpec.from_value(function.structured_outputs[key])
