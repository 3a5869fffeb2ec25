"""The two kinds of columns that the parts of a layout are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from generic_trainer.data._strings import WORD, holds_separator, join_strings, split_strings

__all__ = ["ArraySpec", "Column", "Fixed", "Varying"]


@dataclass(frozen=True)
class ArraySpec:
    """One array of a column, as it is stored.

    Attributes:
        dtype: type of its values; never string.
        width: values in a row; None: a flat array whose rows are cut by the array behind it.
        cumulative: the parser gives lengths [rows], stored are offsets [rows + 1] from 0 on.
    """

    dtype: tf.DType
    width: int | None = None
    cumulative: bool = False


@dataclass(frozen=True)
class Fixed:
    """The same number of values in each row: one array [rows, width]."""

    dtype: tf.DType
    width: int

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The arrays that hold the column."""
        return (ArraySpec(self.dtype, self.width),)

    def pack(self, values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the arrays of values [rows, width]."""
        return (values,)

    def take(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
        """Returns the values [len(rows), width] of the rows with these numbers."""
        return tf.gather(arrays[0], rows)


@dataclass(frozen=True)
class Varying:
    """Any number of values in each row: a flat array and the offsets of the rows in it.

    Strings are stored as words, see `join_strings`.
    """

    dtype: tf.DType
    separator: bytes

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The arrays that hold the column."""
        stored = WORD if self.dtype == tf.string else self.dtype
        return ArraySpec(stored), ArraySpec(tf.int64, cumulative=True)

    def pack(self, values: tf.RaggedTensor) -> tuple[tf.Tensor, ...]:
        """Returns the arrays of values [rows, (number in the row)]."""
        if self.dtype != tf.string:
            return values.flat_values, tf.cast(values.row_lengths(), tf.int64)
        return join_strings(values, self.separator)

    def spoiled(self, values: tf.RaggedTensor) -> tf.Tensor:
        """Returns whether the values hold the separator, so that they cannot be stored."""
        if self.dtype != tf.string:
            return tf.constant(False)
        return holds_separator(values.flat_values, self.separator)

    def take(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns the values of the rows with these numbers, one after another.

        `counts` says how many there are in each row, int [len(rows)].
        """
        flat, ends = arrays
        places = tf.raw_ops.RaggedRange(
            starts=tf.gather(ends, rows),
            limits=tf.gather(ends, rows + 1),
            deltas=tf.constant(1, tf.int64),
        ).rt_dense_values
        taken = tf.gather(flat, places)
        if self.dtype == tf.string:
            return split_strings(taken, counts, self.separator)
        return taken


Column = Fixed | Varying
