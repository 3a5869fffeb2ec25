"""Records of a `tf.data.Dataset` in files, to be read in any order.

`tf.data.Dataset.save` and `snapshot` write files that are read from their beginning; an order drawn
anew for each epoch, and a start in mid-epoch, need any record at once. A store is a directory:

=============  ==================================================================================
`records`      the records, one after another: their components, each by `tf.io.serialize_tensor`
`offsets.npy`  int64 [N + 1], where each of the N records begins, and the end
`spec/`        an empty dataset of the same element spec, by `tf.data.Dataset.save`
=============  ==================================================================================
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import copy_tree, gfile, is_remote

__all__ = ["RecordStore", "copy_store", "is_complete", "write_store"]

_RECORDS, _OFFSETS, _SPEC = "records", "offsets.npy", "spec"
# Records that one call into Python reads: enough for the call to cost next to nothing.
_BLOCK = 64


class RecordStore:
    """A store, opened.

    Attributes:
        count: how many records there are.
    """

    def __init__(self, directory: str) -> None:
        """Opens a local directory, without reading the records."""
        self._offsets = np.load(os.path.join(directory, _OFFSETS))
        self.count = len(self._offsets) - 1
        path = os.path.join(directory, _RECORDS)
        self._records: Any = b""
        if os.path.getsize(path):
            self._records = np.memmap(path, np.uint8, "r")
        self.element_spec = tf.data.Dataset.load(os.path.join(directory, _SPEC)).element_spec

    def read(self, next_order: Callable[[], np.ndarray]) -> tf.data.Dataset:
        """Returns a dataset that asks for an order each time that it is iterated.

        Args:
            next_order: returns the indices of the records of one pass, int64 [M].
        """
        order = tf.data.Dataset.from_tensors(0).flat_map(
            lambda _: tf.data.Dataset.from_tensor_slices(_call(next_order, tf.int64))
        )
        blocks = order.batch(_BLOCK).map(lambda indices: _call(self._block, tf.string, indices))
        return blocks.unbatch().map(self._parse, num_parallel_calls=tf.data.AUTOTUNE)

    def _block(self, indices: np.ndarray) -> np.ndarray:
        starts, ends = self._offsets[indices], self._offsets[indices + 1]
        pairs = zip(starts, ends, strict=True)
        return np.array([bytes(self._records[start:end]) for start, end in pairs], object)

    def _parse(self, record: tf.Tensor) -> Any:
        parts = tf.io.parse_tensor(record, tf.string)
        specs = tf.nest.flatten(self.element_spec, expand_composites=True)
        tensors = [
            tf.ensure_shape(tf.io.parse_tensor(parts[index], spec.dtype), spec.shape)
            for index, spec in enumerate(specs)
        ]
        return tf.nest.pack_sequence_as(self.element_spec, tensors, expand_composites=True)


def write_store(dataset: tf.data.Dataset, directory: str) -> None:
    """Writes the records of a dataset, which is iterated once.

    A reader sees all of the store or none of it. If another process has written it meanwhile, that
    one stays.

    Args:
        dataset: of finite length.
        directory: local or remote; must not be there.
    """
    parent = tempfile.gettempdir() if is_remote(directory) else os.path.dirname(directory)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=parent) as scratch:
        made = os.path.join(scratch, "store")
        os.makedirs(made)
        _write(dataset, made)
        if is_remote(directory):
            copy_store(made, directory)
        elif not os.path.exists(directory):
            os.rename(made, directory)


def copy_store(source: str, target: str) -> None:
    """Copies a store between file systems, the offsets last: with them it is complete."""
    copy_tree(source, target, last=_OFFSETS)


def is_complete(directory: str) -> bool:
    """Whether there is a store in a directory, local or remote."""
    return bool(gfile().exists(os.path.join(directory, _OFFSETS)))


def _write(dataset: tf.data.Dataset, directory: str) -> None:
    offsets = [0]
    with open(os.path.join(directory, _RECORDS), "wb") as file:
        for record in dataset.map(_serialized, num_parallel_calls=tf.data.AUTOTUNE):
            offsets.append(offsets[-1] + file.write(record.numpy()))
    dataset.take(0).save(os.path.join(directory, _SPEC))
    np.save(os.path.join(directory, _OFFSETS), np.array(offsets, np.int64))


def _serialized(*record: Any) -> tf.Tensor:
    parts = tf.nest.flatten(record, expand_composites=True)
    return tf.io.serialize_tensor(tf.stack([tf.io.serialize_tensor(part) for part in parts]))


def _call(function: Callable[..., np.ndarray], dtype: tf.DType, *arguments: Any) -> tf.Tensor:
    made = tf.numpy_function(function, arguments, dtype)
    made.set_shape([None])
    return made
