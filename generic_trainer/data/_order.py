"""Orders in which rows are read: functions from positions in the stream to rows, without state.

Position p of the stream is row number p modulo the number of rows, in epoch p divided by it. Each
epoch is permuted by a keyed bijection (`RandomIndexShuffle`, a block cipher on the row number with
cycle walking), so that an order costs no memory, starts at once, and resumes anywhere. Unshuffled,
the order is that in which TFX reads several files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from generic_trainer.data._columns import ArraySpec
from generic_trainer.data._graph import as_it_stands, eagerly, traced
from generic_trainer.data._loading import Columns
from generic_trainer.data._store import Store

_ROUNDS = 8  # of the cipher; its default of 4 is the least that it permits
# The cipher works on 16 bits at least: below this number of rows it walks too many cycles.
_FEW_ROWS = 1 << 14
_LARGEST = (1 << 62) - 1
_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 1 << 14
_LEAST_WINDOW_ROWS = 1 << 16


class Order(Protocol):
    """The order of the rows of a dataset, epoch after epoch."""

    @property
    def arrays(self) -> tuple[tf.Tensor, ...]:
        """What `rows` needs at hand; a function must not capture it."""

    def rows(self, arrays: Sequence[tf.Tensor], positions: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the rows, int64 [n], at ascending positions, int64 [n].

        Args:
            arrays: `self.arrays`.
            positions: numbers in the endless stream of epochs.
            seed: int32 [2]; the same seed gives the same order.
        """


@dataclass(frozen=True)
class StoredOrder:
    """The same order in every epoch.

    Attributes:
        arrays: the rows in order, int64 [rows]; empty: as they are stored.
    """

    num_rows: int
    arrays: tuple[tf.Tensor, ...] = ()

    def rows(self, arrays: Sequence[tf.Tensor], positions: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        numbers = positions % self.num_rows
        return tf.gather(arrays[0], numbers) if arrays else numbers


@dataclass(frozen=True)
class FullShuffle:
    """Every epoch is a permutation of all rows, drawn anew."""

    num_rows: int
    arrays: tuple[tf.Tensor, ...] = ()

    def rows(self, arrays: Sequence[tf.Tensor], positions: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        epochs = positions // self.num_rows
        if self.num_rows >= _FEW_ROWS:
            return _shuffled(positions % self.num_rows, self.num_rows, seed, epochs)
        permuted = _permutations(self.num_rows, epochs[0], epochs[-1], seed)
        first = epochs[0] * self.num_rows
        return tf.gather(tf.reshape(permuted, [-1]), positions - first)


@dataclass(frozen=True)
class BlockShuffle:
    """Blocks of neighbours in random order, and rows in random order within windows of blocks.

    A window is what must be in memory at a time. Each epoch draws both orders anew.

    Attributes:
        block_rows: rows that lie side by side on disk and are read together.
        window_rows: rows that are mixed; a power of two, and at least 65,536 to be fast.
    """

    num_rows: int
    block_rows: int
    window_rows: int
    arrays: tuple[tf.Tensor, ...] = ()

    def rows(self, arrays: Sequence[tf.Tensor], positions: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        epochs = positions // self.num_rows
        mixed = self._mix_windows(positions % self.num_rows, seed, epochs)
        orders = _permutations(self._num_blocks, epochs[0], epochs[-1], seed)
        return self._place(mixed, epochs - epochs[0], orders)

    def _mix_windows(self, places: tf.Tensor, seed: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
        windows = places // self.window_rows
        start = windows * self.window_rows
        size = tf.minimum(self.num_rows - start, self.window_rows)
        number = -(-self.num_rows // self.window_rows)
        return start + _shuffled(places - start, size, seed, epochs * number + windows)

    def _place(self, places: tf.Tensor, epochs: tf.Tensor, orders: tf.Tensor) -> tf.Tensor:
        # The last block may be short: what lies behind it in the epoch's order is moved by what it
        # lacks.
        missing = self._num_blocks * self.block_rows - self.num_rows
        short = tf.argmax(tf.cast(tf.equal(orders, self._num_blocks - 1), tf.int32), axis=1)
        behind = tf.gather((short + 1) * self.block_rows - missing, epochs) <= places
        shifted = places + tf.where(behind, tf.constant(missing, tf.int64), 0)
        blocks = tf.gather_nd(orders, tf.stack([epochs, shifted // self.block_rows], axis=1))
        return blocks * self.block_rows + shifted % self.block_rows

    @property
    def _num_blocks(self) -> int:
        return -(-self.num_rows // self.block_rows)


def _shuffled(
    places: tf.Tensor, sizes: tf.Tensor | int, seed: tf.Tensor, tweak: tf.Tensor
) -> tf.Tensor:
    """Permutes each of `places` within range(size), by a permutation that `tweak` chooses.

    `tweak` grows by one at most from place to place.
    """
    # Below 65,536 places eight bits of each word of a key count, so all three must differ.
    keys = tf.cast(_draws(tweak[0], tweak[-1], 3, seed), tf.int32)
    largest = tf.broadcast_to(tf.cast(sizes, tf.int64) - 1, tf.shape(places))
    return tf.raw_ops.RandomIndexShuffle(
        index=places, seed=tf.gather(keys, tweak - tweak[0]), max_index=largest, rounds=_ROUNDS
    )


def _permutations(
    size: int, first_epoch: tf.Tensor, last_epoch: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Returns a permutation of range(size) for each epoch, int64 [epochs, size]."""
    draws = _draws(first_epoch, last_epoch, size, seed)
    return tf.cast(tf.argsort(draws, axis=1), tf.int64)


def _draws(first: tf.Tensor, last: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns random numbers for each number from the first to the last, int64 [numbers, size]."""
    draws = tf.raw_ops.RandomIndexShuffle(  # distinct numbers for distinct numbers
        index=tf.range(first * size, (last + 1) * size),
        seed=tf.concat([seed, [0]], axis=0),
        max_index=tf.constant(_LARGEST, tf.int64),
        rounds=_ROUNDS,
    )
    return tf.reshape(draws, [-1, size])


def choose_order(columns: Columns, options: Any, memory_bytes: int) -> Order:
    """Returns the order that a dataset's `options` ask for.

    Where the columns are on disk, the window of a shuffle may take `memory_bytes`.
    """
    num_rows = columns.num_rows
    if not options.shuffle:
        rows = unshuffled_rows(columns.runs, columns.num_files, options.reader_num_threads)
        return StoredOrder(num_rows) if rows is None else StoredOrder(num_rows, _stored(rows))
    if columns.store.in_memory:
        return FullShuffle(num_rows)
    row_bytes = columns.row_bytes
    block_rows = max(_BLOCK_BYTES // row_bytes, -(-num_rows // _MOST_BLOCKS), 1)
    fitting = max(_LEAST_WINDOW_ROWS, memory_bytes // row_bytes)
    return BlockShuffle(num_rows, block_rows, window_rows=1 << (fitting.bit_length() - 1))


def _stored(rows: np.ndarray) -> tuple[tf.Tensor, ...]:
    store = eagerly(lambda: Store([ArraySpec(tf.int64)]))  # its own tensor is of no graph
    store.append([rows])
    return tuple(store.tensors())


def unshuffled_rows(
    runs: Sequence[tuple[int, int]], num_files: int, num_threads: int = tf.data.AUTOTUNE
) -> np.ndarray | None:
    """Returns the rows, int64 [rows], in TFX's order; None when they are stored in it.

    TFX interleaves files record by record, as many at a time as `tf.data` chooses for the machine.

    Args:
        runs: see `Columns`.
        num_files: how many files there are.
        num_threads: what TFX's reader is asked for.
    """
    if num_files == 1:
        return None
    rows_of_files: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(num_files)]
    start = 0
    for file, rows in runs:
        rows_of_files[file].append(np.arange(start, start + rows))
        start += rows
    cycle_length = eagerly(lambda: _cycle_length(num_files, num_threads))
    return interleaved([np.concatenate(rows) for rows in rows_of_files], cycle_length)


def _cycle_length(num_files: int, num_threads: int) -> int:
    """Returns how many of some files TFX reads at a time: `tf.data` is asked with their numbers."""
    twice = traced(lambda number: tf.data.Dataset.from_tensors(number).repeat(2))
    numbers = tf.data.Dataset.range(num_files).interleave(
        twice, num_parallel_calls=num_threads, deterministic=True
    )
    met: set[int] = set()
    for number in map(int, as_it_stands(numbers).as_numpy_iterator()):
        if number in met:
            break
        met.add(number)
    return len(met)


def interleaved(sources: Sequence[np.ndarray], cycle_length: int) -> np.ndarray:
    """Returns the values of arrays [n] in the order of `tf.data.Dataset.interleave`.

    That takes eighteen microseconds a value where it runs in parallel.

    Args:
        sources: the arrays.
        cycle_length: how many of them are open at a time.
    """
    pieces: list[np.ndarray] = []
    waiting = deque(sources)
    opened: list[np.ndarray | None] = [None] * cycle_length
    while waiting or any(values is not None for values in opened):
        # One value of each; a place whose array has ended is empty until its next turn.
        for place, values in enumerate(opened):
            if values is None and waiting:
                values = waiting.popleft()
            if values is not None:
                pieces.append(values[:1])
                opened[place] = values[1:] if len(values) else None
        filled = [values for values in opened if values is not None]
        if filled and (len(filled) == cycle_length or not waiting):
            least = min(map(len, filled))
            pieces.append(np.stack([values[:least] for values in filled], axis=1).ravel())
            opened = [None if values is None else values[least:] for values in opened]
    return np.concatenate(pieces)
