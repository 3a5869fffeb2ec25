"""The checks on one model, in a confined child of the fork server that ends afterwards.

It sends each step as JSON: `begin` with the first facts, `start` with the name of
each check, `result` with its verdict, and `complete` in the end.
"""

import dataclasses
import gc
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer._core import machine
from generic_trainer.validation._check import CHECKS, Check, Result, Status
from generic_trainer.validation._checks import checks_for
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._inputs import directories_of, fetch
from generic_trainer.validation._isolation import ModelFiles, move
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._sandbox import confine

# Of all processes this one is the kernel's first choice when memory runs out.
_OOM_SCORE = 1000
# The limit without one of the caller: filling the memory of a large machine would take minutes.
_MOST_MEMORY_MB = 32 << 10
_MOST_TIMES_ITS_SIZE = 8


def run(request: Mapping[str, Any], events: int) -> int:
    """Runs every check that is not done yet.

    Args:
        request: of `_confined_model`; and `done`, of a process that died: check → its status.
        events: descriptor of the pipe that the events are written to.

    Returns:
        The exit code.
    """
    model = _confined_model(request)
    connection = Connection(events, readable=False)

    def send(event: str, **details: Any) -> None:
        connection.send_bytes(json.dumps({"event": event, **details}).encode())

    send("begin", facts=model.facts)
    done = dict(request["done"])
    if done.get("scores") in ("pass", "warn"):
        CHECKS["scores"].run(model)  # for the remaining checks; its result has been reported
    for check in checks_for(model, done):
        if check.name not in done:
            send("start", check=check.name, advisory=check.is_advisory)
            result = _run_one(check, model, done)
            done[check.name] = result.status
            send("result", result=dataclasses.asdict(result), facts=model.facts)
    costs = {"cpu_seconds": round(time.process_time(), 3)}
    costs["peak_memory_mb"] = round(machine.peak_memory_mb() or 0.0, 1)
    send("complete", facts=costs)
    return 0


def _run_one(check: Check, model: ModelUnderTest, done: Mapping[str, Status]) -> Result:
    if model.contract.severities.get(check.name) == "skip":
        return Result(check.name, "skip", "switched off by the contract")
    failed = check.blocked_by(done)
    if failed is None:
        return check.run(model)
    reason = f"not possible, because {failed!r} did not pass"
    if failed == "file_ops":
        reason = "not run, because the model would reach files or the network: see 'file_ops'"
    return Result(check.name, "skip", reason)


def _confined_model(request: Mapping[str, Any]) -> ModelUnderTest:
    """Confines this process for good, and returns the model, without access to the original.

    Args:
        request: `model_dir`, the exported directory; `contract`, `ServingContract.to_json()`;
            `scratch`, a directory for the processes of this model; `memory_limit_mb`, MiB that the
            process may allocate, None for the free memory; and `fetch_environment`, see `fetch`.
    """
    import tensorflow as tf

    gc.freeze()  # or each collection examines all objects of TensorFlow's import
    contract = ServingContract.from_json(request["contract"])
    machine.be_first_to_be_killed(_OOM_SCORE)
    folder = Path(request["scratch"], uuid.uuid4().hex)
    target, work = folder / "moved", folder / "work"
    work.mkdir(parents=True)
    contract, unreadable = fetch(
        request["model_dir"], contract, target, folder, request["fetch_environment"]
    )
    hidden, refused = move(request["model_dir"], target)
    machine.limit_memory(_memory_limit_mb(request["memory_limit_mb"], target))
    os.chdir(work)
    contract = _follow(contract, Path(request["model_dir"]), target, folder)
    readable = [request["scratch"], *_libraries(), *directories_of(contract), *_linked(folder)]
    unprotected = confine(work=work, readable=readable, has_namespace=hidden)
    model = ModelUnderTest(target, contract, request["model_dir"], unreadable)
    model.facts.update(original_hidden=hidden, tensorflow_version=tf.__version__)
    if refused:
        model.facts["links_not_followed"] = refused
    if unprotected:
        model.facts["unprotected"] = unprotected
    return model


def _memory_limit_mb(asked_mb: float | None, model: Path) -> float:
    """Returns the MiB that the checks of a model may allocate."""
    if asked_mb is not None:
        return asked_mb
    size_mb = sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) / machine.MIB
    most_mb = _MOST_MEMORY_MB + _MOST_TIMES_ITS_SIZE * size_mb
    return min(machine.free_memory_bytes() / machine.MIB, most_mb)


def _libraries() -> Iterator[str]:
    """Yields the directories of Python, its packages, and this package."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sys.path)
    yield str(Path(generic_trainer.__file__).parent)
    yield from os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)


def _linked(folder: Path) -> Iterator[str]:
    """Yields the targets of the links in a directory: the original, or files that it shares."""
    for parent, folders, files in os.walk(folder):
        paths = (os.path.join(parent, name) for name in (*folders, *files))
        yield from (os.path.realpath(path) for path in paths if os.path.islink(path))


def _follow(
    contract: ServingContract, original: Path, target: Path, folder: Path
) -> ServingContract:
    """Moves base and source models: those inside the model, and those with links that leave them.

    Of the latter, `folder` gets the files that `ModelFiles` finds.
    """
    moved: dict[str, Any] = {}
    for name in ("base_model", "source_model"):
        path = getattr(contract, name)
        if path is None:
            continue
        if Path(path).is_relative_to(original):
            moved[name] = str(target / Path(path).relative_to(original))
        elif not (files := ModelFiles(Path(path).resolve())).is_self_contained:
            moved[name] = str(folder / name)
            files.link(folder / name)
    return dataclasses.replace(contract, **moved)
