"""Submission of an experiment to a Ray cluster: the folder of its code, packed, and a job."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import checkpoint_storage_dir
from generic_trainer.trials._scripts import task
from generic_trainer.trials._scripts.loading import one_batch_config
from generic_trainer.trials.errors import InvalidExperimentException

_DEFAULT_ADDRESS = "http://localhost:8265"
# 128 MiB of message hold 6 bits in every 8, less 1 MiB for the rest: 95 MiB, of base64.
MAX_BASE64_BYTES = (128 * 2**20 // 8 * 6) - 2**20
_ALWAYS_IGNORED = ("__pycache__/", "*.py[co]")
_IGNORE_FILE = ".detignore"

_logger = logging.getLogger(__name__)


def submit_experiment(
    config: Mapping[str, Any],
    test: bool,
    context_dir: str,
    command: Sequence[str] | None,
    master_url: str | None,
) -> str:
    """Sends the folder with the code to the cluster and has the script run there.

    1. The job's Python must have generic-trainer and TensorFlow.
    2. Results go below the configuration's `checkpoint_storage`, into a folder of the job's name:
       `model_run/trials.json`, checkpoints, and `Format-Serving` if there is a model to serve.
    3. `environment.environment_variables` are those of the job; `resources.ray` is passed on to
       Ray, such as ``{"entrypoint_num_gpus": 1}``.

    Returns:
        The job's name.

    Raises:
        InvalidExperimentException: the folder is empty or does not have the script.
        ValueError: the folder is too large.
        ConfigurationError: Ray is not installed, or does not answer.
    """
    folder = _existing_context_dir(context_dir)
    script = _command_in(folder, command)
    config = one_batch_config(config) if test else config
    name = f"experiment-{uuid.uuid4().hex[:12]}"
    directory = os.path.join(checkpoint_storage_dir(config), name)
    options = (config.get("resources") or {}).get("ray") or {}
    listed = (config.get("environment") or {}).get("environment_variables") or []
    if isinstance(listed, Mapping):  # those of each kind of machine
        listed = listed.get("gpu" if options.get("entrypoint_num_gpus") else "cpu") or []
    variables = dict(variable.split("=", 1) for variable in listed)
    variables[task.EXPERIMENT] = json.dumps({"config": config, "directory": directory})
    with ScratchFolder("context-") as scratch:
        # As a zip, because Ray leaves out files by rules of its own.
        pack(folder, Path(scratch, task.PACKAGE))
        _connect(master_url or os.environ.get("DET_MASTER") or _DEFAULT_ADDRESS).submit_job(
            entrypoint=shlex.join(["python", "-m", task.__name__, *script]),
            submission_id=name,
            runtime_env={"working_dir": scratch, "env_vars": variables},
            metadata={"description": str(config.get("description", ""))},
            **options,
        )
    _logger.info("Submitted %s; results go to %s", name, directory)
    return name


def _connect(address: str) -> Any:
    address = address if is_remote(address) else f"http://{address}"
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigurationError(
            "An experiment is sent to a cluster by Ray, which is not installed: run "
            "`pip install 'ray[train]' aiohttp pathspec`, or pass local=True, test=True."
        ) from error
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"No Ray cluster takes jobs at {address}: {error} Pass master_url, the address of its "
            "dashboard, or set the environment variable DET_MASTER."
        ) from error


def _existing_context_dir(context_dir: str) -> Path:
    if context_dir == "":
        raise InvalidExperimentException(
            "Cannot specify the context directory to be empty: pass context_dir, the folder with "
            "your code, which is sent to the cluster."
        )
    folder = Path(context_dir).resolve()
    if not folder.is_dir():
        raise InvalidExperimentException(f"context_dir must be a folder, but got {folder}")
    return folder


def _command_in(context_dir: Path, command: Sequence[str] | None) -> list[str]:
    """Returns the script, relative to the folder, and its arguments."""
    if command is None:
        ipython = sys.modules.get("IPython")
        if ipython is not None and ipython.get_ipython() is not None:
            raise InvalidExperimentException(
                "Must specify the location of the script relative to the context directory when "
                'in IPython or a notebook: pass command=["train.py"].'
            )
        command = [os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    if not command:
        raise InvalidExperimentException("command must name a script, but got an empty list")
    script = context_dir / command[0]  # an absolute path stays what it is
    script = script.parent.resolve() / script.name
    if not (script.is_file() and script.is_relative_to(context_dir)):
        raise InvalidExperimentException(
            f"The script {command[0]} is not in the context directory {context_dir}, which is all "
            'that is sent to the cluster. Pass its context_dir, or command=["train.py"].'
        )
    return [script.relative_to(context_dir).as_posix(), *command[1:]]


def read_context_dir(context_dir: Path) -> list[Path]:
    """Returns the files of a folder, in order, without what it ignores.

    1. Compiled Python is ignored, and what the folder's `.detignore` says, in gitignore syntax.
    2. The limit counts what base64 makes of the files: four bytes for three.

    Raises:
        ValueError: the files are too large.
        ConfigurationError: pathspec, which reads gitignore syntax, is not installed.
    """
    files, size = [], 0
    for path in _walk(context_dir):
        files.append(path)
        size += -(-path.stat().st_size // 3) * 4
        if size > MAX_BASE64_BYTES:
            raise ValueError(
                f"Directory '{context_dir}' exceeds the maximum allowed size of "
                f"{MAX_BASE64_BYTES // 2**20} MiB in base64. Name what the model does not need in "
                f"{context_dir / _IGNORE_FILE}, in the syntax of .gitignore."
            )
    return files


def pack(context_dir: Path, target: Path) -> None:
    """Writes the files of a folder into a zip; see `read_context_dir`."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in read_context_dir(context_dir):
            archive.write(path, path.relative_to(context_dir))


def _walk(root: Path) -> Iterator[Path]:
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        raise ConfigurationError(
            "Packing a context directory needs pathspec, which is not installed: run "
            "`pip install pathspec`."
        ) from error
    file = root / _IGNORE_FILE
    own = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    ignored = GitIgnoreSpec.from_lines([*_ALWAYS_IGNORED, *own]).match_file
    for directory, folders, names in os.walk(root):
        here = Path(directory).relative_to(root)
        # A folder that is ignored cannot be looked into, as in git.
        folders[:] = sorted(name for name in folders if not ignored(f"{(here / name).as_posix()}/"))
        for path in (here / name for name in sorted(names)):
            if not ignored(path.as_posix()) and (root / path).is_file():
                yield root / path
