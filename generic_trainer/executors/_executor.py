"""The executor: from TFX's dictionaries to a published model and its properties."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from generic_trainer._core import tfx_names as keys
from generic_trainer._core.event_files import last_scalars
from generic_trainer._core.files import file_errors_as
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._run.run import train_and_publish
from generic_trainer.errors import TrainingError
from generic_trainer.executors import FN_ARGS_FACTORY
from generic_trainer.executors._request import distribution_of, request_from_artifacts, tracking_of
from generic_trainer.launchers import Job
from generic_trainer.validation import ValidationReport

# As TFX's InfraValidator writes them, which is what Pusher reads.
_BLESSED_FILE = "INFRA_BLESSED"
_BLESSED_PROPERTY = "blessed"

_REPORTED_FACTS = ("size_bytes", "latency_ms", "goodput")
# Custom properties in which TFX keeps fields of an artifact.
_OF_TFX = {"is_external", "name", "pipeline_name", "producer_component", "state", "tfx_version"}
_NAMED_FACTS = {"manifest_sha256", "trained_in"}


class GenericTrainerExecutor(BaseExecutor):
    """Runs the user's `run_fn` and publishes the model that it exports.

    Works without a `Context`, as TFX's own executor does.
    """

    @file_errors_as(TrainingError, "The run failed on a file or directory")
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
            TrainingError: `run_fn` raised, a worker crashed, hangs, was lost or ran out of memory,
                or a disk is full.
            ExportError: `run_fn` exported no model, or it cannot be published.
            ModelValidationError: it exported one that a consumer downstream could not use.
        """
        distribution = distribution_of(exec_properties)
        trackings = tracking_of(exec_properties)
        with ScratchFolder("run-") as scratch_dir:
            request = request_from_artifacts(
                input_dict,
                output_dict,
                exec_properties,
                scratch_dir=scratch_dir,
                consumers=self._downstream(),
            )
            job = Job(request=request, distribution=distribution, fn_args_factory=FN_ARGS_FACTORY)
            report = train_and_publish(job, trackings)
        if report is not None:
            record_outputs(output_dict, report)

    def _downstream(self) -> Sequence[str]:
        """Returns the ids of the nodes downstream, which only TFX's own orchestrators tell.

        No execution property has them: a pipeline that gets another consumer would train anew.
        """
        node = self._context.pipeline_node if self._context is not None else None
        return () if node is None else list(node.downstream_nodes)


# The public import path: what a compiled pipeline carries must not name a private module.
GenericTrainerExecutor.__module__ = "generic_trainer.executors"


def record_outputs(
    output_dict: Mapping[str, Sequence[types.Artifact]], report: ValidationReport
) -> None:
    """Describes the published model in its artifact, and blesses it.

    The Model's custom properties are `validation` (the report's verdict), `manifest_sha256`,
    `size_bytes`, `latency_ms`, `goodput` (the share of the run's time that went into steps which
    the model has kept, from 0 to 1; absent if no steps are known), and the last value of each
    scalar in the event files of the ModelRun, under its TensorBoard name, unless TFX has a property
    of that name. `trained_in` is what was kept of the failed run that trained the model, where this
    one did not. The InfraBlessing, where the pipeline has that output, is the one that Pusher
    accepts.

    Args:
        output_dict: output name → artifacts.
        report: the outcome of the checks, all passed.
    """
    model = artifact_utils.get_single_instance(list(output_dict[keys.MODEL]))
    model_run = artifact_utils.get_single_instance(list(output_dict[keys.MODEL_RUN]))
    facts = {name: float(report.facts[name]) for name in _REPORTED_FACTS if name in report.facts}
    scalars = last_scalars(model_run.uri)
    described = {name: scalars[name] for name in scalars.keys() - _OF_TFX} | facts
    for name, value in described.items():
        if math.isfinite(value):
            model.set_float_custom_property(name, value)
        else:  # neither the metadata store nor JSON can hold a number that is not finite
            model.set_string_custom_property(name, str(value))
    # Last: a scalar may have these names.
    model.set_string_custom_property("validation", report.verdict)
    for name in _NAMED_FACTS & report.facts.keys():
        model.set_string_custom_property(name, report.facts[name])
    for blessing in output_dict.get(keys.INFRA_BLESSING, ()):
        fileio.makedirs(blessing.uri)
        with fileio.open(os.path.join(blessing.uri, _BLESSED_FILE), "w") as file:
            file.write("")
        blessing.set_int_custom_property(_BLESSED_PROPERTY, 1)
