"""Columns of fixed and of varying width, which the parts of a layout are put together from.

Strings are stored as codes of a vocabulary where they repeat, and else as 8-byte words: without a
pointer, and turned back by TensorFlow ops at full speed. No op makes strings of chosen lengths out
of bytes, but `serialize_tensor` makes one string of all of them and `StringSplitV2` cuts it. So
each string is stored with a separator behind it, and each row with a filler that completes its last
word: gathering words is many times faster than bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

CODE = tf.int32
_WORD = tf.int64

# The byte 0xff is in no UTF-8 text. Where binary features hold it, the second one takes its place;
# its first byte does not occur again in it, so that it cannot overlap with itself.
SEPARATORS = (b"\xff", b"\xff\x00GenericTrainer\x00")
_FILLERS = [b"-" * length for length in range(_WORD.size)]

# An array of a block of records: a tensor, or distinct strings' indices and these strings.
Block: TypeAlias = "tf.Tensor | tuple[tf.Tensor, tf.Tensor]"
Arrays = Sequence[Sequence[tf.Tensor]]  # of some columns
Features = dict[str, tf.Tensor]


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
    """The same number of values in each row: one array [rows, width], of codes if of strings."""

    dtype: tf.DType
    width: int

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
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
        separator: what ends strings that are stored as words; None: they are stored as codes, or
            the values are no strings.
    """

    dtype: tf.DType
    separator: bytes | None

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        values = _spec_of_values(self.dtype) if self.separator is None else ArraySpec(_WORD)
        return values, ArraySpec(tf.int64, cumulative=True)

    def pack(self, values: tf.RaggedTensor) -> tuple[Block, ...]:
        """Returns the arrays of values [rows, (number in the row)]."""
        if self.separator is not None:
            return _join_strings(values, self.separator)
        flat = values.flat_values
        packed = _looked_up(flat) if self.dtype == tf.string else flat
        return packed, tf.cast(values.row_lengths(), tf.int64)

    def spoiled(self, values: tf.RaggedTensor) -> tf.Tensor:
        """Returns whether the values hold the separator, so that they cannot be stored."""
        if self.separator is None:
            return tf.constant(False)
        joined = tf.strings.reduce_join(values.flat_values + self.separator)
        cut = _cut(joined, self.separator)
        return tf.not_equal(tf.size(cut), tf.size(values.flat_values) + 1)

    def take(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns the values of the rows with these numbers, one after another.

        `counts` says how many there are in each row, int [len(rows)].
        """
        counts = tf.cast(counts, tf.int64)
        source, starts = self.source(arrays, rows, counts)
        if self.separator is not None:
            return source
        return self.read(arrays, source, ranges(starts, counts))

    def source(
        self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, counts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what `read` reads from, and where in it each row starts, int64 [len(rows)]."""
        flat, ends, *_ = arrays
        starts = tf.gather(ends, rows)
        if self.separator is None:
            return flat, starts
        words = tf.gather(flat, ranges(starts, tf.gather(ends, rows + 1) - starts))
        return _split_strings(words, counts, self.separator), tf.cumsum(counts, exclusive=True)

    def read(self, arrays: Sequence[tf.Tensor], source: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Returns the values at some indices of what `source` returned."""
        values = tf.gather(source, indices)
        coded = self.dtype == tf.string and self.separator is None
        return tf.gather(arrays[-1], values) if coded else values


Column = Fixed | Varying


def _spec_of_values(dtype: tf.DType, width: int | None = None) -> ArraySpec:
    return ArraySpec(CODE if dtype == tf.string else dtype, width)


def _looked_up(strings: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    distinct, indices = tf.unique(tf.reshape(strings, [-1]), CODE)
    return tf.reshape(indices, tf.shape(strings)), distinct


def _join_strings(rows: tf.RaggedTensor, separator: bytes) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns strings [rows, (number)] as words, and the number of words of each row, int64."""
    terminated = rows.with_flat_values(rows.flat_values + separator)
    texts = tf.strings.reduce_join(terminated, axis=1)
    missing = -(tf.strings.length(texts) + len(separator)) % _WORD.size
    texts += tf.gather(_FILLERS, missing) + separator
    words = tf.io.decode_raw(tf.strings.reduce_join(texts), _WORD)
    return words, tf.cast(tf.strings.length(texts) // _WORD.size, tf.int64)


def _split_strings(words: tf.Tensor, counts: tf.Tensor, separator: bytes) -> tf.Tensor:
    """Returns the strings of some rows, one after another; `counts`: how many each row has."""
    # The content is the last field of a TensorProto.
    proto = tf.io.serialize_tensor(words)
    size = tf.size(words) * _WORD.size
    strings = _cut(tf.strings.substr(proto, tf.strings.length(proto) - size, size), separator)
    starts = tf.cumsum(counts + 1, exclusive=True)  # a filler follows the strings of each row
    return tf.gather(strings, ranges(starts, counts))


def ranges(starts: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Returns start, start + 1 ... for each start, `length` many, one after another."""
    return tf.raw_ops.RaggedRange(
        starts=starts, limits=starts + lengths, deltas=tf.constant(1, starts.dtype)
    ).rt_dense_values


def _cut(text: tf.Tensor, separator: bytes) -> tf.Tensor:
    return tf.raw_ops.StringSplitV2(input=tf.expand_dims(text, 0), sep=separator).values
