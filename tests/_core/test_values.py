"""Values go through JSON unharmed, and have one digest in all processes."""

import copy
import dataclasses
import enum
import hashlib
import json
import math
import os
import pickle
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generic_trainer._core.values import digest, from_json, to_json, unpickled_data
from tests.house import run_python


@dataclasses.dataclass(frozen=True)
class Layer:
    units: int


class Color(str, enum.Enum):
    RED = "red"


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal, and of the same types all the way down."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, dict):
        keys = zip(sorted(left, key=repr), sorted(right, key=repr), strict=True)
        return all(same(*pair) for pair in keys) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return all(same(*pair) for pair in zip(left, right, strict=True))
    return True


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, 1, 1.0, math.inf, "text", b"\x00\xff", (), (2, [3])],
        [{1, 2}, frozenset({"a"})],
        {"a": {1: "one", (1, 2): "pair", None: 0, 2.5: [1]}},
        {True: 1, "True": 2},
        {"__type__": "pickle", "value": "gA=="},
        {"nested": {"__type__": {"__type__": None}}},
        [Color.RED, {"layer": Layer(1)}],
    ],
    ids=repr,
)
def test_value_is_what_it_was(value: Any) -> None:
    text = to_json(value)
    json.loads(text)
    assert same(from_json(text, is_ours=True), value)


def test_what_others_may_have_written_is_not_unpickled() -> None:
    text = to_json({"a": [(Calls(int, "not a number"),)]})
    with pytest.raises(ValueError, match="invalid literal"):  # it has been called
        from_json(text, is_ours=True)
    with pytest.raises(ValueError, match="pickled"):
        from_json(text, is_ours=False)
    plain = {"a": [(1, b"\x00")], "b": {2}, 3: None, "__type__": "pickle", "value": "gASVAAA="}
    assert same(from_json(to_json(plain), is_ours=False), plain)


VALUES = """[
    {"a": 1, "b": [1, 2]},
    {"set": {"x", "y", "z", "w"}, 1: "int key", (1, 2): None},
    {"object": Plain(3), "function": len, "bytes": b"abc"},
    {"keys": Plain({(1, "a"): {"x", "y"}, None: Plain(b"z")})},
]"""


def test_digest_is_the_same_in_every_process() -> None:
    source = f"""
from generic_trainer._core.values import digest

class Plain:
    def __init__(self, value):
        self.value = value

print(*(digest(value) for value in {VALUES}))
"""
    digests = {run_python("-c", source, PYTHONHASHSEED=seed).stdout for seed in ("1", "2", "3")}
    assert len(digests) == 1
    assert len(set(digests.pop().split())) == 4


def test_plain_values_keep_the_digest_that_checkpoints_are_found_by() -> None:
    value = {"units": 8, "rate": 1e-3, "names": ["a", "ü"], "on": (True, math.inf), "none": None}
    text = json.dumps(value, sort_keys=True)
    assert digest(value) == hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(2000.0), np.where(np.arange(2000) == 1000, -7.0, np.arange(2000.0))),
        (np.array([0.123456789012]), np.array([0.123456789999])),
        (np.array([1, 2]), np.array([1, 2], np.int8)),
        (np.array([[1, 2]]), np.array([[1], [2]])),
        (np.array(["a", None], object), np.array(["b", None], object)),
        (np.float32(0.1), np.float32(0.1000001)),
    ],
)
def test_a_digest_has_what_the_text_of_a_value_leaves_out(one: object, other: object) -> None:
    assert digest({"value": one}) != digest({"value": other})
    assert digest({"value": one}) == digest({"value": copy.deepcopy(one)})


@pytest.mark.parametrize("protocol", [3, 5])
def test_data_are_read_from_pickles(protocol: int) -> None:
    arrays = {"a": np.arange(3.0), "b": np.float32(2), "c": np.array(["x", "yz"])}
    generators = [random.Random(1), np.random.RandomState(2), np.random.default_rng(3)]
    value = (None, {1, 2}, b"x", arrays, generators, random.getstate(), np.random.get_state())
    read = unpickled_data(pickle.dumps(value, protocol))
    assert read[:3] == value[:3] and read[5] == value[5]
    assert unpickled_data(pickle.dumps(Layer(3)), {__name__}) == Layer(3)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[3][name], array)
    assert [each.random() for each in read[4][::2]] == [each.random() for each in generators[::2]]
    assert read[4][1].random_sample() == generators[1].random_sample()
    np.testing.assert_array_equal(read[6][1], value[6][1])


class Calls:
    """Says in its pickle what is to be called when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "harm", [Calls(os.mkdir, "made"), Calls(eval, "1"), Calls(subprocess.Popen, "true")]
)
def test_a_pickle_calls_nothing(
    harm: Any, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="may do anything"):
        unpickled_data(pickle.dumps([harm], protocol), {__name__})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"\x80\x04.",
        # What the module has only imported, by its name and by that of a module in it.
        f"c{__name__}\nsubprocess.Popen\n(S'true'\ntR.".encode(),
        f"\x80\x04\x8c{chr(len(__name__))}{__name__}\x8c\x08os.mkdir\x93.".encode("latin-1"),
    ],
)
def test_what_is_no_pickle_of_data_is_told(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"pickle of data|may do anything"):
        unpickled_data(content, {__name__})
