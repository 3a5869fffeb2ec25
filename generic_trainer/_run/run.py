"""A whole run: the checks before it, the training, the checks after it, and publishing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from generic_trainer._run.derived_contract import derived_contract
from generic_trainer._run.kept_export import export_kept, keep_exports_of_the_dead
from generic_trainer._run.live import LiveRun
from generic_trainer._run.publishing import (
    check_export,
    delete_checkpoints,
    keep_failed_run,
    own_staging,
    publish,
)
from generic_trainer._run.rehearsal import note_training, rehearse
from generic_trainer._run.republishing import publish_kept_export
from generic_trainer._run.run_key import leave_checkpoint_dir
from generic_trainer._run.slots import with_a_worker_for_each_slot
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import Job, TrainingRequest, launch
from generic_trainer.tracking import Tracking, track
from generic_trainer.training import is_chief
from generic_trainer.validation import (
    ServingContract,
    ValidationReport,
    lint_eval_config,
    start_checker,
)

_logger = logging.getLogger(__name__)


def train_and_publish(job: Job, trackings: Sequence[Tracking] = ()) -> ValidationReport | None:
    """Trains, then publishes the export into the directory of the model.

    What a run that fails leaves is kept beside that; see `keep_failed_run`.

    Args:
        job: the run and where it takes place.
        trackings: which trackers it is told to.

    Returns:
        The report on the published model; None in workers, which publish nothing.

    Raises:
        ConfigurationError: the Evaluator would fail with the eval config.
        GenericTrainerError: see `Launcher` and `publish`.
    """
    job = with_a_worker_for_each_slot(job)
    if not is_chief():
        launch(job)
        return None
    keep_exports_of_the_dead(job.request)
    with own_staging(job.request):
        try:
            with LiveRun(job.request.model_run_dir) as live, track(job, trackings) as tracked:
                tracked.report = report = _train_and_publish(job, live)
            return report
        except Exception:
            _keep_failed_run(job.request)
            leave_checkpoint_dir(job.request.checkpoint_dir)
            raise


def _train_and_publish(job: Job, live: LiveRun) -> ValidationReport:
    request = job.request
    contract = derived_contract(request)
    _check_eval_config(contract)
    # The checks need a process with TensorFlow; it starts up while the model trains.
    with start_checker(preload=_needed_by_checks(contract)) as checker:
        report = publish_kept_export(request, checker)
        if report is not None:
            return report
        rehearse(job, contract, checker)
        started = time.monotonic()
        with live.training():
            launch(job)
        note_training(request, time.monotonic() - started)
        staging, rejected = request.staging_dir, request.rejected_export_dir
        with export_kept(job):
            report = check_export(request, staging, contract, checker, rejected=rejected)
            report = publish(request, staging, report)
        delete_checkpoints(request.checkpoint_dir)
        return report


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
