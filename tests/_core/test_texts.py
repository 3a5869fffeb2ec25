"""JSON and YAML from outside: what is refused, how fast, and what is read as it was."""

import time
from textwrap import indent
from typing import Any

import pytest

from generic_trainer._core.texts import (
    describe,
    did_you_mean,
    hyperparameter_values,
    is_number,
    listed,
    parse_json,
    parse_yaml,
    reason_of,
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("&a [*a]", "nested deeper"),
        ("[" * 1_000, "nested deeper"),
        ("{a: 1, b: 2, a: 3}", "'a' is there twice .*line 1, column 14"),
        ("when: !!timestamp x", "AttributeError"),
        ("a: &a [" + "x," * 400 + "]\nb: [" + "*a," * 400 + "]", "more than 100,000 values"),
        ("? {a: 1}\n: 2", "unhashable"),
        ('"\\ud800"', "surrogates not allowed"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: [1", "line 1, column"),
    ],
)  # fmt: skip
def test_yaml_that_nobody_meant_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_yaml(text)


def test_aliases_stand_for_what_they_repeat() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nagain: [*base, *base]"
    assert parse_yaml("top: {x: &x {<<: &y {k: 1}, k: 2}}\nlow: {<<: *x}")["low"] == {"k": 2}
    base = {"a": 1, "b": 2}
    assert parse_yaml(text) == {"base": base, "other": {"a": 1, "b": 3}, "again": [base, base]}


def test_dates_are_texts_and_floats_need_no_point() -> None:
    assert parse_yaml("[2020-01-01, 2020-13-45]") == ["2020-01-01", "2020-13-45"]
    assert parse_yaml("[1e-4, 2E+3, .5, -3e2, 1.2.3]") == [1e-4, 2000.0, 0.5, -300.0, "1.2.3"]
    assert isinstance(parse_yaml("12"), int)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested deeper"),
        ("[" * 65 + "]" * 65, "nested deeper"),
        ('{"a": {"b": 1, "b": 2}}', r"more than one value for \['b'\]"),
        ('["\\ud800"]', "surrogates not allowed"),
        ("9" * 5000, "limit"),
        ("{", "line 1 column 2"),
    ],
)
def test_json_that_nobody_meant_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_json(text)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(1, True), (-0.5, True), (10**400, False), (float("nan"), False), (float("inf"), False),
     (True, False), ("1", False), (None, False)],
)  # fmt: skip
def test_what_a_number_is(value: Any, is_one: bool) -> None:
    assert is_number(value) is is_one


def test_messages_name_what_is_near_and_stay_short() -> None:
    assert did_you_mean("laetncy", ["latency", "memory"]) == " (did you mean 'latency'?)"
    assert did_you_mean(5, ["latency"]) == ""
    assert describe("x" * 1000) == f"'{'x' * 56}... of type str"


@pytest.mark.parametrize(
    ("hyperparameters", "values"),
    [
        ({"space": [], "values": {"rate": 0.1}}, {"rate": 0.1}),
        ({"values": {"rate": 0.1}}, {"rate": 0.1}),
        ({"rate": 0.1, "values": [1, 2]}, {"rate": 0.1, "values": [1, 2]}),
        ({"rate": 0.1, "values": {"a": 1}}, {"rate": 0.1, "values": {"a": 1}}),
        ({"values": 3}, {"values": 3}),
        ({}, {}),
        (None, {}),
    ],
)
def test_a_hyperparameter_may_be_called_values(hyperparameters: Any, values: Any) -> None:
    assert hyperparameter_values(hyperparameters) == values


FRAME = '  File "/keras/trainer.py", line 9, in fit\n    self.fit_one(x)\n    ~~~~~^^^\n\n'
OF_PY_FUNCTION = f"""{{{{function_node __wrapped_Next}}}} KeyError: 'b'
Traceback (most recent call last):

{FRAME}KeyError: 'b'


\t [[{{{{node PyFunc}}}}]] [Op:IteratorGetNext] name:"""
CHAINED = OF_PY_FUNCTION.replace(
    "last):\n\n",
    f"""last):

{FRAME}ValueError: a

The above exception was the direct cause of the following exception:

Traceback (most recent call last):

""",
)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("price is 3.", "price is 3"),
        (f"Graph execution error:\n\nDetected at node a/b defined at (most recent call last):\n"
         f"{FRAME}[1 2] is bad\n\t [[{{{{node a/b}}}}]]\n\t [[Next]] [Op:__f_1]", "[1 2] is bad"),
        ("Detected at node Cast defined at (most recent call last):\n<stack traces unavailable>\n"
         "no cast [Op:__f]", "no cast"),
        (OF_PY_FUNCTION, "KeyError: 'b'"),
        (CHAINED, "ValueError: a"),
        ("Exception encountered when calling Dense.call().\n\n\x1b[1mno axis\x1b[0m\n", "no axis"),
        (f"in user code:\n\n{indent(FRAME, '  ')}    TypeError: int32\n", "TypeError: int32"),
        (f"in user code:\n\n{indent(FRAME, '  ')}    ValueError: Exception encountered when "
         "calling layer 'a'.\n    \n    in user code:\n    \n        File \"/layer.py\", line 3"
         "\n            f(x)\n    \n        ValueError: 4 and 5", "ValueError: 4 and 5"),
        ("Graph execution error:\n", ""),
    ],
)  # fmt: skip
def test_the_reason_is_the_cause_without_the_stack_around_it(message: str, reason: str) -> None:
    assert reason_of(RuntimeError(message)) == f"RuntimeError: {reason}".removesuffix(": ")


@pytest.mark.parametrize("before", [b"", b"\n\n", b"id,name\n" * 1_000_000])
def test_the_reason_of_an_error_whose_text_cannot_be_decoded_is_the_line(before: bytes) -> None:
    with pytest.raises(UnicodeDecodeError) as info:
        (before + b"no \xff in the vocabulary\nof 3").decode()
    begin = time.monotonic()
    place = f"{len(before) + 3:,}"
    expected = f"invalid start byte at byte {place}, in: no \\xff in the vocabulary"
    assert reason_of(info.value) == f"UnicodeDecodeError: {expected}"
    assert time.monotonic() - begin < 1


def test_of_a_wide_table_only_the_first_columns_are_listed() -> None:
    assert listed([f"c{number}" for number in range(1_200)], most=2) == "c0, c1 and 1,198 more"
    assert listed(["a", "b"], most=2) == "a, b" and not listed([])
