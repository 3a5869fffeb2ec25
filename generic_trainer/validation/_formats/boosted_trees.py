"""XGBoost's own files, JSON and UBJSON, in which nothing can hide that runs.

Source: https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html, https://ubjson.org.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generic_trainer.validation._formats.contents import Contents

_JSON = re.compile(rb'\s*\{\s*"(learner|version)"\s*:\s*[\[{]')
_UBJSON = re.compile(rb"\{[iUIlL][\x00-\x07]*(learner|version)", re.DOTALL)
_NUMBERS = {
    b"i": ">b", b"U": ">B", b"I": ">h", b"l": ">i", b"L": ">q", b"d": ">f", b"D": ">d",
}  # fmt: skip
_VALUES = {b"Z": None, b"T": True, b"F": False}
_MAX_DEPTH = 100


def is_boosted_trees(head: bytes, file: Path) -> bool:
    """Returns whether a file is one by its content, or by its name."""
    if file.suffix == ".ubj" or _UBJSON.match(head):
        return True
    return bool(_JSON.match(head)) and b'"learner"' in file.read_bytes()


def read(file: Path) -> Contents:
    """Reads a model.

    Raises:
        ValueError: it is none, or is damaged.
    """
    content = file.read_bytes()
    try:
        is_text = bool(re.match(rb'\s*\{\s*["}]', content))
        model = json.loads(content) if is_text else _Reader(content).value()
        learner = model["learner"]
        parameters = learner["learner_model_param"]
        booster = learner["gradient_booster"]
        names = tuple(map(str, learner.get("feature_names") or ()))
        version = ".".join(map(str, model.get("version", ())))
        objective = learner["objective"]["name"]
        count = int(parameters["num_feature"])
        kind = booster["name"]
        flaws = list(_flaws(booster.get("gbtree", booster).get("model", {}), names, count))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no whole model of XGBoost ({error})") from error
    return Contents(
        summary=f"XGBoost {version}, {kind}, {objective}, {count} features",
        feature_names=names,
        flaws=flaws,
    )


def _flaws(model: Mapping[str, Any], names: tuple[str, ...], count: int) -> list[tuple[str, str]]:
    found = []
    if names and len(names) != count:
        found.append((f"{len(names)} names for {count} features", "save the model again"))
    if "trees" in model:
        stated = int(model["gbtree_model_param"]["num_trees"])
        if len(model["trees"]) != stated:
            told = f"{len(model['trees'])} trees instead of {stated}"
            found.append((told, "copy the whole file again"))
        elif not stated:
            found.append(("it has no trees: every row gets the same score", "see the training"))
    return found


class _Reader:
    """UBJSON, as XGBoost writes it."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def value(self, kind: bytes = b"", depth: int = 0) -> Any:
        """Returns the next value, of a type that is known already or comes first."""
        kind = kind or self._take(1)
        if kind in _NUMBERS:
            (number,) = struct.unpack(_NUMBERS[kind], self._take(struct.calcsize(_NUMBERS[kind])))
            return number
        if kind in _VALUES:
            return _VALUES[kind]
        if kind == b"S":
            return self._take(self._size()).decode(errors="replace")
        if kind == b"C":
            return self._take(1).decode(errors="replace")
        if kind not in (b"[", b"{") or depth > _MAX_DEPTH:
            raise ValueError(f"it is damaged at byte {self._at}: {kind!r} is no type of UBJSON")
        return self._array(depth) if kind == b"[" else self._object(depth)

    def _array(self, depth: int) -> Any:
        kind, count = self._header()
        if kind in _NUMBERS:
            return self._take(count * struct.calcsize(_NUMBERS[kind]))  # nobody here reads them
        if count >= 0:
            return [self.value(kind, depth + 1) for _ in range(count)]
        values = []
        while self._peek() != b"]":
            values.append(self.value(depth=depth + 1))
        self._take(1)
        return values

    def _object(self, depth: int) -> dict[str, Any]:
        kind, count = self._header()
        values: dict[str, Any] = {}
        while count != 0 and (count > 0 or self._peek() != b"}"):
            name = self._take(self._size()).decode(errors="replace")
            values[name] = self.value(kind, depth + 1)
            count -= 1 if count > 0 else 0
        if count < 0:
            self._take(1)
        return values

    def _header(self) -> tuple[bytes, int]:
        """Returns type and number of values; no type where each has its own, -1 without number."""
        kind, count = b"", -1
        if self._peek() == b"$":
            self._take(1)
            kind = self._take(1)
        if self._peek() == b"#":
            self._take(1)
            count = self._size()
        return kind, count

    def _size(self) -> int:
        size = self.value()
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"it is damaged at byte {self._at}: {size!r} is no length")
        return size

    def _peek(self) -> bytes:
        return self._content[self._at : self._at + 1]

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._content):
            raise ValueError(f"it ends too early, at byte {self._at}")
        self._at += size
        return self._content[self._at - size : self._at]
