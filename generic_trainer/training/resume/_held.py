"""The variables around the functions of a callback, which hold part of its state."""

import contextlib
import dataclasses
import dis
import functools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from generic_trainer.training._walk import classes_of_user, codes_of_user
from generic_trainer.user_code import lies_in_environment

# Attributes that `fit` sets, also in the run that resumes. `append_header` is CSVLogger's,
# which looks whether there is a file already.
SET_BY_FIT = {"model", "_model", "params", "validation_data", "append_header"}

_SCALARS = (bool, int, float, str, np.generic)
_OF_CLASSES = (*_SCALARS, np.ndarray)


@dataclasses.dataclass
class Attribute:
    """An attribute, with the interface of a cell: the variable around a function."""

    owner: Any
    name: str

    @property
    def cell_contents(self) -> Any:
        return getattr(self.owner, self.name, None)

    @cell_contents.setter
    def cell_contents(self, value: Any) -> None:
        setattr(self.owner, self.name, value)


def cells_of(callback: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yields the variables around a callback's functions, and whether these assign them.

    So are numbers, texts and arrays of the user's classes, which their methods may assign.
    """
    seen: set[int] = {id(callback)}
    kind: Any = type(callback)
    assigned = _assigned_by_methods(kind)
    for owner in (callback, *classes_of_user(kind)):
        for name, member in [*vars(owner).items()]:
            path = name if owner is callback else f"{owner.__qualname__}.{name}"
            if not isinstance(member, _OF_CLASSES):
                yield from _held_by(path, member, seen)
            elif owner is not callback and not name.startswith("__"):
                yield path, Attribute(owner, name), name in assigned


def _held_by(
    path: str, member: Any, seen: set[int], package: str | None = None
) -> Iterator[tuple[str, Any, bool]]:
    """Yields what a function holds that is no callback, and what the functions hold that it holds.

    Other functions and objects have to be the user's: not of an installed package, unless that
    `package` has the first function, too. A logger, or the client of a service, keeps its state.

    ::

        losses = []                                    a variable around the functions
        def note(value, last=[0]): losses.append(value)                           a default
        class Trainer:
            def end(self, step, logs): self.steps += 1; note(logs["loss"])     of `self`

        LambdaCallback(on_train_batch_end=Trainer().end)
        LambdaCallback(on_train_batch_end=functools.partial(end, losses))      an argument
    """
    if id(member) in seen:
        return
    held: list[tuple[str, Any, bool]] = []
    if isinstance(member, functools.partial):
        held = [*_cells("argument", member.args, member.keywords)]
        held.append(("", types.CellType(member.func), False))
    elif isinstance(member, types.MethodType):
        owner = member.__self__
        kind: Any = type(owner)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        is_users = classes_of_user(kind) and _is_users(kind.__module__, file, package)
        if id(owner) not in seen and is_users and not hasattr(kind, "get_config"):
            seen.add(id(owner))
            assigned = _assigned_by_methods(kind)
            own = [name for name in getattr(owner, "__dict__", {}) if name not in SET_BY_FIT]
            held = [(f".self.{name}", Attribute(owner, name), name in assigned) for name in own]
        held.append(("", types.CellType(member.__func__), False))
    elif isinstance(member, types.FunctionType):
        module = member.__module__ or ""
        package = _package(module) if package is None else package
        if not _is_users(module, member.__code__.co_filename, package):
            return
        names, cells = member.__code__.co_freevars, member.__closure__ or ()
        assigned = _assigned(member.__code__, "STORE_DEREF")
        held = [(f".{n}", cell, n in assigned) for n, cell in zip(names, cells, strict=True)]
        held += _cells("default", member.__defaults__ or (), member.__kwdefaults__ or {})
        held += [(f".attribute.{name}", Attribute(member, name), True) for name in vars(member)]
    if held:
        seen.add(id(member))
    for end, cell, is_assigned in held:
        yield path + end, cell, is_assigned
        yield from _held_by(path + end, content_of(cell), seen, package)


def _cells(
    word: str, values: Sequence[Any], named: Mapping[str, Any]
) -> Iterator[tuple[str, Any, bool]]:
    for name, value in (*enumerate(values), *named.items()):
        yield f"({word} {name})", types.CellType(value), False


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_users(module: str, file: str, package: str | None) -> bool:
    return not lies_in_environment(file) or _package(module) == package


@functools.lru_cache
def _assigned_by_methods(kind: Any) -> set[str]:
    """Returns the attributes that methods other than `__init__` assign."""
    codes = codes_of_user(kind, leaving_out="__init__")
    return set().union(*(_assigned(code, "STORE_ATTR") for code in codes))


@functools.lru_cache
def _assigned(code: types.CodeType, operation: str) -> set[str]:
    return {each.argval for each in dis.get_instructions(code) if each.opname == operation}


def is_attribute(cell: Any) -> bool:
    """Returns whether one of `cells_of` is a number or text of an object or class."""
    return isinstance(cell, Attribute) and isinstance(cell.cell_contents, _SCALARS)


def content_of(cell: Any) -> Any:
    """Returns the present value of one of `cells_of`; None if it has none."""
    with contextlib.suppress(ValueError):  # it has no value yet
        return cell.cell_contents
    return None
