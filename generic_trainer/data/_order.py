"""Orders in which rows are read: functions from positions in the stream to rows, without state.

A dataset is an endless stream of epochs. With n rows, position p of the stream is place p % n of
epoch p // n, and an order maps it to a row. The usual shuffle keeps a buffer of rows and draws from
it; it has a state, has to fill the buffer first, and cannot jump to a position. Here a shuffle is a
formula instead.

Six rows in batches of four, in the first two epochs::

    random numbers of epoch 0     41  7 88 23 60 15      of (seed, 0), for places 0 to 5
    rows in their order            1  5  3  0  4  2      `argsort` of them: a permutation
    random numbers of epoch 1     50 93  4 71 38 66
    rows in their order            2  4  0  5  3  1
    batch                         |----0----|----1----|----2----|
    position                       0  1  2  3  4  5  6  7  8  9 10 11
    row                            1  5  3  0  4  2  2  4  0  5  3  1

A run that resumes at batch 1 computes the rows 4, 2, 2, 4 from positions 4 to 7 and the seed. Batch
0 is not needed for that, and no buffer is filled. Sorting serves blocks, and data of fewer than
16,384 rows.

For single rows of larger data the formula is the op `RandomIndexShuffle(index, key, max_index)`: a
bijection of the numbers from 0 to `max_index`, chosen by the key. Inside, it is a small block
cipher. A cipher permutes the numbers of so many bits by mixing their halves with the key, round
after round; every round can be undone, so no two numbers meet. The numbers from 0 to `max_index`
are rarely a power of two, so the op encrypts again whenever the result is too large ("cycle
walking"): the walk ends, because it would otherwise come back to its start, which is small enough.
So

1. an epoch with key k reads row cipher(k, place) at each place: every row once, in random order;
2. no permutation is stored: 20 million rows cost as much memory as 20;
3. the first batch is there at once, and so is any later one: a resumed run computes the same rows
   from a position, and the batches of an epoch can be computed in parallel, in any order;
4. keys are random numbers for (seed, epoch), drawn by the same op from the seed (`_draws`), so that
   every epoch has another permutation, and all workers with the same seed have the same ones.

Unshuffled, the order is that in which TFX reads several files.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.data._columns import ArraySpec
from generic_trainer.data._graph import as_it_stands, eagerly, traced
from generic_trainer.data._loading import FILES_AT_A_TIME, Columns
from generic_trainer.data._store import Store

_ROUNDS = 8  # of the cipher; its default of 4 is the least that it permits
# The cipher works on 16 bits at least. For n rows it encrypts 65536 / n times on average until the
# result is a row, so for fewer rows than this, sorting random numbers is faster.
_FEW_ROWS = 1 << 14
_LARGEST = (1 << 62) - 1
_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 1 << 14
_LEAST_WINDOW_ROWS = 1 << 16
# A window is up to twice as large, as its rows are a power of two. This much of the columns has to
# be in memory, or in the page cache, to be shuffled fast.
_WINDOW_BYTES = 1 << 29


@dataclass(frozen=True)
class StoredOrder:
    """The same order in every epoch.

    Attributes:
        arrays: the rows in order, int64 [rows]; empty if that is the order of their storage.
    """

    num_rows: int
    arrays: tuple[tf.Tensor, ...] = ()

    def rows(self, arrays: Sequence[tf.Tensor], positions: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """See `Shuffle.rows`."""
        numbers = positions % self.num_rows
        return tf.gather(arrays[0], numbers) if arrays else numbers


@dataclass(frozen=True)
class Shuffle:
    """Blocks of neighbours in random order, and rows in random order within windows of blocks.

    A full shuffle of more rows than memory holds would read a page of the disk for each row. So an
    epoch is shuffled on two levels, each drawn anew:

    1. The blocks, some MiB of rows that are stored side by side, get a random order. Laid out in
       that order they are the shelf from which the epoch reads.
    2. The shelf is cut into windows, and within each window the places are permuted.

    Position → place in its window, permuted (`_mix_windows`) → block on the shelf, and so row
    (`_place`). While the epoch reads a window, only the blocks of that window are touched; they
    come from everywhere in the data.

    ::

        rows       |  A  |  B  |  C  |  D  |  E  |F|      blocks; the last one is short
        shelf      |  D  |  B  |F|  A  |  E  |  C  |      their order in this epoch
        windows    |~~~~~~~~~~~~~|~~~~~~~~~~~~~|~~~|      rows are mixed within each

    Either level alone shuffles all rows: one window of all of them, or blocks of a single row.

    Attributes:
        block_rows: rows of a block.
        window_rows: rows of a window; if there are several, a power of two, for which the cipher
            walks the least, and at least 65,536, the least that it works on. 1: none are mixed.
        arrays: tensors that `rows` takes; passed as arguments, as captured ones would be copied.
    """

    num_rows: int
    block_rows: int
    window_rows: int
    arrays: tuple[tf.Tensor, ...] = ()

    def rows(self, arrays: Sequence[tf.Tensor], positions: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the rows, int64 [n], at ascending positions, int64 [n].

        Args:
            arrays: `self.arrays`.
            positions: numbers in the endless stream of epochs.
            seed: int32 [2]; the same seed gives the same order.
        """
        epochs = positions // self.num_rows
        places = positions % self.num_rows
        if self.window_rows > 1:
            places = self._mix_windows(places, seed, epochs)
        if self._num_blocks == 1:
            return places
        # Positions ascend, so the first and the last one give the range of epochs.
        draws = _draws(epochs[0], epochs[-1], self._num_blocks, seed)
        orders = tf.cast(tf.argsort(draws, axis=1), tf.int64)  # [epochs, blocks]
        return self._place(places, epochs - epochs[0], orders)

    def _mix_windows(self, places: tf.Tensor, seed: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
        """Permutes places of an epoch within their windows; the last window may be smaller."""
        windows = places // self.window_rows
        start = windows * self.window_rows
        size = tf.minimum(self.num_rows - start, self.window_rows)
        number = -(-self.num_rows // self.window_rows)
        return start + _shuffled(places - start, size, seed, epochs * number + windows)

    def _place(self, places: tf.Tensor, epochs: tf.Tensor, orders: tf.Tensor) -> tf.Tensor:
        """Returns the rows at places of the shelf.

        If all blocks had the same length, place p would be in block p // block_rows of the shelf.
        The last block of the data may be short by `missing` rows, and it may be anywhere on the
        shelf. Places behind it are therefore shifted by `missing`, as if it were complete.

        With 7 rows in blocks of 3, the last block F has row 6 alone, and 2 are missing::

            shelf      B B B F A A A       blocks, of rows 3 4 5, 6 and 0 1 2
            place      0 1 2 3 4 5 6
            shifted    0 1 2 3 6 7 8       from place 4 on: divided by 3, these give the block

        Args:
            places: int64 [n], within the epoch.
            epochs: int64 [n], the row of `orders` for each place.
            orders: the blocks on the shelf of each epoch, int64 [epochs, blocks].
        """
        missing = self._num_blocks * self.block_rows - self.num_rows
        short = tf.argmax(tf.cast(tf.equal(orders, self._num_blocks - 1), tf.int32), axis=1)
        behind = tf.gather((short + 1) * self.block_rows - missing, epochs) <= places
        shifted = places + tf.where(behind, tf.constant(missing, tf.int64), 0)
        blocks = tf.gather_nd(orders, tf.stack([epochs, shifted // self.block_rows], axis=1))
        return blocks * self.block_rows + shifted % self.block_rows

    @property
    def _num_blocks(self) -> int:
        return -(-self.num_rows // self.block_rows)


Order = StoredOrder | Shuffle


def _shuffled(
    places: tf.Tensor, sizes: tf.Tensor | int, seed: tf.Tensor, tweak: tf.Tensor
) -> tf.Tensor:
    """Permutes each of `places` within range(size), by a permutation that `tweak` chooses.

    `tweak`, the number of the epoch or of the window in all epochs, grows by one at most from place
    to place, so the keys between the first and the last one are all that is needed.
    """
    # A key is three words. Below 65,536 places the cipher uses eight bits of each, so keys that
    # differed in one word only would soon repeat: all three words are random.
    keys = tf.cast(_draws(tweak[0], tweak[-1], 3, seed), tf.int32)
    largest = tf.broadcast_to(tf.cast(sizes, tf.int64) - 1, tf.shape(places))
    return tf.raw_ops.RandomIndexShuffle(
        index=places, seed=tf.gather(keys, tweak - tweak[0]), max_index=largest, rounds=_ROUNDS
    )


def _draws(first: tf.Tensor, last: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns random numbers for each number from the first to the last, int64 [numbers, size].

    The cipher over a huge range serves as a random number generator with random access: it
    encrypts a counter. The numbers are distinct, so sorting them gives a permutation without ties.
    """
    draws = tf.raw_ops.RandomIndexShuffle(
        index=tf.range(first * size, (last + 1) * size),
        seed=tf.concat([seed, [0]], axis=0),
        max_index=tf.constant(_LARGEST, tf.int64),
        rounds=_ROUNDS,
    )
    return tf.reshape(draws, [-1, size])


def choose_order(columns: Columns, options: Any, *, in_cluster: bool) -> Order:
    """Returns the order that a dataset's `options` ask for.

    It follows from the files and the options. Free memory and whether columns are in memory or on
    disk have no part in it: the workers of a cluster shard the rows by their positions, and a run
    that resumes continues at a position. The number of processors has a part in one order, that of
    TFX for several files, unshuffled and outside of a cluster.
    """
    num_rows = columns.num_rows
    if not options.shuffle:
        # As in TFX the number follows from the processors, which differ between workers.
        cycle_length = FILES_AT_A_TIME if in_cluster else None
        threads = options.reader_num_threads
        rows = unshuffled_rows(columns.runs, columns.num_files, threads, cycle_length)
        return StoredOrder(num_rows) if rows is None else StoredOrder(num_rows, _stored(rows))
    in_window = _WINDOW_BYTES // columns.row_bytes
    window_rows = max(_LEAST_WINDOW_ROWS, options.shuffle_buffer_size, in_window)
    if num_rows < _FEW_ROWS:
        return Shuffle(num_rows, block_rows=1, window_rows=1)
    if num_rows <= window_rows:
        return Shuffle(num_rows, block_rows=num_rows, window_rows=num_rows)
    block_rows = max(_BLOCK_BYTES // columns.row_bytes, -(-num_rows // _MOST_BLOCKS), 1)
    return Shuffle(num_rows, block_rows, 1 << (window_rows - 1).bit_length())


def _stored(rows: np.ndarray) -> tuple[tf.Tensor, ...]:
    store = eagerly(lambda: Store([ArraySpec(tf.int64)]))  # its own tensor is of no graph
    store.append([rows])
    return tuple(store.tensors())


def unshuffled_rows(
    runs: Sequence[tuple[int, int]],
    num_files: int,
    num_threads: int = tf.data.AUTOTUNE,
    cycle_length: int | None = None,
) -> np.ndarray | None:
    """Returns the rows, int64 [rows], in TFX's order; None when they are stored in it.

    Args:
        runs: see `Columns`.
        num_files: how many files there are.
        num_threads: the number that TFX's reader is asked for.
        cycle_length: how many files are interleaved, record by record; None: as many as `tf.data`
            chooses for the processors of this machine, as TFX leaves it to `tf.data`.
    """
    if num_files == 1:
        return None
    file_of_row = np.repeat(*np.array(runs).T)
    lengths = np.bincount(file_of_row, minlength=num_files)
    if cycle_length is None:
        cycle_length = eagerly(lambda: _cycle_length(num_files, num_threads))
    return np.argsort(file_of_row, kind="stable")[interleaved(lengths, cycle_length)]


def _cycle_length(num_files: int, num_threads: int) -> int:
    """Returns how many of some files TFX interleaves.

    `tf.data` chooses that by rules of its release. So it interleaves the numbers of the files here,
    each twice: the first one appears again after the first round.
    """
    twice = traced(lambda number: tf.data.Dataset.from_tensors(number).repeat(2))
    numbers = tf.data.Dataset.range(num_files).interleave(
        twice, num_parallel_calls=num_threads, deterministic=True
    )
    again = enumerate(as_it_stands(numbers).skip(1).as_numpy_iterator(), 1)
    return next(place for place, number in again if number == 0)


def interleaved(lengths: Sequence[int], cycle_length: int) -> np.ndarray:
    """Returns the order in which `tf.data.Dataset.interleave` reads concatenated arrays.

    `tf.data` itself would take 18 µs for each value. It keeps `cycle_length` slots, each with an
    open array, and takes one value of each slot in turn. If the array of a slot has ended, the slot
    is skipped in this turn and gets the next array in the following one. So the turn and the slot
    of each value are known from the lengths alone.

    Args:
        lengths: of the arrays.
        cycle_length: how many of them are open at a time.
    """
    free = [(0, slot) for slot in range(cycle_length)]  # a heap of the next turns without an array
    turns = []
    for length in map(int, lengths):
        turn, slot = free[0]
        heapq.heapreplace(free, (turn + length + 1, slot))
        turns.append(np.arange(turn, turn + length) * cycle_length + slot)
    return np.argsort(np.concatenate(turns), kind="stable")  # the fastest for ascending pieces
