"""The two kinds of columns that the parts of a layout are put together from.

Strings are stored as codes of a vocabulary where they repeat, and else as words (`join_strings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

from generic_trainer.data._strings import WORD, holds_separator, join_strings, split_strings
from generic_trainer.data._vocabulary import CODE

__all__ = ["ArraySpec", "Block", "Column", "Fixed", "Varying", "ranges"]

# An array of a block of records: a tensor, or places and the strings that they are places in.
Block: TypeAlias = "tf.Tensor | tuple[tf.Tensor, tf.Tensor]"


@dataclass(frozen=True)
class ArraySpec:
    """One array of a column, as it is stored.

    Attributes:
        dtype: type of its values; never string.
        width: values in a row; None: a flat array whose rows are cut by the array behind it.
        cumulative: the parser gives lengths [rows], stored are offsets [rows + 1] from 0 on.
        coded: the parser gives strings and places in them, stored are codes of the vocabulary.
    """

    dtype: tf.DType
    width: int | None = None
    cumulative: bool = False
    coded: bool = False


@dataclass(frozen=True)
class Fixed:
    """The same number of values in each row: one array [rows, width], of codes if of strings."""

    dtype: tf.DType
    width: int

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The arrays that hold the column."""
        return (_spec_of_values(self.dtype, self.width),)

    def pack(self, values: tf.Tensor) -> tuple[Block, ...]:
        """Returns the arrays of values [rows, width]."""
        return (_looked_up(values) if self.dtype == tf.string else values,)

    def take(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
        """Returns the values, or codes, [..., width] of the rows with these numbers [...]."""
        return tf.gather(arrays[0], rows)

    def decode(self, arrays: Sequence[tf.Tensor], values: tf.Tensor) -> tf.Tensor:
        """Returns what some of the values that `take` returned stand for."""
        return tf.gather(arrays[-1], values) if self.dtype == tf.string else values


@dataclass(frozen=True)
class Varying:
    """Any number of values in each row: a flat array and the offsets of the rows in it.

    Attributes:
        separator: what ends strings that are stored as words; None: they are stored as codes.
    """

    dtype: tf.DType
    separator: bytes | None

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The arrays that hold the column."""
        words = self._ending is not None
        values = ArraySpec(WORD) if words else _spec_of_values(self.dtype, None)
        return values, ArraySpec(tf.int64, cumulative=True)

    def pack(self, values: tf.RaggedTensor) -> tuple[Block, ...]:
        """Returns the arrays of values [rows, (number in the row)]."""
        if self._ending is not None:
            return join_strings(values, self._ending)
        flat = values.flat_values
        packed = _looked_up(flat) if self.dtype == tf.string else flat
        return packed, tf.cast(values.row_lengths(), tf.int64)

    def spoiled(self, values: tf.RaggedTensor) -> tf.Tensor:
        """Returns whether the values hold the separator, so that they cannot be stored."""
        if self._ending is None:
            return tf.constant(False)
        return holds_separator(values.flat_values, self._ending)

    def take(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns the values of the rows with these numbers, one after another.

        `counts` says how many there are in each row, int [len(rows)].
        """
        counts = tf.cast(counts, tf.int64)
        source, starts = self.source(arrays, rows, counts)
        return (
            source
            if self._ending is not None
            else self.read(arrays, source, ranges(starts, counts))
        )

    def source(
        self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, counts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what `read` reads from, and where in it each row starts, int64 [len(rows)]."""
        flat, ends, *_ = arrays
        starts = tf.gather(ends, rows)
        if self._ending is None:
            return flat, starts
        words = tf.gather(flat, ranges(starts, tf.gather(ends, rows + 1) - starts))
        return split_strings(words, counts, self._ending), tf.cumsum(counts, exclusive=True)

    def read(self, arrays: Sequence[tf.Tensor], source: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Returns the values at places in what `source` returned."""
        values = tf.gather(source, places)
        coded = self.dtype == tf.string and self._ending is None
        return tf.gather(arrays[-1], values) if coded else values

    @property
    def _ending(self) -> bytes | None:
        return self.separator if self.dtype == tf.string else None


Column = Fixed | Varying


def ranges(starts: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Returns start, start + 1 ... for each start, `length` many, one after another."""
    return tf.raw_ops.RaggedRange(
        starts=starts, limits=starts + lengths, deltas=tf.constant(1, starts.dtype)
    ).rt_dense_values


def _spec_of_values(dtype: tf.DType, width: int | None) -> ArraySpec:
    coded = dtype == tf.string
    return ArraySpec(CODE if coded else dtype, width, coded=coded)


def _looked_up(strings: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    distinct, places = tf.unique(tf.reshape(strings, [-1]), CODE)
    return tf.reshape(places, tf.shape(strings)), distinct
