"""Option classes report all their problems at once, and survive JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
import pytest

from generic_trainer._core.options import Count, Expected, Options, Positive, Text, Whole, options
from generic_trainer.errors import ConfigurationError, raise_problems


@options(frozen=True)
class Address(Options):
    host: Text = "head"
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@options(frozen=True, kw_only=True)
class Job(Options):
    size: Annotated[Whole | tuple[Whole, Whole], Expected("a number or two")] = 1
    limit_s: Positive | None = None
    retries: Count = 0
    engine: Literal["local", "ray"] = "local"
    address: Address | None = None

    @pydantic.model_validator(mode="after")
    def _compare(self) -> Job:
        problems = ["retries contradict", "the limit"] if self.retries == self.limit_s else []
        raise_problems(ConfigurationError, "Job", problems)
        return self


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        ({"size": (1, 2, 3)}, ["size must be a number or two, got (1, 2, 3) of type tuple"]),
        ({"retries": True}, ["retries must be a whole number, got True of type bool"]),
        ({"retries": 2, "limit_s": 2.0}, ["retries contradict", "the limit"]),
        ({"address": 5}, ["address must be Address(...), got 5 of type int"]),
        (
            {"engine": "rai", "limit_s": "5", "sise": 1},
            [
                "limit_s must be a number, got '5' of type str",
                "engine must be 'local' or 'ray', got 'rai' of type str (did you mean 'ray'?)",
                "Job has no field 'sise' (did you mean 'size'?)",
            ],
        ),
    ],
)
def test_wrong_values_are_all_reported(values: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Job(**values)
    assert list(caught.value.problems) == problems
    with pytest.raises(ConfigurationError, match=r"^Job: "):
        dataclasses.replace(Job(), **values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"address": {"hots": ""}}', "Address has no field 'hots' (did you mean 'host'?)"),
        ('{"address": {"host": ""}}', "address.host must not be empty, got ''"),
        ('{"limit_s": Infinity}', "limit_s must be a finite number, got inf"),
        ('{"retries": 1, "retries": 2}', "more than one value"),
        ("[1]", "Job must be a JSON object, got [1]"),
        ("nonsense", "expected a JSON object"),
        ("[" * 100_000, "nested deeper"),
    ],
)
def test_wrong_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Job.from_json(text)
    assert message in str(caught.value)


def test_json_holds_what_differs_from_the_defaults() -> None:
    job = Job(size=(1, 2), address=Address("a", {"b": [1]}))
    assert Job.from_json(job.to_json()) == job
    assert Job(retries=0).to_json() == "{}"
    assert Job.from_json('{"size": 2.0}').size == 2
