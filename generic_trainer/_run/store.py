"""The directories of a pipeline node: staging, failed runs, kept exports, checkpoints by run key.

::

    <node>/model/7/.staging/7        the export until it is published; locked while its run lives
    <node>/model_run/7               log, report, event files
    <node>/model_run/7.failed        the same of a failed run, with its export in rejected_export/
    <node>/.checkpoints/<run key>    checkpoints, shared by all runs of the key

`run.json` in one of these directories holds facts that a later run needs, as one JSON object:

- in `7`: `run_key`; a later run of this number and another key does not go on from there;
- in `7.failed`, if the run failed its last check: a `KeptExport` and its job;
- in `.checkpoints/<run key>`: `key`, the parts of the run key, and `kept_in`, the directory of a
  kept export, so that the next run of the same key finds it under every orchestrator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.cluster import is_chief, is_in_a_cluster
from generic_trainer._core.files import (
    delete_tree,
    files_below,
    gfile,
    move_aside,
    publish_tree,
    read_whole,
    write_whole,
)
from generic_trainer._core.progress import ProgressReader
from generic_trainer._core.scratch import LOCK_SUFFIX, claimed, locks_held, sweep
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._core.values import digest
from generic_trainer._run.run_key import parts_of_run_key
from generic_trainer.errors import ConfigurationError, GenericTrainerError
from generic_trainer.launchers import REJECTED_DIR, Job, TrainingRequest

RUN_FILE = "run.json"
_ESTIMATOR_EXPORT = re.compile(r"export/[^/]+/\d+/saved_model\.pb")
_ESTIMATOR_DIR = "estimator"
_EARLIER_SUFFIX = ".earlier"

_logger = logging.getLogger(__name__)


def read_facts(directory: str) -> dict[str, Any]:
    """Returns the facts in a directory; an empty dictionary if it has none.

    Raises:
        ValueError, TypeError: the file is damaged.
    """
    path = os.path.join(directory, RUN_FILE)
    return dict(json.loads(read_whole(path))) if gfile().exists(path) else {}


def write_facts(directory: str, **facts: Any) -> None:
    """Adds facts to those in a directory; a damaged file is replaced."""
    gfile().makedirs(directory)
    known: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # the class depends on the file system
        known = read_facts(directory)
    write_whole(os.path.join(directory, RUN_FILE), json.dumps({**known, **facts}, indent=1))


@contextlib.contextmanager
def only_logged(failure: str) -> Iterator[None]:
    """Logs an error instead of raising it: the outcome of the run matters more.

    Args:
        failure: the start of the message.
    """
    try:
        yield
    except Exception as error:  # a full disk, for example: the class depends on the file system
        _logger.warning("%s: %s", failure, error, exc_info=True)


# ---- staging and failed runs ---------------------------------------------------------------------


@contextlib.contextmanager
def own_staging(request: TrainingRequest) -> Iterator[None]:
    """Locks a run's staging directory, and deletes stale ones of killed runs of the node.

    Object stores have no locks: stale directories stay there.
    """
    own = request.staging_dir
    models = glob.escape(os.path.dirname(request.model_dir.rstrip("/")))
    locks = glob.glob(os.path.join(models, "*", os.path.basename(own) + LOCK_SUFFIX))
    with claimed(own):
        for path in sweep(path.removesuffix(LOCK_SUFFIX) for path in locks):
            _logger.info("Deleted %s, a leftover of a killed run", path)
        yield
        with only_logged("The empty directory of the export could not be deleted"):
            delete_tree(own)


def set_earlier_run_aside(request: TrainingRequest) -> None:
    """Moves away what another run has left in the directory of a new one, which takes note of it.

    TFX numbers executions from 1 again if its metadata were deleted. The scalars and the course of
    a published run would count as those of the new one, and an estimator would go on from the
    checkpoints of a killed run of another key.
    """
    run_dir = request.model_run_dir
    key = None
    with contextlib.suppress(Exception):  # the file is damaged: the class depends on the fault
        key = read_facts(run_dir).get("run_key")
    is_published = ProgressReader(run_dir).look().phase == "published"
    if is_published or key not in (None, request.run_key):
        target = run_dir.rstrip("/") + _EARLIER_SUFFIX
        move_aside(run_dir, target)
        _logger.info("Moved what an earlier run has left in %s to %s", run_dir, target)
    write_facts(run_dir, run_key=request.run_key)


@only_logged("The log and the export of the failed run could not be kept")
def keep_failed_run(request: TrainingRequest, error: Exception) -> None:
    """Moves log and export of a failed run aside; a failure to do so is only logged.

    TFX's local orchestrators delete the output directories of a failed step. The checkpoint
    directory is deleted if nothing was ever saved in it, and no other run trains there.

    Args:
        request: the run.
        error: why it failed; its message gets the place of these files, if it does not name it.
    """
    kept = request.failed_run_dir
    record = os.path.join(request.model_run_dir, RUN_FILE)
    if gfile().exists(record):  # an export that is kept there already stays on record
        facts: dict[str, Any] = {}
        with only_logged(f"{record} is damaged"):
            facts = {**read_facts(request.model_run_dir)}
        with only_logged(f"{record} could not be added to that of an earlier run"):
            write_facts(kept, **facts)
            delete_tree(record)
    move_aside(request.model_run_dir, kept)
    if gfile().exists(request.staging_dir):
        if files_below(request.export_dir):
            publish_tree(request.export_dir, request.rejected_export_dir)
        delete_tree(request.staging_dir)
    files = {
        "log": os.path.join(kept, os.path.basename(request.log_path)),
        "export": request.rejected_export_dir,
    }
    kept_files = [f"the {name}" for name, path in files.items() if gfile().exists(path)]
    is_scratch = kept.startswith(os.path.join(request.scratch_dir, ""))  # of a dry run
    is_named = (getattr(error, "path", None) or "").startswith(kept)
    if kept_files and not is_named and not is_scratch:
        verb = "are" if len(kept_files) > 1 else "is"
        where = f"{' and '.join(kept_files).capitalize()} of the failed run {verb} in {kept}"
        if isinstance(error, GenericTrainerError):
            error.args = (f"{error}\n{where}",)
        else:
            _logger.error(where)
    directory = request.checkpoint_dir
    if not _has_checkpoints(directory) and "kept_in" not in read_facts(directory):
        _delete_unless_in_use(directory)


def take_estimator_export(model: str, run_dir: str) -> None:
    """Puts the only export of an estimator in place of the `model_dir` that it was trained in.

    A `run_fn` may train an estimator in `fn_args.serving_model_dir`, as TFX's templates did up to
    1.10. The export is then in `export/<exporter>/<time>`, where TFX's consumers still find it
    (`tfx.utils.path_utils`). Checkpoints and event files move into the ModelRun. Several exports
    stay where they are: which of them to publish is unknown.

    Args:
        model: the directory that `run_fn` exported to; it may be anything else.
        run_dir: directory of the ModelRun artifact.
    """
    names = files_below(model)
    exports = [name for name in names if _ESTIMATOR_EXPORT.fullmatch(name)]
    if "saved_model.pb" in names or len(exports) != 1:
        return
    training = os.path.join(run_dir, _ESTIMATOR_DIR)
    move_aside(model, training)
    publish_tree(os.path.join(training, os.path.dirname(exports[0])), model)
    _logger.info("Publishing the export of the estimator whose training is in %s", training)


# ---- checkpoints by run key ----------------------------------------------------------------------


def with_run_key(request: TrainingRequest, env: Mapping[str, str]) -> TrainingRequest:
    """Returns the request with its key and seed; the chief makes the checkpoint directory.

    Raises:
        DataError: an input cannot be read.
    """
    parts = parts_of_run_key(request, env)
    key = digest(parts)
    # All runs of a key, and all their workers, share the seed.
    request = dataclasses.replace(request, run_key=key, seed=int(key[:7], 16))
    if is_chief():
        claim_checkpoint_dir(request.checkpoint_dir, parts)
    return request


def claim_checkpoint_dir(directory: str, parts: Mapping[str, str]) -> None:
    """Makes the checkpoint directory of a run, and logs how other runs of the node differ.

    Args:
        directory: named by the key's digest, beside those of other keys.
        parts: the parts of the key.
    """
    if _has_checkpoints(directory):
        _logger.info("An earlier attempt at this run may have left checkpoints in %s", directory)
    else:
        _log_changes(os.path.dirname(directory), parts)
    write_facts(directory, key=dict(parts))


@only_logged("The checkpoints of the published run could not be deleted")
def delete_checkpoints(directory: str) -> None:
    """Deletes the checkpoints of a published run; a failure to do so is only logged.

    Another run of the same key may be training from them: it deletes them at its end.
    """
    if not _delete_unless_in_use(directory):
        _logger.info("Another run trains from the checkpoints in %s", directory)


def _delete_unless_in_use(directory: str) -> bool:
    """Deletes checkpoints, unless another run of the key trains there; returns whether it did."""
    with locks_held(directory) as alone:
        if alone:
            delete_tree(directory)
    return alone


def _has_checkpoints(directory: str) -> bool:
    ours = {RUN_FILE, LOCK_SUFFIX}
    return any(os.path.basename(path) not in ours for path in files_below(directory))


def _log_changes(root: str, parts: Mapping[str, str]) -> None:
    for path in sorted(gfile().glob(os.path.join(root, "*", RUN_FILE))):
        other = os.path.dirname(path)
        if not _has_checkpoints(other):
            continue  # it is running, or was killed before its first checkpoint
        try:
            theirs = dict(read_facts(other)["key"])
        except Exception as error:  # the class depends on the file system
            _logger.warning("%s is damaged (%s): the changes since then are unknown", path, error)
            continue
        names = parts.keys() | theirs.keys()
        changed = sorted(name for name in names if parts.get(name) != theirs.get(name))
        _logger.warning(
            "The checkpoints in %s are not used: %s changed since then. Delete them if you do not "
            "want to go back to that run.",
            other,
            ", ".join(changed),
        )


# ---- kept exports --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class KeptExport:
    """The export of a run that trained and failed its last check.

    Attributes:
        directory: the ModelRun of the failed run.
        run_keys: keys of the runs that may publish it: its own, and that of a module whose
            `export_fn` has repaired it.
        files: path below `export_dir` → size in bytes.
    """

    directory: str
    run_keys: Sequence[str]
    files: Mapping[str, int]

    @property
    def export_dir(self) -> str:
        """The directory of the exports."""
        return os.path.join(self.directory, REJECTED_DIR)

    @classmethod
    def read(cls, directory: str) -> KeptExport:
        """Reads the record of a kept export.

        Raises:
            ConfigurationError: the directory holds no kept export, or its record is damaged.
        """
        try:
            facts = read_facts(directory)
            return cls(directory, facts["run_keys"], dict(facts["files"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{os.path.join(directory, RUN_FILE)} is missing or damaged ({error!r}): expected "
                "the directory of a run that trained and failed its last check, such as "
                "<root>/<node>/model_run/7.failed. A run that failed earlier, or was published "
                f"since, has nothing to publish. Delete {directory} to train again.",
                path=directory,
            ) from error


@only_logged("The export can be kept, but not published later")
def record_export(job: Job, files: Mapping[str, int] | None = None) -> None:
    """Records in the ModelRun of a failed run how to publish its export later.

    `keep_failed_run` keeps the record with the export.

    Args:
        job: the run.
        files: path → size in bytes of all exports, if some may have been published by now.
    """
    request = job.request
    if not gfile().exists(os.path.join(request.export_dir, SERVING_MODEL_DIR)):
        return
    files = files or sizes_below(request.export_dir)
    keys = [request.run_key]
    write_facts(request.model_run_dir, run_keys=keys, files=files, job=job.to_json())
    if request.user_code.digest is not None:  # otherwise the code may have changed
        write_facts(request.checkpoint_dir, kept_in=request.failed_run_dir)


def find_kept_export(request: TrainingRequest) -> KeptExport | None:
    """Returns the export of an earlier run with the same key; None if there is none.

    None also if the export is unreliable: files are missing or altered, or other workers of a
    cluster, each of which decides for itself, would train without this one.
    """
    directory = request.checkpoint_dir
    try:
        directory = read_facts(directory).get("kept_in", "")
        if not directory or not gfile().exists(directory):
            return None  # a user deletes it in order to train again
        kept = KeptExport.read(directory)
        sizes = sizes_below(kept.export_dir)
        altered = [name for name, size in kept.files.items() if sizes.get(name) != size]
        if request.run_key not in kept.run_keys:
            reason = "it belongs to a run of other inputs, code or hyperparameters"
        elif is_in_a_cluster():
            reason = "the other workers of TF_CONFIG train, and need this one"
        elif altered:
            reason = f"{', '.join(altered)} is missing or has another size"
        else:
            return kept
    except Exception as error:  # the class depends on the file system
        reason = str(error)
    _logger.warning("The export kept in %s is not used: %s", directory, reason)
    return None


def sizes_below(directory: str) -> dict[str, int]:
    """Returns path → size in bytes of all files in a directory tree."""
    return {
        name: gfile().stat(os.path.join(directory, name)).length for name in files_below(directory)
    }
