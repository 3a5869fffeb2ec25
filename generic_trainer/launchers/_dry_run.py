"""Dry runs: `run_fn` called on a few records for one step of training, so that nothing comes of it.

Whoever wrote it may have it upload what it exports, register a model, or delete the old one. None
of this must happen with a model that has learned nothing. So it runs in a process that may write
below one directory alone, and neither connect nor start programs; where the system does not allow
such limits, there is no dry run. What they keep `run_fn` from is no fault of it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.forkserver.server import die_with_parent
from generic_trainer._core.keras import keras_module
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.texts import reason_of
from generic_trainer.errors import TrainingError
from generic_trainer.launchers._job import Job
from generic_trainer.validation import confine

_RECORDS, _MOST_BYTES = 512, 16 << 20  # of a split; a batch of most modules
_STEPS = 2
_MAX_FILE_BYTES = 1 << 40  # an export is as large as it is

_logger = logging.getLogger(__name__)


def dry_job(job: Job, directory: str) -> Job:
    """Returns a job that calls `run_fn` for a moment, and writes nothing outside a directory.

    Args:
        job: the one that is to train.
        directory: a local one, empty or not there yet.
    """
    request = dataclasses.replace(
        job.request,
        train_steps=job.request.train_steps and _STEPS,
        eval_steps=job.request.eval_steps and 1,
        model_dir=os.path.join(directory, "model"),
        model_run_dir=os.path.join(directory, "model_run", "1"),
    )
    for folder in (request.model_dir, request.model_run_dir):
        os.makedirs(folder)
    return dataclasses.replace(job, request=request, dry_run_dir=directory)


def run_dry(job: Job, directory: str, train: Callable[[Job], None]) -> None:
    """Trains for a moment in a child of this process, which is confined to a directory.

    Args:
        job: what `dry_job` has made.
        directory: its `dry_run_dir`.
        train: calls `run_fn`.

    Raises:
        TrainingError: the examples cannot be read, `run_fn` failed, or cannot be confined here.
    """
    request = job.request
    splits = {request.train_files, request.eval_files, *request.split_files.values()}
    folders = {
        pattern: os.path.join(directory, "examples", str(number))
        for number, pattern in enumerate(sorted({each for files in splits for each in files}))
    }

    def copies(files: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(os.path.join(folders[pattern], "*") for pattern in files)

    few = dataclasses.replace(
        request,
        train_files=copies(request.train_files),
        eval_files=copies(request.eval_files),
        split_files={split: copies(files) for split, files in request.split_files.items()},
    )
    # In a process of its own, as threads that read would not be confined with the others.
    reason = Path(directory, "reason")
    _in_child(lambda: _copy(folders), reason)
    dry = dataclasses.replace(job, request=few)
    _in_child(lambda: _train_confined(dry, directory, train), reason)


def _in_child(function: Callable[[], None], reason: Path) -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent(parent)
            function()
            code = 0
        except Exception as error:
            reason.write_text(reason_of(error), encoding="utf-8")
        finally:
            os._exit(code)
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        told = reason.read_text(encoding="utf-8") if reason.exists() else f"exit code {code}"
        raise TrainingError(f"its dry run ended with {told}")


def _copy(folders: Mapping[str, str]) -> None:
    from generic_trainer._core.records import copy_records  # it imports TensorFlow

    for pattern, folder in folders.items():
        copy_records(pattern, folder, _RECORDS, _MOST_BYTES)


def _train_confined(job: Job, directory: str, train: Callable[[Job], None]) -> None:
    work = Path(directory)
    if missing := confine(
        work=work, readable=["/"], has_namespace=False, max_file_bytes=_MAX_FILE_BYTES
    ):
        raise TrainingError(f"this system cannot keep a process from {' and '.join(missing)}")
    _take_one_step_of_each_fit()
    code = job.request.user_code
    _logger.info("A dry run, before the training: %s on a few records, confined", code.function)
    with ScratchFolder("task-") as scratch_dir:
        request = dataclasses.replace(job.request, scratch_dir=scratch_dir)
        train(dataclasses.replace(job, request=request))


def _take_one_step_of_each_fit() -> None:
    """Lets Keras train for one batch, whatever `fit` is asked for, in the rest of this process."""
    try:
        model = keras_module().Model
    except ImportError:  # not everybody needs it
        return
    fit = model.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def one_step(*args: Any, **kwargs: Any) -> Any:
        asked = signature.bind(*args, **kwargs).arguments
        asked["epochs"] = (asked.get("initial_epoch") or 0) + 1
        asked["steps_per_epoch"] = 1
        if asked.get("validation_data") is not None:
            asked["validation_steps"] = 1
        return fit(**asked)

    model.fit = one_step
