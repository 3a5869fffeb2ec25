"""State that is taken comes back as it was; what is no data is refused before it is asked."""

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer._core.values import unpickled_data
from generic_trainer.training._plain import is_plain, pickled, read_state, taken_state


class Own:
    pass


class Keeper(tf.Module):
    """TensorFlow wraps the containers that are its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.lists, self.pairs = [[1.5]], {"a": (1, None)}


def test_values_are_those_of_the_moment_when_they_were_taken(tmp_path: Path) -> None:
    kept = Keeper()
    value: dict[Any, Any] = {
        "wrapped": [kept.lists, kept.pairs],
        "tensor": tf.constant([1.0, 2.0]),
        "half": np.ones(2, tf.bfloat16.as_numpy_dtype),
        3: (np.float32(0.1), np.array(["b"]), {4}),
        "counts": collections.defaultdict(list, a=[1]),
    }
    write = taken_state("state", value)
    value["tensor"] = kept.lists[0][0] = None
    write(str(tmp_path))
    read = read_state(str(tmp_path), "state")
    assert read["wrapped"] == [[[1.5]], {"a": (1, None)}]
    assert [type(each) for each in read["wrapped"]] == [list, dict]
    assert read["tensor"].tolist() == [1.0, 2.0]
    assert (read["half"].dtype, read["half"].tolist()) == (value["half"].dtype, [1.0, 1.0])
    assert (type(read[3][0]), read[3]) == (np.float32, value[3])
    assert read["counts"]["b"] == []


def test_objects_of_others_are_refused_without_being_saved(keras: Any) -> None:
    class Model(keras.Model):
        def __reduce__(self) -> Any:
            raise AssertionError("saves the whole model")

    for value in (Model(), [tf.Variable(1.0)], print, Own(), lambda: 1):
        assert not is_plain({"value": value})
    content = pickled([Own()], [__name__])
    with pytest.raises(ValueError, match="Own, which is no data"):
        unpickled_data(content)
    assert isinstance(unpickled_data(content, [__name__])[0], Own)
