"""A model in a process that is confined to what checking it takes."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer._core import machine
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._inputs import directories_of, fetch
from generic_trainer.validation._isolation import move
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._sandbox import confine

# Of all processes this one is the kernel's first choice when memory runs out.
_OOM_SCORE = 1000
# Without a limit of the caller's. What takes a large machine's memory would take minutes to do so.
_MOST_MEMORY_MB = 32 << 10
_MOST_TIMES_ITS_SIZE = 8


def confined_model(request: Mapping[str, Any]) -> ModelUnderTest:
    """Confines this process for good, and returns the model, out of reach of where it was written.

    Args:
        request: `model_dir`, the exported directory; `contract`, `ServingContract.to_json()`;
            `scratch`, a directory for the processes of this model; and `memory_limit_mb`, MiB that
            the process may allocate, None for what is free.
    """
    import tensorflow as tf

    gc.freeze()  # or each collection looks at all that TensorFlow's import has made
    contract = ServingContract.from_json(request["contract"])
    machine.be_first_to_be_killed(_OOM_SCORE)
    folder = Path(request["scratch"], uuid.uuid4().hex)
    target, work = folder / "moved", folder / "work"
    work.mkdir(parents=True)
    contract, unreadable = fetch(request["model_dir"], contract, target, folder)
    machine.limit_memory(_memory_limit_mb(request["memory_limit_mb"], request["model_dir"], target))
    hidden = move(request["model_dir"], target)
    os.chdir(work)
    contract = _follow(contract, Path(request["model_dir"]), target)
    readable = [request["scratch"], *_libraries(), *directories_of(contract), *_linked(target)]
    unprotected = confine(work=work, readable=readable, has_namespace=hidden)
    model = ModelUnderTest(target, contract, request["model_dir"], unreadable)
    model.facts.update(original_hidden=hidden, tensorflow_version=tf.__version__)
    if unprotected:
        model.facts["unprotected"] = unprotected
    return model


def _memory_limit_mb(asked_mb: float | None, *places: str | Path) -> float:
    """Returns the MiB that the checks of a model may allocate, which lies in one of some places."""
    if asked_mb is not None:
        return asked_mb
    files = (path for place in places for path in Path(place).rglob("*") if path.is_file())
    size_mb = sum(path.stat().st_size for path in files) / machine.MIB
    most_mb = _MOST_MEMORY_MB + _MOST_TIMES_ITS_SIZE * size_mb
    return min(machine.free_memory_bytes() / machine.MIB, most_mb)


def _libraries() -> Iterator[str]:
    """Yields where Python and its packages lie; this package may lie outside its path."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path)
    yield str(Path(generic_trainer.__file__).parent)
    yield from os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)


def _linked(folder: Path) -> Iterator[str]:
    """Yields what the links in a directory lead to: the original, or files that it shares."""
    for parent, folders, files in os.walk(folder):
        paths = (os.path.join(parent, name) for name in (*folders, *files))
        yield from (os.path.realpath(path) for path in paths if os.path.islink(path))


def _follow(contract: ServingContract, original: Path, target: Path) -> ServingContract:
    """Lets a base or source model that is the model itself, or lies inside it, move along."""
    moved: dict[str, Any] = {}
    for name in ("base_model", "source_model"):
        path = getattr(contract, name)
        if path is not None and Path(path).is_relative_to(original):
            moved[name] = str(target / Path(path).relative_to(original))
    return dataclasses.replace(contract, **moved)
