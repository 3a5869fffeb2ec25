"""The order in which TFX reads several files unshuffled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from generic_trainer.data._column import ArraySpec
from generic_trainer.data._graph import eagerly, traced
from generic_trainer.data._store import Store

__all__ = ["unshuffled_rows"]

_BATCH = 1 << 16


def unshuffled_rows(
    runs: Sequence[tuple[int, int]], num_files: int, num_threads: int
) -> tuple[tf.Tensor, ...]:
    """Returns the rows, int64 [rows], in TFX's order; () when they are stored in it.

    TFX interleaves files record by record, as many at a time as `tf.data` chooses for the machine.
    The same transformation is applied to row numbers here, so that its choice need not be known.

    Args:
        runs: (file number, rows) of neighbouring rows from one file, in stored order.
        num_files: number of files.
        num_threads: `reader_num_threads`.
    """
    if num_files == 1:
        return ()
    return tuple(eagerly(lambda: _write_order(runs, num_files, num_threads)).tensors())


def _write_order(runs: Sequence[tuple[int, int]], num_files: int, num_threads: int) -> Store:
    starts, sizes = _runs_by_file(runs, num_files)
    order = tf.data.Dataset.from_tensor_slices((starts, sizes)).interleave(
        traced(_rows_of_file), num_parallel_calls=num_threads, deterministic=True
    )
    store = Store([ArraySpec(tf.int64)])
    for rows in order.batch(_BATCH).as_numpy_iterator():
        store.append([rows])
    return store


def _runs_by_file(
    runs: Sequence[tuple[int, int]], num_files: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    starts: list[list[int]] = [[] for _ in range(num_files)]
    sizes: list[list[int]] = [[] for _ in range(num_files)]
    offsets = np.cumsum([0, *(rows for _, rows in runs)])
    for (file, rows), start in zip(runs, offsets, strict=False):
        starts[file].append(int(start))
        sizes[file].append(rows)
    return tf.ragged.constant(starts, tf.int64), tf.ragged.constant(sizes, tf.int64)


def _rows_of_file(starts: tf.Tensor, sizes: tf.Tensor) -> tf.data.Dataset:
    runs = tf.data.Dataset.from_tensor_slices((starts, sizes))
    return runs.flat_map(traced(lambda start, size: tf.data.Dataset.range(start, start + size)))
