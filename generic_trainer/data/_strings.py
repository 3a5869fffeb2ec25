"""Strings as 8-byte words: stored without a pointer, turned back by TensorFlow ops at full speed.

No op makes strings of chosen lengths out of bytes, but `serialize_tensor` makes one string of all
of them and `StringSplitV2` cuts it. So each string is stored with a separator behind it, and each
row with a filler that completes its last word: gathering words is many times faster than bytes.
"""

from __future__ import annotations

import tensorflow as tf

__all__ = ["SEPARATORS", "WORD", "holds_separator", "join_strings", "split_strings"]

# The byte 0xff is in no UTF-8 text. Where binary features hold it, the second one takes its place;
# its first byte does not occur again in it, so that it cannot overlap with itself.
SEPARATORS = (b"\xff", b"\xff\x00GenericTrainer\x00")
WORD = tf.int64
_FILLERS = [b"-" * length for length in range(WORD.size)]


def join_strings(rows: tf.RaggedTensor, separator: bytes) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns strings [rows, (number)] as words, and the number of words of each row, int64."""
    terminated = rows.with_flat_values(rows.flat_values + separator)
    texts = tf.strings.reduce_join(terminated, axis=1)
    missing = -(tf.strings.length(texts) + len(separator)) % WORD.size
    texts += tf.gather(_FILLERS, missing) + separator
    words = tf.io.decode_raw(tf.strings.reduce_join(texts), WORD)
    return words, tf.cast(tf.strings.length(texts) // WORD.size, tf.int64)


def holds_separator(strings: tf.Tensor, separator: bytes) -> tf.Tensor:
    """Returns whether joining strings [n] with this separator could not be undone."""
    joined = tf.strings.reduce_join(strings + separator)
    return tf.not_equal(tf.size(_cut(joined, separator)), tf.size(strings) + 1)


def split_strings(words: tf.Tensor, counts: tf.Tensor, separator: bytes) -> tf.Tensor:
    """Undoes `join_strings`.

    Args:
        words: the words of some rows, one row after another.
        counts: number of strings in each row.
        separator: what was stored behind each string.

    Returns:
        All strings, one after another.
    """
    # The content is the last field of a TensorProto.
    proto = tf.io.serialize_tensor(words)
    size = tf.size(words) * WORD.size
    strings = _cut(tf.strings.substr(proto, tf.strings.length(proto) - size, size), separator)
    starts = tf.cumsum(counts + 1, exclusive=True)  # a filler follows the strings of each row
    kept = tf.raw_ops.RaggedRange(
        starts=starts, limits=starts + counts, deltas=tf.constant(1, counts.dtype)
    )
    return tf.gather(strings, kept.rt_dense_values)


def _cut(text: tf.Tensor, separator: bytes) -> tf.Tensor:
    return tf.raw_ops.StringSplitV2(input=tf.expand_dims(text, 0), sep=separator).values
