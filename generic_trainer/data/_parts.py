"""The parts of a layout: which features share which columns, and the way there and back.

A part packs parsed features into columns and takes features of chosen rows out of them. Features of
one kind and type share a column, because a batch then costs a few gathers and not one per feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from generic_trainer.data._column import Block, Column, Fixed, Varying

__all__ = ["Arrays", "DensePart", "Features", "Packed", "Part"]

Features = dict[str, tf.Tensor]
Arrays = Sequence[Sequence[tf.Tensor]]


@dataclass(frozen=True)
class Packed:
    """What a part makes of a block of records: arrays per column, and whether they are good."""

    arrays: tuple[tuple[Block, ...], ...]
    spoiled: tf.Tensor


class Part(Protocol):
    """Some features, stored together."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that hold the features."""

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """Returns the arrays of features that `Parser.parse_lists` has parsed."""

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Returns the features of many batches in the form of `_encode`.

        Args:
            arrays: those of each column.
            rows: int64 [batches, batch size].

        Returns:
            Feature → tensor [batches, ...]; a dense one is [batches, batch size, *shape].
        """


@dataclass(frozen=True)
class DensePart:
    """All dense features of one type, or those of strings that are stored in one way.

    Attributes:
        shapes: feature → shape of one example.
        separator: see `Varying`.
    """

    dtype: tf.DType
    shapes: Mapping[str, tuple[int, ...]]
    separator: bytes | None

    @property
    def columns(self) -> tuple[Column, ...]:
        """One column, the features side by side."""
        if self.dtype == tf.string and self.separator is not None:
            return (Varying(self.dtype, self.separator),)
        return (Fixed(self.dtype, self._width),)

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """See `Part`."""
        flat = [tf.reshape(parsed[key], [-1, size]) for key, size in self._sizes()]
        values = tf.concat(flat, axis=1)
        column = self.columns[0]
        if isinstance(column, Fixed):
            return Packed((column.pack(values),), tf.constant(False))
        ragged = tf.RaggedTensor.from_uniform_row_length(
            tf.reshape(values, [-1]), self._width, nrows=tf.shape(values, tf.int64)[0]
        )
        return Packed((column.pack(ragged),), column.spoiled(ragged))

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """See `Part`."""
        column = self.columns[0]
        if isinstance(column, Fixed):  # strings are copied once, where each feature is cut out
            cut = self._cut(column.take(arrays[0], rows))
            return {key: column.decode(arrays[0], values) for key, values in cut}
        flat = tf.reshape(rows, [-1])
        values = column.take(arrays[0], flat, tf.fill(tf.shape(flat), self._width))
        shape = tf.concat([tf.shape(rows), [self._width]], axis=0)
        return dict(self._cut(tf.reshape(values, shape)))

    @property
    def _width(self) -> int:
        return sum(size for _, size in self._sizes())

    def _sizes(self) -> list[tuple[str, int]]:
        return [(key, int(np.prod(shape, dtype=int))) for key, shape in self.shapes.items()]

    def _cut(self, values: tf.Tensor) -> Iterator[tuple[str, tf.Tensor]]:
        if not any(self.shapes.values()):  # scalars only, the common case: one op for all
            yield from zip(self.shapes, tf.unstack(values, axis=2), strict=True)
            return
        sizes = self._sizes()
        batches = tf.shape(values)[:2]
        pieces = tf.split(values, [size for _, size in sizes], axis=2)
        for (key, _), piece in zip(sizes, pieces, strict=True):
            yield key, tf.reshape(piece, tf.concat([batches, self.shapes[key]], axis=0))
