"""Exports that failed their last check: kept with what it takes to check them again, and found.

In the directory that is kept of the failed run lie::

    rejected_export/   what run_fn exported
    kept_export.json   which run it belongs to, what it was checked for, the sizes of its files
    job.json           the job, for `generic-trainer publish`

Beside the checkpoints, whose directory is named by the run key, another `kept_export.json` says
where that is. So the next run of the same inputs, code and hyperparameters finds it, under every
orchestrator, and it is gone when the model is published.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping

from generic_trainer._core.cluster import is_in_a_cluster
from generic_trainer._core.files import files_below, gfile, is_remote, read_whole, write_whole
from generic_trainer._core.locks import NO_LOCKS, locked_file, locked_file_of_the_dead
from generic_trainer._core.scratch import LOCK_SUFFIX
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._core.values import digest
from generic_trainer._run.publishing import keep_failed_run, stagings_of_the_node
from generic_trainer._run.run_key import KEPT_EXPORT_FILE
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import REJECTED_DIR, Job, TrainingRequest
from generic_trainer.validation import is_report_file

JOB_FILE = "job.json"
_LOCK_FILE = ".lock"
_OWN_FILES = {KEPT_EXPORT_FILE, JOB_FILE, REJECTED_DIR, _LOCK_FILE}
# What an installed package is named by: `numpy-1.26.4.dist-info`.
_INSTALLED = ".dist-info"
_OWN_PACKAGE = "generic_trainer"
# Folder of copies for a package's own use, which setuptools puts on the path once it is imported.
_VENDORED = "_vendor"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class KeptExport:
    """What is kept of a run that trained and failed its last check.

    Attributes:
        directory: the directory that is kept of the failed run.
        run_keys: the runs that may publish it: its own, and that of a module whose `export_fn`
            has repaired it.
        checked_for: digest of contract, eval config and consumers that it was last checked for.
        packages: name → version of the packages that were installed when it was trained.
        files: path below `export_dir` → size in bytes.
        contract: `ServingContract.to_json()` that it passed in `generic-trainer publish`; None
            where nobody has called that.
    """

    directory: str
    run_keys: tuple[str, ...]
    checked_for: str
    packages: Mapping[str, str]
    files: Mapping[str, int]
    contract: str | None = None

    @property
    def export_dir(self) -> str:
        """The directory of the exports."""
        return os.path.join(self.directory, REJECTED_DIR)

    @property
    def others(self) -> list[str]:
        """What the run has left beside its export: the log, event files, what `run_fn` wrote."""
        names = {name.rstrip("/") for name in gfile().listdir(self.directory)}
        return sorted(name for name in names - _OWN_FILES if not is_report_file(name))

    @classmethod
    def read(cls, directory: str) -> KeptExport:
        """Reads what is kept of a failed run.

        Raises:
            ConfigurationError: nothing is there that could be published.
        """
        path = os.path.join(directory, KEPT_EXPORT_FILE)
        if not gfile().exists(path):
            raise ConfigurationError(
                f"{directory} has no {KEPT_EXPORT_FILE}: expected what is kept of a run that "
                "trained and failed its last check, such as <root>/<node>/model_run/7.failed. A "
                "run that failed before, or was published since, has nothing to publish.",
                path=directory,
            )
        try:
            record = json.loads(read_whole(path))
            return cls(directory, **{**record, "run_keys": tuple(record["run_keys"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{path} is damaged ({error}): delete {directory} to train anew.", path=path
            ) from error

    def write(self, directory: str | None = None) -> None:
        """Writes the record, into another directory where one is given."""
        record = {name: value for name, value in vars(self).items() if name != "directory"}
        path = os.path.join(directory or self.directory, KEPT_EXPORT_FILE)
        write_whole(path, json.dumps(record, indent=1))

    @contextlib.contextmanager
    def claimed(self) -> Iterator[bool]:
        """Holds what is kept for one run at a time; yields False where another one has it."""
        if is_remote(self.directory):  # which has no locks
            yield True
            return
        try:
            lock = locked_file(os.path.join(self.directory, _LOCK_FILE))
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            yield True
            return
        if lock is None:
            yield False
            return
        with lock:
            yield True


@contextlib.contextmanager
def export_kept(job: Job) -> Iterator[None]:
    """Notes, while the last check of a run goes on, what it takes to publish its export later.

    The notes go into the ModelRun. Where the check fails, `keep_failed_run` keeps them with the
    export; of a process that is killed, `keep_exports_of_the_dead` does. They are gone after a run
    that is published.
    """
    try:
        _note(job)
    except Exception:  # a full disk, say: the run itself matters more
        _logger.exception("The export can be kept, but not published later")
    yield
    for name in (KEPT_EXPORT_FILE, JOB_FILE):
        path = os.path.join(job.request.model_run_dir, name)
        if gfile().exists(path):
            gfile().remove(path)


def keep_exports_of_the_dead(request: TrainingRequest) -> None:
    """Keeps what runs of the node have trained that were killed in their last check.

    Elsewhere than on this machine's disks nobody can tell whether a run lives.
    """
    for staging in stagings_of_the_node(request):
        model_dir = os.path.dirname(staging)
        runs = os.path.dirname(request.model_run_dir.rstrip("/"))
        run = dataclasses.replace(
            request,
            model_dir=model_dir,
            model_run_dir=os.path.join(runs, os.path.basename(model_dir)),
        )
        noted = os.path.exists(os.path.join(run.model_run_dir, KEPT_EXPORT_FILE))
        if not noted or not os.path.exists(staging):
            continue
        lock = locked_file_of_the_dead(staging + LOCK_SUFFIX)
        if lock is not None:
            with lock:
                _logger.warning(
                    "A run was killed in its last check: what it trained is in %s",
                    keep_failed_run(run),
                )


def _note(job: Job) -> None:
    request = job.request
    staging = request.staging_dir
    if not gfile().exists(os.path.join(staging, SERVING_MODEL_DIR)):
        return
    kept = KeptExport(
        request.failed_run_dir,
        run_keys=(request.run_key,),
        checked_for=checked_for(request),
        packages=_packages(),
        files=sizes_below(staging),
    )
    write_whole(os.path.join(request.model_run_dir, JOB_FILE), job.to_json())
    kept.write(request.model_run_dir)
    if request.user_code.digest is not None:  # else nobody can tell whether the code has changed
        announce(request.checkpoint_dir, kept.directory)


def announce(checkpoint_dir: str, directory: str) -> None:
    """Lets the next run of a key find what was kept of a failed one."""
    gfile().makedirs(checkpoint_dir)
    pointer = json.dumps({"directory": directory}, indent=1)
    write_whole(os.path.join(checkpoint_dir, KEPT_EXPORT_FILE), pointer)


def find_kept_export(request: TrainingRequest) -> KeptExport | None:
    """Returns the export that an earlier run of the same key has trained; None if there is none.

    None also where that cannot be relied on: files are missing or altered, another version of an
    installed package may train another model, or the other workers of a cluster, which each decide
    for themselves, would train without this one.
    """
    pointer = os.path.join(request.checkpoint_dir, KEPT_EXPORT_FILE)
    if not gfile().exists(pointer):
        return None
    try:
        directory = json.loads(read_whole(pointer))["directory"]
        if not gfile().exists(directory):
            return None  # somebody has deleted it, to train anew
        kept = KeptExport.read(directory)
        reason = _why_not(kept, request)
    except Exception as error:  # what it raises depends on the file system
        directory, reason = pointer, str(error)
    if reason:
        _logger.warning("The export kept in %s is not used: %s", directory, reason)
        return None
    return kept


def checked_for(request: TrainingRequest) -> str:
    """Returns a digest of what the pipeline requires of the export."""
    contract = request.contract and request.contract.to_json()
    return digest([contract, str(request.eval_config), sorted(request.consumers)])


def sizes_below(directory: str) -> dict[str, int]:
    """Returns path → size in bytes of all files in a directory tree."""
    return {
        name: gfile().stat(os.path.join(directory, name)).length for name in files_below(directory)
    }


def _why_not(kept: KeptExport, request: TrainingRequest) -> str | None:
    if request.run_key not in kept.run_keys:
        return "it belongs to a run of other inputs, code or hyperparameters"
    if is_in_a_cluster():
        return "the other workers of TF_CONFIG train, and need this one"
    found = sizes_below(kept.export_dir)
    if altered := [name for name, size in kept.files.items() if found.get(name) != size]:
        return f"{', '.join(altered)} is missing or has another size"
    now = _packages()
    changed = [
        f"{name} {version} → {now.get(name, 'none')}"
        for name, version in kept.packages.items()
        if now.get(name) != version
    ]
    return f"installed packages have changed since: {', '.join(changed)}" if changed else None


def _packages() -> dict[str, str]:
    """Returns name → version of what is installed, which `run_fn` may import.

    This package is not among them: what it checks is asked for anew, and it trains nothing.
    """
    entries: dict[str, str] = {}
    folders = [each for each in sys.path if os.path.basename(each) != _VENDORED]
    for folder in reversed(folders):  # the first one on the path counts
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(folder or ".") if name.endswith(_INSTALLED)]
            parts = (name.removesuffix(_INSTALLED).partition("-") for name in names)
            entries.update((name, version) for name, _, version in parts)
    return {name: each for name, each in entries.items() if name != _OWN_PACKAGE}
