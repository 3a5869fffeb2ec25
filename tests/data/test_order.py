"""Orders of rows: permutations of each epoch, and how well they mix."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.data._order import Order, Shuffle, interleaved, unshuffled_rows

SEED = tf.constant([3, 4])


def rows(order: Order, first: int, last: int) -> np.ndarray:
    positions = tf.range(first, last, dtype=tf.int64)
    return order.rows(order.arrays, positions, SEED).numpy()


def orders() -> list[Order]:
    rows = [Shuffle(number, 1, 1) for number in (1, 2, 7, 1000)]  # each of them a block
    # Whole and partial last blocks and windows, one block, and more window than rows.
    block = [
        Shuffle(1000, 100, 256),
        Shuffle(1000, 7, 256),
        Shuffle(1000, 2000, 256),
        Shuffle(20_000, 20_000, 20_000),
        Shuffle(20_001, 64, 4096),
        Shuffle(500, 64, 4096),
    ]
    return [*rows, *block]


@pytest.mark.parametrize("order", orders(), ids=repr)
def test_every_epoch_is_a_permutation(order: Order) -> None:
    number = order.num_rows
    whole = rows(order, 0, 3 * number)
    cuts = [0, *range(number // 3, 3 * number, max(1, number // 2)), 3 * number]
    pieces = [rows(order, first, last) for first, last in itertools.pairwise(cuts) if first < last]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)  # wherever it is cut
    drawn = whole.reshape(3, number)
    for epoch in drawn:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(number))
    if number > 2:
        assert (drawn[0] != drawn[1]).any()
        assert (drawn[1] != drawn[2]).any()


def test_hundreds_of_epochs_have_orders_of_their_own() -> None:
    order, number = Shuffle(20_000, 20_000, 20_000), 20_000
    starts = [rows(order, epoch * number, epoch * number + 30).tobytes() for epoch in range(300)]
    assert len(set(starts)) == 300


def test_a_block_shuffle_takes_its_windows_from_everywhere() -> None:
    order = Shuffle(100_000, 100, 8192)
    drawn = rows(order, 0, 100_000)
    for start in range(0, 90_000, 8192):
        window = drawn[start : start + 8192]
        assert window.min() < 10_000
        assert window.max() > 90_000
        assert len(np.unique(window // 100)) <= 84  # few blocks are open at a time
        assert (np.abs(np.diff(window)) < 100).mean() < 0.1  # and they are mixed


def by_tf_data(sizes: Sequence[int], cycle_length: int | None, threads: int) -> list[int]:
    """Returns the order in which `tf.data` reads concatenated arrays of these sizes."""
    ends = np.cumsum(sizes)
    ranges = tf.data.Dataset.from_tensor_slices((ends - sizes, ends))
    expected = ranges.interleave(
        tf.data.Dataset.range, cycle_length, num_parallel_calls=threads, deterministic=True
    )
    return list(expected.as_numpy_iterator())


@pytest.mark.parametrize("parallel", [1, tf.data.AUTOTUNE])
@pytest.mark.parametrize("cycle_length", [1, 2, 3, 5, 20])
def test_interleaved_is_the_order_of_tf_data(cycle_length: int, parallel: int) -> None:
    rng = np.random.default_rng(cycle_length)
    for number in (1, 2, 3, 7, 12):
        sizes = rng.integers(0, 6, number) * rng.integers(0, 9, number)
        assert interleaved(sizes, cycle_length).tolist() == by_tf_data(
            sizes, cycle_length, parallel
        )


@pytest.mark.parametrize("threads", [1, 2, tf.data.AUTOTUNE])
def test_files_are_read_as_many_at_a_time_as_tf_data_reads(threads: int) -> None:
    sizes = [3, 0, 5, 1, 4, 2, 2, 6]
    order = unshuffled_rows(list(enumerate(sizes)), len(sizes), threads)
    assert order is not None
    assert order.tolist() == by_tf_data(sizes, None, threads)
