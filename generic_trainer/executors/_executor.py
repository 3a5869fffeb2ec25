"""From TFX's dictionaries to a published model."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from typing import Any

from tfx import types
from tfx.dsl.components.base.base_executor import BaseExecutor

from generic_trainer.derived_contract import derived_contract
from generic_trainer.errors import ConfigurationError
from generic_trainer.executors._outputs import record_outputs
from generic_trainer.executors._request import distribution_of, request_from_artifacts
from generic_trainer.launchers import Distribution, Job, launch
from generic_trainer.publishing import keep_failed_run, publish, require_passed
from generic_trainer.request import TrainingRequest
from generic_trainer.training import is_chief
from generic_trainer.validation import (
    ServingContract,
    ValidationReport,
    lint_eval_config,
    start_checker,
)

__all__ = ["GenericTrainerExecutor"]

_logger = logging.getLogger(__name__)

# TFX's FnArgs brings Beam and TensorFlow Model Analysis with it, which whoever only builds a
# pipeline does not need: it is imported when it is called.
_FN_ARGS_FACTORY = "generic_trainer.executors._fn_args:make_fn_args"


class GenericTrainerExecutor(BaseExecutor):
    """Runs the user's `run_fn` and publishes the model that it exports.

    Works without a `Context`, as TFX's own executor does.
    """

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Trains, then publishes the export into the Model artifact.

        In a cluster described by `TF_CONFIG` every worker may call this; the chief alone publishes.

        Args:
            input_dict: input name → artifacts.
            output_dict: `model`, `model_run` and `infra_blessing`, one artifact each; the last
                may be missing.
            exec_properties: the component's execution properties.

        Raises:
            ConfigurationError: the execution properties cannot be understood.
            DataError: an input artifact is missing, empty or unreadable.
            ModuleFileError: the user's module cannot be loaded.
            TrainingError: `run_fn` raised, or a worker crashed, hangs, was lost or is out of memory.
            ExportError: `run_fn` exported no model.
            ModelValidationError: it exported one that a consumer downstream could not use.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        distribution = distribution_of(exec_properties)
        with tempfile.TemporaryDirectory(prefix="generic-trainer-") as scratch_dir:
            request = request_from_artifacts(
                input_dict, output_dict, exec_properties, scratch_dir=scratch_dir
            )
            try:
                report = _train_and_publish(request, distribution)
            except Exception:
                _keep_failed_run(request)
                raise
        if report is not None:
            record_outputs(output_dict, report)


# The public import path: what a compiled pipeline carries must not name a private module.
GenericTrainerExecutor.__module__ = "generic_trainer.executors"


def _train_and_publish(
    request: TrainingRequest, distribution: Distribution
) -> ValidationReport | None:
    """Returns the report on the published model; None in workers, which publish nothing."""
    job = Job(request=request, distribution=distribution, fn_args_factory=_FN_ARGS_FACTORY)
    if not is_chief():
        launch(job)
        return None
    contract = derived_contract(request)
    _check_eval_config(contract)
    # The checks need a process with TensorFlow; it starts up while the model trains.
    with start_checker(preload=_needed_by_checks(contract)) as checker:

        def check_rehearsal(export_dir: str) -> None:
            require_passed(checker.validate(export_dir, contract), "The untrained export")

        if contract.rehearse:
            job = dataclasses.replace(job, check_rehearsal=check_rehearsal)
        launch(job)
        return publish(request, contract, checker)


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
