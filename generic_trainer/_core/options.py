"""Option classes: frozen pydantic dataclasses whose problems are one `ConfigurationError`.

::

    @options(frozen=True)
    class RayOptions(Options):
        address: str | None = None
        timeout_s: Positive | None = None

Types are strict: `"1"` is not a number and `True` is not an integer. An unknown field is reported
with the nearest known one. All wrong fields are reported at once. A `model_validator` that compares
fields runs if each field is right by itself; it calls `raise_problems` with all its problems.
Configurations that are pydantic models get the same messages from `reported`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import pydantic.dataclasses
from pydantic_core import core_schema

from generic_trainer._core.texts import describe, did_you_mean, parse_json, shown
from generic_trainer.errors import ConfigurationError, raise_problems

if TYPE_CHECKING:
    from typing_extensions import Self

# Of seconds, MiB and counts: more is unlimited, and does not fit into what waits or counts.
MOST = 2**31 - 1

STRICT = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_QUOTED = re.compile(r"'([^']*)'")
_START = re.compile(r"^(\w+) should ")
# Type of pydantic's error → our wording of its message.
_MESSAGES = {
    "bool_type": "must be True or False",
    "dataclass_type": "must be a JSON object",
    "dict_type": "must be a dict",
    "mapping_type": "must be a dict",
    "int_type": "must be a whole number",
    "list_type": "must be a list",  # in pydantic's words an array, if it is of JSON
    "tuple_type": "must be a list",
    "string_too_short": "must not be empty",
    "unexpected_positional_argument": "is not a positional argument",
}


def _whole(value: Any) -> Any:
    """Returns `2.0` as `2`: programs that write JSON may know one kind of number only."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_given(value: Any, handler: pydantic.ValidatorFunctionWrapHandler) -> Any:
    """Checks a number and returns it as it is: `5` stays an integer in messages and manifests."""
    handler(value)
    return value


Whole = Annotated[int, pydantic.BeforeValidator(_whole), pydantic.Field(le=MOST)]
Count = Annotated[Whole, pydantic.Field(ge=0)]
PositiveWhole = Annotated[Whole, pydantic.Field(ge=1)]
Positive = Annotated[float, pydantic.Field(gt=0, le=MOST), pydantic.WrapValidator(_as_given)]
AtLeastZero = Annotated[float, pydantic.Field(ge=0, le=MOST), pydantic.WrapValidator(_as_given)]
Text = Annotated[str, pydantic.Field(min_length=1)]


@dataclasses.dataclass(frozen=True)
class Expected:
    """Annotation of a type, such as a union, any wrong value of which is reported alike.

    Attributes:
        description: of the right values, such as `"a number or a list of numbers"`.
    """

    description: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        message = f"must be {self.description}"
        return core_schema.custom_error_schema(
            handler(source), custom_error_type="expected", custom_error_message=message
        )


class Options:
    """Base class of option classes: JSON both ways."""

    def to_json(self) -> str:
        """Returns the options as a JSON object, without fields that have their default value."""
        kind: Any = type(self)
        serializer = kind.__pydantic_serializer__
        values = serializer.to_python(self, mode="json", exclude_defaults=True, warnings=False)
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, subject: str | None = None, **details: Any) -> Self:
        """Reads what `to_json` wrote.

        Args:
            text: a JSON object.
            subject: see `reported`.
            **details: see `reported`.

        Raises:
            ConfigurationError: the text is not JSON, or its values are wrong.
        """
        kind: Any = cls
        try:
            parse_json(text)  # refuses keys that are there twice, and endless nesting
        except ValueError as error:
            raise ConfigurationError(
                f"{cls.__name__}: expected a JSON object, got {shown(text)} ({error})"
            ) from error
        with reported(cls, subject, **details):
            made: Self = kind.__pydantic_validator__.validate_json(text)
        return made


if TYPE_CHECKING:
    from dataclasses import dataclass as options
else:

    def options(**arguments: Any) -> Callable[[type], type]:
        """Decorates an option class; takes the arguments of `dataclasses.dataclass`."""

        def decorated(kind: type) -> type:
            made = pydantic.dataclasses.dataclass(config=STRICT, **arguments)(kind)
            construct = made.__init__

            @functools.wraps(construct)
            def __init__(self: Any, *args: Any, **values: Any) -> None:
                with reported(type(self)):
                    construct(self, *args, **values)

            made.__init__ = __init__
            return made

        return decorated


@contextlib.contextmanager
def reported(kind: Any, subject: str | None = None, **details: Any) -> Iterator[None]:
    """Turns a `ValidationError` of pydantic into a `ConfigurationError` that lists all problems.

    Args:
        kind: the pydantic dataclass or model that is made.
        subject: the start of the message; the name of the class by default.
        **details: fields of the error, such as `path`.
    """
    try:
        yield
    except pydantic.ValidationError as error:
        mistakes = error.errors(include_url=False)
    else:
        return
    problems = [problem for mistake in mistakes for problem in _problems(mistake, kind)]
    raise_problems(ConfigurationError, subject or kind.__name__, problems, **details)


def _problems(details: Mapping[str, Any], kind: Any) -> Iterable[str]:
    """Returns one error of pydantic's in our words, one sentence each.

    Args:
        details: of the error.
        kind: the pydantic dataclass or model that was to be made.
    """
    loc = details["loc"]
    value = details["input"]
    context = details.get("ctx", {})
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    path = path.lstrip(".") or kind.__name__
    if details["type"] in _UNKNOWN:
        owner = _owner(kind, loc[:-1])
        return [
            f"{owner.__name__} has no field {shown(loc[-1])}{did_you_mean(loc[-1], _fields(owner))}"
        ]
    if details["type"] in ("value_error", "assertion_error"):
        error = context["error"]
        if isinstance(error, ConfigurationError):
            return error.problems or [str(error)]
        return [f"{path} {error}" if loc else str(error)]
    if details["type"] == "missing":
        return [f"{path} is required"]
    if details["type"] in ("dataclass_exact_type", "model_type", "is_instance_of"):
        name = context.get("class_name", context.get("class"))
        return [f"{path} must be {name}(...), got {describe(value)}"]
    said = _START.sub("must ", details["msg"]).replace("be a valid ", "be a ")
    message = _MESSAGES.get(details["type"], said)
    near = ""
    if details["type"] == "literal_error":
        near = did_you_mean(value, _QUOTED.findall(context["expected"]))
    return [f"{path} {message}, got {describe(value)}{near}"]


def _owner(kind: Any, loc: Iterable[int | str]) -> Any:
    """Returns the class of the options at a path inside an object of `kind`."""
    for part in loc:
        annotation = _fields(kind)[part].annotation if part in _fields(kind) else kind
        for candidate in (annotation, *typing.get_args(annotation)):
            if _fields(candidate):
                kind = candidate
    return kind


def _fields(kind: Any) -> Mapping[Any, Any]:
    fields = getattr(kind, "__pydantic_fields__", None)
    return fields if isinstance(fields, Mapping) else {}
