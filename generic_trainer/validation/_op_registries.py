"""The ops, attributes and dtypes of each release of TensorFlow, from the table beside this module.

`scripts/op_registries.py` writes the table from the released wheels: the releases, the numbers of
the dtypes, and one line per change. A change is a fact that a release is the first to have (`+`) or
to lack (`-`). All releases know the facts without a line.
"""

import functools
from collections.abc import Iterator
from importlib import resources
from typing import Any

from generic_trainer._core import internals

Minor = int  # of TensorFlow 2
_REFERENCE = 100  # added to the number of a dtype for a reference to a variable of TensorFlow 1


@functools.cache
def _lines() -> list[list[str]]:
    table = resources.files(__package__).joinpath("op_registries.tsv")
    return [line.split("\t") for line in table.read_text(encoding="ascii").splitlines()]


@functools.cache
def minors() -> tuple[Minor, ...]:
    """Returns the releases of the table, the oldest first."""
    return tuple(map(minor_of, _lines()[0]))


def minor_of(version: str) -> Minor:
    """Returns 16 for `"2.16"` and `"2.16.2"`."""
    return int(version.split(".")[1])


@functools.cache
def _dtypes() -> dict[int, str]:
    pairs = map(str.split, _lines()[1])
    return {int(number): name for number, name in pairs}


@functools.cache
def _known_by() -> dict[str, frozenset[Minor]]:
    """Returns fact → the releases that know it, of the facts that some release does not know."""
    known: dict[str, frozenset[Minor]] = {}
    for release, sign, fact in _lines()[2:]:
        later = {minor for minor in minors() if minor >= minor_of(release)}
        # The first change shows what was before.
        before = known.get(fact, frozenset(() if sign == "+" else minors()))
        known[fact] = before | later if sign == "+" else before - later
    return known


@functools.cache
def _can_lack() -> dict[str, list[str]]:
    """Returns op → the attributes that a node may lack in some releases only."""
    attributes: dict[str, list[str]] = {}
    for fact in _known_by():
        op, _, attribute = fact.partition(".")
        if attribute.endswith("?"):
            attributes.setdefault(op, []).append(attribute[:-1])
    return attributes


def known_by(fact: str) -> frozenset[Minor]:
    """Returns the releases that know a fact of `facts_of`."""
    return _known_by()[fact]


def span(fact: str) -> str:
    """Returns the releases that know a fact, in words."""
    oldest = min(known_by(fact))
    newest = max(known_by(fact))
    until = "or later" if newest == max(minors()) else f"to 2.{newest}"
    return f"TensorFlow 2.{oldest} {until}"


def facts_of(node: Any) -> set[str]:
    """Returns the needs of a `NodeDef` that some release does not meet.

    They are `=dtype`, `Op`, `Op.attribute=value`, `Op.attribute?` for an attribute that the node
    lacks, and `Op.attribute` or `Op.attribute~` for one that does not have its default. Releases
    that lack the latter ignore it, and the result is the same.
    """
    return _known_by().keys() & set(_facts(node))


def _facts(node: Any) -> Iterator[str]:
    yield node.op
    for name, value in node.attr.items():
        attribute = f"{node.op}.{name}"
        yield from (f for f in (attribute, f"{attribute}~") if not _is_default(f, name, node))
        numbers = (number % _REFERENCE for number in (value.type, *value.list.type))
        dtypes = [_dtypes().get(number, str(number)) for number in numbers]
        yield from (f"={dtype}" for dtype in dtypes)
        texts = [text.decode(errors="replace") for text in (value.s, *value.list.s)]
        yield from (f"{attribute}={fact}" for fact in (*dtypes, *texts, value.i))
    lacking = set(_can_lack().get(node.op, ())).difference(node.attr)
    yield from (f"{node.op}.{name}?" for name in lacking)


def _is_default(fact: str, name: str, node: Any) -> bool:
    """Returns whether a new attribute has its default; older exports have not left it out."""
    if fact not in _known_by():  # as nearly all: it is not looked up
        return False
    definition = internals.TF_FIND_OP.get()(node.op)
    attributes = () if definition is None else definition.attr
    return any(
        attribute.name == name and attribute.default_value == node.attr[name]
        for attribute in attributes
    )


def described(fact: str) -> str:
    """Returns a fact in words that follow "has no"."""
    subject, _, value = fact.partition("=")
    op, _, attribute = subject.partition(".")
    if not op:
        return f"dtype {value}"
    if not attribute:
        return f"op {op!r}"
    if attribute.endswith("?"):
        return f"default for the attribute {attribute[:-1]!r} of {op}, which the model lacks"
    ignored = ", and ignores it" if attribute.endswith("~") else ""
    named = f"attribute {attribute.rstrip('~')!r} of {op}{ignored}"
    return f"{value!r} for the {named}" if value else named
