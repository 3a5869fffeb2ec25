"""Remote inputs of the checks, fetched before the process is cut off from the network.

The clients of object stores start threads, which keep the rights that they were started with. So
another process fetches: the one that will run the model has never had a thread.
"""

import dataclasses
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.files import copy_tree, gfile, is_remote
from generic_trainer._core.protos import load_statistics
from generic_trainer._core.records import read_records
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._isolation import ModelFiles
from generic_trainer.validation._model import EVAL_ROWS, MAX_EXAMPLES_BYTES

_PATTERNS = ("examples", "statistics")


def fetch(
    model_dir: str,
    contract: ServingContract,
    target: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> tuple[ServingContract, dict[str, str]]:
    """Copies remote inputs.

    Args:
        model_dir: the model; copied to `target` if it is remote.
        contract: names the other inputs.
        target: directory of the copied model.
        folder: directory for the other inputs.
        environment: variables for the process that fetches, such as credentials. The process that
            runs the model never gets them.

    Returns:
        The contract with local paths, and name → reason of inputs that could not be fetched.

    Raises:
        OSError: the model could not be fetched; standard error has the reason.
    """
    remote = {name: path for name, path in contract.paths.items() if is_remote(path)}
    if not remote and not is_remote(model_dir):
        return contract, {}
    reasons = folder / "fetched.json"
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.update(environment)
            if is_remote(model_dir):
                _fetch_model(model_dir, str(target))
            reasons.write_text(json.dumps(dict(_fetch_each(remote, folder))), encoding="utf-8")
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        raise OSError(f"{model_dir} could not be fetched")
    problems: dict[str, str] = json.loads(reasons.read_text(encoding="utf-8"))
    local: dict[str, Any] = {name: str(folder / name) for name in remote.keys() - problems}
    return dataclasses.replace(contract, **local), problems


def _fetch_each(remote: dict[str, str], folder: Path) -> Iterator[tuple[str, str]]:
    """Fetches the inputs; yields those that could not be, with the reason."""
    for name, source in remote.items():
        try:
            _FETCH[name](source, str(folder / name))
        except Exception as error:  # DataError, and whatever a client of an object store raises
            yield name, str(error)


def _fetch_examples(pattern: str, target: str) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(target) as writer:
        for record in read_records(pattern, EVAL_ROWS, MAX_EXAMPLES_BYTES):
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
        # Of a pattern, what is before its first wildcard.
        yield os.path.dirname(re.split(r"[*?\[{]", path)[0]) if name in _PATTERNS else path
