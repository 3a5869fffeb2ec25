"""Arrays of columns: what is freed when, and what is never mistaken for something else."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.data._columns import ArraySpec
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


def test_a_tensor_outlives_its_store() -> None:
    store = stored(7, None)
    [tensor] = store.tensors()
    store.close()
    del store
    gc.collect()
    assert set(tensor.numpy()) == {7}


def test_closing_twice_is_no_error() -> None:
    store = stored(7, None)
    store.close()
    store.close()
