"""The key of a run: what decides its outcome, and names the directory of its checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from generic_trainer._core.cluster import is_chief
from generic_trainer._core.files import (
    files_below,
    fingerprint_of_file,
    gfile,
    read_whole,
    write_whole,
)
from generic_trainer._core.values import digest
from generic_trainer.errors import DataError
from generic_trainer.launchers import TrainingRequest

_KEY_FILE = "key.json"
# Where the export of a run of this key lies that failed its last check; see `kept_export`.
KEPT_EXPORT_FILE = "kept_export.json"
_NOT_SAVED = {_KEY_FILE, KEPT_EXPORT_FILE, ".lock"}
_DIGITS = 16

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RunKey:
    """What decides the outcome of a run.

    Attributes:
        parts: name of the part → its digest, or its value where that is short.
    """

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A short name for it."""
        return digest(self.parts)

    @property
    def seed(self) -> int:
        """A seed that all runs of the same key, and all their workers, have in common."""
        return int(self.digest[:7], 16)


def run_key(request: TrainingRequest) -> RunKey:
    """Returns the key of a run.

    Its parts are the user's code, the contents of the inputs, hyperparameters, custom_config and
    the numbers of steps. Where the inputs lie is not among them: an upstream component that ran
    again and made the same files has changed nothing.

    Raises:
        DataError: an input cannot be read.
    """
    code = request.user_code
    parts = {
        "code": code.digest or "not bundled",
        "run_fn": f"{code.module}.{code.function}",
        "train_files": _files_digest(request.train_files),
        "eval_files": _files_digest(request.eval_files),
        "schema": _files_digest(_paths_of(request.schema_path)),
        "transform_graph": _files_digest(_paths_of(request.transform_graph_path)),
        "base_model": _files_digest(_paths_of(request.base_model)),
        "hyperparameters": digest(request.hyperparameters),
        "custom_config": digest(request.custom_config),
        "train_steps": str(request.train_steps),
        "eval_steps": str(request.eval_steps),
    }
    for name, uris in request.extra_inputs.items():
        parts[f"extra_inputs[{name}]"] = _files_digest(uris)
    return RunKey(parts)


def with_run_key(request: TrainingRequest) -> TrainingRequest:
    """Returns the request with its key and seed; the chief makes the checkpoint directory.

    Raises:
        DataError: an input cannot be read.
    """
    key = run_key(request)
    request = dataclasses.replace(request, run_key=key.digest, seed=key.seed)
    if is_chief():
        claim_checkpoint_dir(request.checkpoint_dir, key)
    return request


def claim_checkpoint_dir(directory: str, key: RunKey) -> None:
    """Makes the checkpoint directory of a run, and logs whether an earlier run was another one.

    Args:
        directory: named by the key's digest, beside those of other keys.
        key: what is written into the directory.
    """
    files = gfile()
    if _has_checkpoints(directory):
        _logger.info("An earlier attempt at this run may have left checkpoints in %s", directory)
    else:
        _name_others(os.path.dirname(directory), key)
    files.makedirs(directory)
    # Also where there is one: it may be damaged.
    write_whole(os.path.join(directory, _KEY_FILE), json.dumps(dict(key.parts), indent=1))


def leave_checkpoint_dir(directory: str) -> None:
    """Deletes the checkpoint directory of a run that has ended and never used it."""
    files = gfile()
    try:
        if files.isdir(directory) and set(files.listdir(directory)) <= {_KEY_FILE}:
            files.rmtree(directory)
    except Exception as error:  # what it raises depends on the file system
        _logger.warning("The empty directory %s could not be deleted: %s", directory, error)


def _has_checkpoints(directory: str) -> bool:
    """Returns whether a run has saved something, in whatever way, in its directory."""
    return any(os.path.basename(path) not in _NOT_SAVED for path in files_below(directory))


def _name_others(root: str, key: RunKey) -> None:
    for path in sorted(gfile().glob(os.path.join(root, "*", _KEY_FILE))):
        other = os.path.dirname(path)
        if not _has_checkpoints(other):
            continue  # it is running, or was killed before its first checkpoint
        try:
            changed = _changed(key.parts, _parts(path))
        except Exception as error:  # what it raises depends on the file system
            _logger.warning("%s is damaged (%s): what changed since then is not known", path, error)
            continue
        _logger.warning(
            "The checkpoints in %s are not used: %s changed since then. Delete them if you do not "
            "want to go back to that.",
            other,
            ", ".join(sorted(changed)),
        )


def _parts(path: str) -> dict[str, str]:
    parts = json.loads(read_whole(path))
    if not isinstance(parts, dict):
        raise ValueError(f"expected a JSON object, found {type(parts).__name__}")
    return parts


def _changed(parts: Mapping[str, str], others: Mapping[str, str]) -> set[str]:
    names = parts.keys() | others.keys()
    return {name for name in names if parts.get(name) != others.get(name)}


def _paths_of(path: str | None) -> tuple[str, ...]:
    return () if path is None else (path,)


def _files_digest(paths: Sequence[str]) -> str:
    """Returns a digest of the files that some patterns match or directories hold.

    Names count from the directory on: the same files elsewhere have the same digest.

    Raises:
        DataError: something cannot be read.
    """
    try:
        files = [[name, *fingerprint_of_file(path)] for name, path in _files(paths)]
    except Exception as error:  # what it raises depends on the file system
        raise DataError(
            f"Cannot tell whether {', '.join(paths)} is what an earlier run read: {error}",
            path=paths[0],
        ) from error
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:_DIGITS]


def _files(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    for pattern in paths:
        for path in sorted(gfile().glob(pattern)):
            if gfile().isdir(path):
                yield from ((name, os.path.join(path, name)) for name in files_below(path))
            else:
                yield os.path.basename(path), path
