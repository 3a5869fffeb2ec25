"""Columns of fixed and of varying width, which the parts of a layout are put together from.

Strings are stored as codes of a vocabulary where they repeat, and else as 8-byte words: without a
pointer, and turned back by TensorFlow ops at full speed. No op makes strings of chosen lengths out
of bytes, but `serialize_tensor` makes one string of all of them and `StringSplitV2` cuts it. So
each string is stored with a separator behind it, and each row with a filler that completes its last
word: gathering words is many times faster than bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

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


class Rows(NamedTuple):
    """The values of all rows, one row after another, and the number of each, int64 [rows].

    A `tf.RaggedTensor` holds the same with many more ops: tracing them takes longer than reading
    some ten thousand records.
    """

    values: tf.Tensor
    lengths: tf.Tensor


class Packed(NamedTuple):
    """The arrays of a column, and whether they differ from the values, bool; None: never."""

    arrays: tuple[Block, ...]
    spoiled: tf.Tensor | None = None


@dataclass(frozen=True)
class ArraySpec:
    """One array of a column, as it is stored.

    Attributes:
        dtype: type of its values; never string.
        width: values in a row; None: a flat array, with offsets in the next array.
        cumulative: the parser returns lengths [rows], and offsets [rows + 1] from 0 on are stored.
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

    def pack(self, values: tf.Tensor) -> Packed:
        """Returns the arrays of values [rows, width]."""
        return Packed((_looked_up(values) if self.dtype == tf.string else values,))

    def take(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
        """Returns the values, or codes, [..., width] of the rows with these numbers [...]."""
        return gather(arrays[0], rows)

    def decode(self, arrays: Sequence[tf.Tensor], values: tf.Tensor) -> tf.Tensor:
        """Returns the strings of codes that `take` returned; other values as they are."""
        return gather(arrays[-1], values) if self.dtype == tf.string else values


@dataclass(frozen=True)
class Varying:
    """Any number of values in each row: a flat array and the offsets of the rows in it.

    Attributes:
        separator: the bytes that end strings that are stored as words; None: strings are stored as
            codes, or the values are not strings.
    """

    dtype: tf.DType
    separator: bytes | None

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        values = _spec_of_values(self.dtype) if self.separator is None else ArraySpec(_WORD)
        return values, ArraySpec(tf.int64, cumulative=True)

    def pack(self, rows: Rows) -> Packed:
        """Returns the arrays of some rows; they are spoiled if a string contains the separator."""
        if self.separator is not None:
            return _join_strings(rows, self.separator)
        values, lengths = rows
        return Packed((_looked_up(values) if self.dtype == tf.string else values, lengths))

    def take(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns the values of the rows with these numbers, one row after another.

        `counts` is the number of values of each row, int [len(rows)].
        """
        counts = tf.cast(counts, tf.int64)
        source, starts = self.source(arrays, rows, counts)
        if self.separator is not None:
            return source
        return self.read(arrays, source, ranges(starts, counts))

    def source(
        self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, counts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the source for `read`, and the start of each row in it, int64 [len(rows)]."""
        flat, ends, *_ = arrays
        starts = gather(ends, rows)
        if self.separator is None:
            return flat, starts
        words = gather(flat, ranges(starts, gather(ends, rows + 1) - starts))
        return _split_strings(words, counts, self.separator), tf.cumsum(counts, exclusive=True)

    def read(self, arrays: Sequence[tf.Tensor], source: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Returns the values at some indices of the source that `source` returned."""
        values = gather(source, indices)
        coded = self.dtype == tf.string and self.separator is None
        return gather(arrays[-1], values) if coded else values


Column = Fixed | Varying


def _spec_of_values(dtype: tf.DType, width: int | None = None) -> ArraySpec:
    return ArraySpec(CODE if dtype == tf.string else dtype, width)


def _looked_up(strings: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    distinct, indices = tf.unique(tf.reshape(strings, [-1]), CODE)
    return tf.reshape(indices, tf.shape(strings)), distinct


def _join_strings(rows: Rows, separator: bytes) -> Packed:
    """Returns the strings of all rows as words, and the number of words of each row, int64."""
    values, lengths = rows
    ends = tf.cumsum(lengths)
    starts = ends - lengths
    sizes = tf.cast(tf.strings.length(values), tf.int64) + len(separator)
    offsets = splits_of(sizes)
    row_bytes = gather(offsets, ends) - gather(offsets, starts)
    missing = -(row_bytes + len(separator)) % _WORD.size
    # The filler of each row follows its strings. All fillers follow all strings in the source.
    ones = tf.ones_like(lengths)
    places = tf.stack([starts, tf.size(values, tf.int64) + tf.cumsum(ones, exclusive=True)], axis=1)
    numbers = tf.stack([lengths, ones], axis=1)
    order = ranges(tf.reshape(places, [-1]), tf.reshape(numbers, [-1]))
    pieces = gather(tf.concat([values, gather(tf.constant(_FILLERS), missing)], axis=0), order)
    text = tf.strings.reduce_join(pieces, separator=separator) + separator
    arrays = tf.io.decode_raw(text, _WORD), (row_bytes + missing + len(separator)) // _WORD.size
    spoiled = tf.not_equal(tf.size(_cut(text, separator)), tf.size(pieces) + 1)
    return Packed(arrays, spoiled)


def _split_strings(words: tf.Tensor, counts: tf.Tensor, separator: bytes) -> tf.Tensor:
    """Returns the strings of some rows, one after another; `counts`: the number of each row."""
    # The content is the last field of a TensorProto.
    proto = tf.io.serialize_tensor(words)
    size = tf.size(words) * _WORD.size
    strings = _cut(tf.strings.substr(proto, tf.strings.length(proto) - size, size), separator)
    starts = tf.cumsum(counts + 1, exclusive=True)  # a filler follows the strings of each row
    return gather(strings, ranges(starts, counts))


# Tracing takes most of the time of reading a small data set, and of tracing, the constants that
# TensorFlow makes of every axis, begin and end. So the functions below have few of these.


def gather(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Returns the values at these places of the first dimension."""
    if values.shape.rank == 1:  # `Gather` copies value by value there, for twice the time or more
        indices = tf.raw_ops.ExpandDims(input=indices, axis=tf.constant(-1))
        return tf.raw_ops.GatherNd(params=values, indices=indices)
    return tf.raw_ops.Gather(params=values, indices=indices)


def splits_of(lengths: tf.Tensor) -> tf.Tensor:
    """Returns the starts of rows of these lengths, int64 [rows], and the end of the last one."""
    axis = tf.constant(0)
    ends = tf.raw_ops.Cumsum(x=lengths, axis=axis)
    return tf.raw_ops.ConcatV2(values=[tf.constant([0], tf.int64), ends], axis=axis)


def ranges(starts: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Returns start, start + 1, ..., `length` numbers for each start, one after another."""
    return tf.raw_ops.RaggedRange(
        starts=starts, limits=starts + lengths, deltas=tf.constant(1, starts.dtype)
    ).rt_dense_values


def _cut(text: tf.Tensor, separator: bytes) -> tf.Tensor:
    return tf.raw_ops.StringSplitV2(input=tf.expand_dims(text, 0), sep=separator).values
