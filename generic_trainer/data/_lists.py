"""Features that are a list of values per example: `VarLenFeature` and simple ragged ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from generic_trainer.data._column import Fixed, Varying, ranges
from generic_trainer.data._encode import encode_ragged, encode_sparse, sparse_indices
from generic_trainer.data._parts import Arrays, Features, Packed

__all__ = ["ListPart"]

_LENGTH = tf.int32


@dataclass(frozen=True)
class ListPart:
    """All features of one type that are lists and become one kind of tensor.

    Attributes:
        keys: the features.
        splits_dtype: type of the row splits of ragged tensors; None: sparse tensors.
        separator: see `Varying`.
    """

    dtype: tf.DType
    keys: tuple[str, ...]
    splits_dtype: tf.DType | None
    separator: bytes | None

    @property
    def columns(self) -> tuple[Fixed, Varying]:
        """The lengths of all lists, and the values: row by row, feature by feature."""
        return Fixed(_LENGTH, len(self.keys)), Varying(self.dtype, self.separator)

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """See `Part`."""
        lists = [parsed[key] for key in self.keys]
        lengths = tf.stack([tf.cast(each.row_lengths(), _LENGTH) for each in lists])
        starts = tf.cumsum(tf.reshape(lengths, [-1]), exclusive=True)
        by_row = tf.transpose(tf.reshape(starts, tf.shape(lengths)))
        lengths = tf.transpose(lengths)
        order = ranges(tf.reshape(by_row, [-1]), tf.reshape(lengths, [-1]))
        values = tf.RaggedTensor.from_row_lengths(
            tf.gather(tf.concat([each.flat_values for each in lists], axis=0), order),
            tf.reduce_sum(lengths, axis=1),
            validate=False,
        )
        first, second = self.columns
        return Packed((first.pack(lengths), second.pack(values)), second.spoiled(values))

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """See `Part`."""
        first, second = self.columns
        flat_rows = tf.reshape(rows, [-1])
        lengths = tf.cast(first.take(arrays[0], flat_rows), tf.int64)
        source, starts = second.source(arrays[1], flat_rows, tf.reduce_sum(lengths, axis=1))
        starts = starts[:, tf.newaxis] + tf.cumsum(lengths, axis=1, exclusive=True)
        lengths = tf.transpose(lengths)  # from here on feature by feature, row by row
        cells = tf.reshape(lengths, [-1])
        places = ranges(tf.reshape(tf.transpose(starts), [-1]), cells)
        values = second.read(arrays[1], source, places)
        batches = tf.shape(rows, tf.int64)
        if self.splits_dtype is None:
            return self._sparse(values, cells, batches)
        return self._ragged(values, lengths, batches[1])

    def _sparse(self, values: tf.Tensor, cells: tf.Tensor, batches: tf.Tensor) -> Features:
        tensors = len(self.keys) * batches[0]
        lengths = tf.reshape(cells, tf.stack([tensors, batches[1]]))
        longest = tf.reduce_max(lengths, axis=1)
        shapes = tf.stack([tf.fill([tensors], batches[1]), longest], axis=1)
        encoded = encode_sparse(sparse_indices(lengths), values, shapes)
        by_feature = tf.reshape(encoded, tf.stack([len(self.keys), batches[0], 3]))
        return dict(zip(self.keys, tf.unstack(by_feature), strict=True))

    def _ragged(self, values: tf.Tensor, lengths: tf.Tensor, batch_size: tf.Tensor) -> Features:
        sizes = tf.reduce_sum(lengths, axis=1)
        splits = tf.pad(tf.cumsum(tf.cast(lengths, self.splits_dtype), axis=1), [[0, 0], [1, 0]])
        return {
            key: encode_ragged(feature_values, [feature_splits], batch_size)
            for key, feature_values, feature_splits in zip(
                self.keys,
                tf.split(values, sizes, num=len(self.keys)),
                tf.unstack(splits),
                strict=True,
            )
        }
