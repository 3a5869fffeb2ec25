"""Arrays of columns: how they are packed, what is freed when, what is not mistaken for another."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.data._columns import SEPARATORS, ArraySpec, Rows, Varying
from generic_trainer.data._store import Store


def stored(number: int, directory: str | None) -> Store:
    store = Store([ArraySpec(tf.int64)], directory)
    store.append([np.full(44, number)])
    return store


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_file_is_not_taken_for_an_earlier_one_of_the_same_number(
    in_memory: bool, tmp_path: str
) -> None:
    directory = None if in_memory else str(tmp_path)
    for number in range(3):
        [tensor] = stored(number, directory).tensors()
        gc.collect()
        [later] = stored(-1, directory).tensors()
        assert set(tensor.numpy()) == {number}
        assert set(later.numpy()) == {-1}


@pytest.mark.parametrize("separator", SEPARATORS)
def test_strings_that_hold_the_separator_are_told_and_others_come_back(separator: bytes) -> None:
    column = Varying(tf.string, separator)
    numbers = tf.constant([0, 3, 0, 1, 2], tf.int64)
    strings = [b"", b"a", b"longer than a word", b"-" * 8, b"\x00\xfe", b"z"]
    packed = column.pack(Rows(tf.constant(strings), numbers))
    assert not packed.spoiled
    store = Store(column.arrays)
    store.append(packed.arrays)
    taken = column.take(store.tensors(), tf.constant([4, 1, 2], tf.int64), tf.constant([2, 3, 0]))
    assert taken.numpy().tolist() == [*strings[4:], *strings[:3]]
    assert column.pack(Rows(tf.constant([*strings[:5], b"-" + separator]), numbers)).spoiled
