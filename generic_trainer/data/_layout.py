"""The layout of a schema's features in columns; packing features into columns, and back.

A layout has parts: features of one kind and type share a column, because a batch then costs a few
gathers and not one per feature. Dense features are here; `_lists` has those with any number of
values.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from generic_trainer.data._columns import (
    Arrays,
    ArraySpec,
    Block,
    Column,
    Features,
    Fixed,
    Rows,
    Varying,
)
from generic_trainer.data._lists import ListPart, RaggedPart, SparsePart
from generic_trainer.data._parser import Parser


class Part(Protocol):
    """Some features, stored together."""

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that hold the features."""

    def pack(self, parsed: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the values of each column, out of features that `Parser.parse_lists` parsed.

        They are what `Fixed.pack` and `Varying.pack` take: a tensor, or `Rows`.
        """

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Returns the features of many batches encoded as in `_lists`.

        Args:
            arrays: those of each column.
            rows: int64 [batches, batch size].

        Returns:
            Feature → tensor [batches, ...]; a dense one is [batches, batch size, *shape].
        """


@dataclass(frozen=True)
class Layout:
    """All parts that the features of a schema are stored in; see `make_layout`."""

    parts: tuple[Part, ...]
    separator: bytes
    coded: AbstractSet[str]

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """All arrays of all parts."""
        return tuple(
            array for part in self.parts for column in part.columns for array in column.arrays
        )

    def pack(self, parsed: Mapping[str, Any]) -> tuple[tuple[Block, ...], tf.Tensor]:
        """Returns the arrays of a block of parsed features, and whether one cannot be stored."""
        arrays: list[Block] = []
        spoiled = tf.constant(False)
        for part in self.parts:
            for column, values in zip(part.columns, part.pack(parsed), strict=True):
                packed = column.pack(values)
                arrays += packed.arrays
                if packed.spoiled is not None:
                    spoiled |= packed.spoiled
        return tuple(arrays), spoiled

    def take(self, arrays: Sequence[tf.Tensor], vocabulary: tf.Tensor, rows: tf.Tensor) -> Features:
        """Returns all features of many batches; see `Part.take`.

        Args:
            arrays: as they are stored.
            vocabulary: the strings of the codes, string [codes].
            rows: int64 [batches, batch size].
        """
        features: Features = {}
        rest = iter(arrays)
        for part in self.parts:
            stored = [
                (*itertools.islice(rest, len(column.arrays)), vocabulary) for column in part.columns
            ]
            features.update(part.take(stored, rows))
        return features


def make_layout(parser: Parser, separator: bytes, coded: AbstractSet[str]) -> Layout:
    """Returns the layout of the features that a parser yields.

    The strings of the `coded` features are stored as codes, others as words that `separator` ends.
    """
    dense: dict[tuple[tf.DType, bytes | None], dict[str, tuple[int, ...]]] = {}
    lists: dict[tuple[tf.DType, tf.DType | None, bytes | None], list[str]] = {}
    nested: list[Part] = []
    ragged = parser.ragged_specs()
    # Sorted, because the order of a map in a proto differs between processes, while the arrays of
    # columns in the cache are identified by their order.
    for key, feature in sorted(parser.features.items()):
        ending = None if key in coded else separator
        kind = feature.dtype, ending if feature.dtype == tf.string else None
        if isinstance(feature, tf.io.FixedLenFeature):
            dense.setdefault(kind, {})[key] = tuple(feature.shape)
        elif isinstance(feature, tf.io.VarLenFeature):
            lists.setdefault((kind[0], None, kind[1]), []).append(key)
        elif isinstance(feature, tf.io.SparseFeature):
            nested.append(SparsePart(key, feature.dtype, tuple(feature.size), kind[1]))
        elif key in ragged:
            nested.append(RaggedPart(key, ragged[key], kind[1]))
        else:
            lists.setdefault((kind[0], feature.row_splits_dtype, kind[1]), []).append(key)
    return Layout(
        (
            *(DensePart(dtype, shapes, end) for (dtype, end), shapes in dense.items()),
            *(ListPart(dtype, tuple(keys), to, end) for (dtype, to, end), keys in lists.items()),
            *nested,
        ),
        separator,
        coded,
    )


@dataclass(frozen=True)
class DensePart:
    """The `Part` of all dense features of one type, or of strings that are stored in one way.

    Attributes:
        shapes: feature → shape of one example.
        separator: see `Varying`.
    """

    dtype: tf.DType
    shapes: Mapping[str, tuple[int, ...]]
    separator: bytes | None

    @property
    def columns(self) -> tuple[Column]:
        """One column, the features side by side."""
        if self.separator is not None:
            return (Varying(self.dtype, self.separator),)
        return (Fixed(self.dtype, self._width),)

    def pack(self, parsed: Mapping[str, Any]) -> tuple[Any]:
        flat = [tf.reshape(parsed[key], [-1, size]) for key, size in self._sizes.items()]
        values = tf.concat(flat, axis=1)
        if isinstance(self.columns[0], Fixed):
            return (values,)
        widths = tf.fill([tf.shape(values)[0]], tf.constant(self._width, tf.int64))
        return (Rows(tf.reshape(values, [-1]), widths),)

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
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
        return sum(self._sizes.values())

    @property
    def _sizes(self) -> dict[str, int]:
        return {key: math.prod(shape) for key, shape in self.shapes.items()}

    def _cut(self, values: tf.Tensor) -> Iterator[tuple[str, tf.Tensor]]:
        if not any(self.shapes.values()):  # scalars only, the common case: one op for all
            yield from zip(self.shapes, tf.unstack(values, axis=2), strict=True)
            return
        pieces = tf.split(values, list(self._sizes.values()), axis=2)
        batches = tf.shape(values)[:2]
        for (key, shape), piece in zip(self.shapes.items(), pieces, strict=True):
            if len(shape) != 1:  # a piece is a vector of each row already
                piece = tf.reshape(piece, tf.concat([batches, shape], axis=0))
            yield key, piece
