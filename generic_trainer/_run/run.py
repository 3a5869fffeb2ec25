"""A whole run: the checks before it, the training, the checks after it, and publishing."""

from __future__ import annotations

import dataclasses
import logging
import os

from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._run.derived_contract import derived_contract
from generic_trainer._run.publishing import keep_failed_run, own_staging, publish, require_passed
from generic_trainer._run.run_key import leave_checkpoint_dir
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import Distribution, Job, TrainingRequest, launch
from generic_trainer.training import is_chief
from generic_trainer.validation import (
    Checker,
    ServingContract,
    ValidationReport,
    lint_eval_config,
    start_checker,
)

_REHEARSAL_DIR = "rehearsal"

_logger = logging.getLogger(__name__)


def train_and_publish(job: Job) -> ValidationReport | None:
    """Trains, then publishes the export into the directory of the model.

    What a run that fails leaves is kept beside that; see `keep_failed_run`.

    Args:
        job: the run and where it takes place.

    Returns:
        The report on the published model; None in workers, which publish nothing.

    Raises:
        ConfigurationError: the Evaluator would fail with the eval config.
        GenericTrainerError: see `Launcher` and `publish`.
    """
    if not is_chief():
        launch(job)
        return None
    with own_staging(job.request):
        try:
            return _train_and_publish(job)
        except Exception:
            _keep_failed_run(job.request)
            leave_checkpoint_dir(job.request.checkpoint_dir)
            raise


def _train_and_publish(job: Job) -> ValidationReport:
    contract = derived_contract(job.request)
    _check_eval_config(contract)
    # The checks need a process with TensorFlow; it starts up while the model trains.
    with start_checker(preload=_needed_by_checks(contract)) as checker:
        if contract.rehearse:
            _check_untrained_export(job, contract, checker)
        launch(job)
        return publish(job.request, contract, checker)


def _check_untrained_export(job: Job, contract: ServingContract, checker: Checker) -> None:
    """Checks an export of untrained weights before any worker is started.

    It is made in a child process. In this one it would leave its names in Keras and memory on the
    GPU behind, and in a cluster a strategy can be made but once.
    """
    directory = os.path.join(job.request.scratch_dir, _REHEARSAL_DIR)
    alone = Distribution(launcher="local", env=job.distribution.env)
    launch(dataclasses.replace(job, distribution=alone, rehearsal_dir=directory))
    if os.path.exists(directory):  # unless the module has no export_fn
        export = os.path.join(directory, SERVING_MODEL_DIR)
        require_passed(checker.validate(export, contract), "The untrained export")


def _needed_by_checks(contract: ServingContract) -> tuple[str, ...]:
    return ("tensorflow_model_analysis",) if contract.eval_config is not None else ()


def _check_eval_config(contract: ServingContract) -> None:
    """Finds, before any training, what the Evaluator would fail on or silently leave out."""
    if contract.eval_config is None:
        return
    result = lint_eval_config(contract.eval_config, contract.schema)
    if result.status == "fail":
        raise ConfigurationError(
            f"The Evaluator would fail with this eval_config: {result.message} → {result.remedy}"
        )
    if result.status == "warn":
        _logger.warning("eval_config: %s → %s", result.message, result.remedy)


def _keep_failed_run(request: TrainingRequest) -> None:
    try:
        _logger.error("What the failed run left is in %s", keep_failed_run(request))
    except Exception:  # a full disk, say: the error of the run itself matters more
        _logger.exception("What the failed run left could not be kept")
