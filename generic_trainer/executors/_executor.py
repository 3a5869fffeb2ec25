"""From TFX's dictionaries to a published model."""

from __future__ import annotations

import tempfile
from typing import Any

from tfx import types
from tfx.dsl.components.base.base_executor import BaseExecutor

from generic_trainer.executors._outputs import record_outputs
from generic_trainer.executors._request import distribution_of, request_from_artifacts
from generic_trainer.launchers import Job
from generic_trainer._run.run import FN_ARGS_FACTORY, train_and_publish

__all__ = ["GenericTrainerExecutor"]


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
            TrainingError: `run_fn` raised, or a worker crashed, hangs, was lost or ran out of
                memory.
            ExportError: `run_fn` exported no model.
            ModelValidationError: it exported one that a consumer downstream could not use.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        distribution = distribution_of(exec_properties)
        with tempfile.TemporaryDirectory(prefix="generic-trainer-") as scratch_dir:
            request = request_from_artifacts(
                input_dict, output_dict, exec_properties, scratch_dir=scratch_dir
            )
            report = train_and_publish(
                Job(request=request, distribution=distribution, fn_args_factory=FN_ARGS_FACTORY)
            )
        if report is not None:
            record_outputs(output_dict, report)


# The public import path: what a compiled pipeline carries must not name a private module.
GenericTrainerExecutor.__module__ = "generic_trainer.executors"
