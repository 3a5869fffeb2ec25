"""Rehearsals: `export_fn` called alone, on untrained weights, before anything is trained."""

from __future__ import annotations

import dataclasses
import logging
import os

from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._run.publishing import require_passed
from generic_trainer.launchers import Distribution, Job, launch
from generic_trainer.validation import Checker, ServingContract

_REHEARSAL_DIR = "rehearsal"

_logger = logging.getLogger(__name__)


def rehearse(job: Job, contract: ServingContract, checker: Checker) -> None:
    """Checks an export of untrained weights before any worker is started.

    Raises:
        ModelValidationError: it failed a check.
        TrainingError: `export_fn` raised.
    """
    directory = os.path.join(job.request.scratch_dir, _REHEARSAL_DIR)
    _logger.info("Rehearsing: export_fn exports untrained weights")
    if not export_alone(job, directory):
        _logger.warning(
            "The contract asks for a rehearsal, but %s has no export_fn(fn_args): there is none.",
            job.request.user_code.module,
        )
        return
    export = os.path.join(directory, SERVING_MODEL_DIR)
    require_passed(checker.validate(export, contract), "The untrained export")


def export_alone(job: Job, directory: str) -> bool:
    """Has `export_fn` of the module export into a local directory; returns whether there is one.

    It runs in a child process. In this one it would leave its names in Keras and memory on the GPU
    behind, and in a cluster a strategy can be made but once.

    Raises:
        TrainingError: `export_fn` raised.
    """
    alone = Distribution(launcher="local", env=job.distribution.env)
    launch(dataclasses.replace(job, distribution=alone, export_fn_dir=directory))
    return os.path.exists(directory)
