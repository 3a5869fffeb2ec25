"""Strings as bytes: stored without a pointer, turned back by TensorFlow ops at full speed.

No op makes strings of chosen lengths out of bytes, but `serialize_tensor` makes one string of all
of them and `StringSplitV2` cuts it. So each string is stored with a separator behind it.
"""

from __future__ import annotations

import tensorflow as tf

__all__ = ["SEPARATORS", "holds_separator", "join_strings", "split_strings"]

# The byte 0xff is in no UTF-8 text. Where binary features hold it, the second one takes its place;
# its first byte does not occur again in it, so that it cannot overlap with itself.
SEPARATORS = (b"\xff", b"\xff\x00GenericTrainer\x00")


def join_strings(strings: tf.Tensor, separator: bytes) -> tf.Tensor:
    """Returns strings [n] as uint8 bytes, each followed by the separator."""
    return tf.io.decode_raw(tf.strings.reduce_join(strings + separator), tf.uint8)


def holds_separator(strings: tf.Tensor, separator: bytes) -> tf.Tensor:
    """Returns whether joining strings [n] with this separator could not be undone."""
    joined = tf.strings.reduce_join(strings + separator)
    return tf.not_equal(tf.size(_cut(joined, separator)), tf.size(strings) + 1)


def split_strings(joined: tf.Tensor, count: tf.Tensor, separator: bytes) -> tf.Tensor:
    """Undoes `join_strings`: uint8 bytes to `count` strings."""
    # The bytes are the last field of a TensorProto.
    proto = tf.io.serialize_tensor(joined)
    size = tf.size(joined)
    text = tf.strings.substr(proto, tf.strings.length(proto) - size, size)
    return _cut(text, separator)[:count]


def _cut(text: tf.Tensor, separator: bytes) -> tf.Tensor:
    return tf.raw_ops.StringSplitV2(input=tf.expand_dims(text, 0), sep=separator).values
