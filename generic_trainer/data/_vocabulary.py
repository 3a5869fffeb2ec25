"""The distinct strings of the columns whose values repeat: stored once, a code in their place."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from generic_trainer.data._graph import eagerly

__all__ = ["CODE", "Vocabulary", "VocabularyOutgrown"]

CODE = tf.int32

# What a string takes beside its bytes while it is looked up: the object and its place in a `dict`
# that has just grown. As a tensor it takes a sixth of that.
_ENTRY_BYTES = 160


class VocabularyOutgrown(Exception):
    """There are more distinct strings than a vocabulary is worth."""


class Vocabulary:
    """Strings and their codes; grows while records are read.

    Attributes:
        num_bytes: memory that it takes.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Starts empty.

        Args:
            limit_bytes: memory that it may take.
        """
        self.num_bytes = 0
        self._limit_bytes = limit_bytes
        self._codes = _Codes()
        self._strings = tf.constant([], tf.string)

    def codes(self, strings: np.ndarray) -> np.ndarray:
        """Returns the codes, int32 [n], of strings, bytes objects [n]; new ones get new codes.

        Raises:
            VocabularyOutgrown: the limit is passed.
        """
        known = self._codes
        codes = np.fromiter(map(known.__getitem__, strings), CODE.as_numpy_dtype, len(strings))
        self.num_bytes = known.text_bytes + len(known) * _ENTRY_BYTES
        if self.num_bytes > self._limit_bytes:
            raise VocabularyOutgrown
        return codes

    def freeze(self) -> None:
        """Makes the tensor, once all strings are known."""
        strings = list(self._codes)
        self._codes = _Codes()
        self._strings = eagerly(lambda: tf.constant(strings, tf.string))
        self.num_bytes = sum(map(_tensor_bytes, strings))

    def tensor(self) -> tf.Tensor:
        """Returns the strings by code, string [n], as a tensor of the current graph or eager."""
        if tf.executing_eagerly():
            return self._strings
        return tf.constant(eagerly(self._strings.numpy), tf.string)


class _Codes(dict[bytes, int]):
    text_bytes = 0

    def __missing__(self, string: bytes) -> int:
        code = self[string] = len(self)
        self.text_bytes += len(string)
        return code


def _tensor_bytes(string: bytes) -> int:
    # A `tstring`: 24 bytes, 22 characters of which fit into it.
    return 24 + (len(string) if len(string) > 22 else 0)
