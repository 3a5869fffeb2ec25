"""The checks on one model, in a confined child of the fork server that ends afterwards.

It sends each step as JSON: `begin` with the first facts, `start` with the name of
each check, `result` with its verdict, and `complete` in the end.

Remote inputs are fetched before the process is cut off from the network. The clients of object
stores start threads, which keep the rights that they were started with. So another process fetches:
the one that will run the model has never had a thread.
"""

import dataclasses
import json
import os
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer._core import machine
from generic_trainer._core.files import copy_tree, gfile, is_remote
from generic_trainer._core.records import sample_records
from generic_trainer._core.texts import load_statistics
from generic_trainer.validation._check import Check, Result, Status
from generic_trainer.validation._checks import checks_for
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._evidence import EVAL_ROWS, MAX_EXAMPLES_BYTES
from generic_trainer.validation._isolation import ModelFiles, move
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._sandbox import confine

# Of all processes this one is the kernel's first choice when memory runs out.
_OOM_SCORE = 1000
# The limit without one of the caller: filling the memory of a large machine would take minutes.
_MOST_MEMORY_MB = 32 << 10
_MOST_TIMES_ITS_SIZE = 8
_PATTERNS = ("examples", "statistics")  # inputs of a contract that may be many files


def run(request: Mapping[str, Any], events: int) -> int:
    """Runs every check that is not done yet.

    Args:
        request: of `_confined_model`; and, of a process that died, `done`: check → its status.
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
    if done.get("scores") in ("pass", "warn"):  # the remaining checks need what it finds
        del done["scores"]
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
            process may allocate, None for the free memory; `fetch_environment`, see `fetch`; and
            `facts` of a process that died.
    """
    import tensorflow as tf

    contract = ServingContract.from_json(request["contract"])
    machine.be_first_to_be_killed(_OOM_SCORE)
    folder = Path(request["scratch"], uuid.uuid4().hex)
    target = folder / "moved"
    work = folder / "work"
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
    model = ModelUnderTest(target, contract, request["model_dir"], unreadable, request["facts"])
    model.facts.update(original_hidden=hidden, tensorflow_version=tf.__version__, rows_scored=0)
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
    """Moves inputs that are inside the model, and base and source models that have links.

    Of the latter, `folder` gets the files that `ModelFiles` finds.
    """
    moved: dict[str, Any] = {}
    for name, path in contract.paths.items():
        if Path(path).is_relative_to(original):
            moved[name] = str(target / Path(path).relative_to(original))
        elif name.endswith("_model") and (files := ModelFiles(Path(path).resolve())).has_links:
            moved[name] = str(folder / name)
            files.link(folder / name)
    return dataclasses.replace(contract, **moved)


def fetch(
    model_dir: str,
    contract: ServingContract,
    target: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> tuple[ServingContract, dict[str, str]]:
    """Copies remote inputs, and those that patterns of files name.

    Args:
        model_dir: the model; copied to `target` if it is remote.
        contract: names the other inputs. Of examples only as many rows as the checks use are
            copied.
        target: directory of the copied model.
        folder: directory for the other inputs.
        environment: variables for the process that fetches, such as credentials. The process that
            runs the model never gets them.

    Returns:
        The contract with local paths, and name → reason of inputs that could not be fetched.

    Raises:
        OSError: the model could not be fetched; standard error has the reason.
    """
    # The process that runs the model finds files only in a directory that the model can read too.
    fetched = {
        name: path for name, path in contract.paths.items() if is_remote(path) or name in _PATTERNS
    }
    if not fetched and not is_remote(model_dir):
        return contract, {}
    reasons = folder / "fetched.json"
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.update(environment)
            if is_remote(model_dir):
                _fetch_model(model_dir, str(target))
            reasons.write_text(json.dumps(dict(_fetch_each(fetched, folder))), encoding="utf-8")
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        raise OSError(f"{model_dir} could not be fetched")
    problems: dict[str, str] = json.loads(reasons.read_text(encoding="utf-8"))
    local: dict[str, Any] = {name: str(folder / name) for name in fetched.keys() - problems}
    return dataclasses.replace(contract, **local), problems


def _fetch_each(sources: dict[str, str], folder: Path) -> Iterator[tuple[str, str]]:
    """Fetches the inputs; yields those that could not be, with the reason."""
    for name, source in sources.items():
        try:
            _FETCH[name](source, str(folder / name))
        except Exception as error:  # DataError, and whatever a client of an object store raises
            yield name, str(error)


def _fetch_examples(pattern: str, target: str) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(target) as writer:
        for record in sample_records(pattern, EVAL_ROWS, MAX_EXAMPLES_BYTES):
            writer.write(record)


def _fetch_statistics(pattern: str, target: str) -> None:
    Path(target).write_bytes(load_statistics(pattern).SerializeToString())


def _fetch_model(source: str, target: str) -> None:
    """Copies a model; of a local one named by a URL only the files that `ModelFiles` finds."""
    scheme = "file://"
    if source.startswith(scheme):
        files = ModelFiles(Path(source.removeprefix(scheme)).resolve())
        files.link(Path(f"{target}_files"))
        source = f"{target}_files"
    copy_tree(source, target)


def _fetch_file(source: str, target: str) -> None:
    gfile().copy(source, target)


_FETCH: dict[str, Any] = {
    "examples": _fetch_examples,
    "schema": _fetch_file,
    "statistics": _fetch_statistics,
    "eval_config": _fetch_file,
    "transform_graph": copy_tree,
    "base_model": _fetch_model,
    "source_model": _fetch_model,
}


def directories_of(contract: ServingContract) -> Iterator[str]:
    """Yields the local files and directories that hold the contract's inputs."""
    for name, path in contract.paths.items():
        if name not in _PATTERNS:  # which are copied, or cannot be read
            yield path
            yield os.path.realpath(path)
