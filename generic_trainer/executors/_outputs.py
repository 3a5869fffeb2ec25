"""What a run that ended well leaves on its output artifacts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from tfx import types
from tfx.dsl.io import fileio
from tfx.types import artifact_utils

from generic_trainer._core.event_files import last_scalars
from generic_trainer._core import tfx_names as keys
from generic_trainer.validation import ValidationReport

__all__ = ["record_outputs"]

# As TFX's InfraValidator writes them, which is what Pusher reads.
_BLESSED_FILE = "INFRA_BLESSED"
_BLESSED_PROPERTY = "blessed"

_REPORTED_FACTS = ("size_bytes", "latency_ms")


def record_outputs(
    output_dict: Mapping[str, Sequence[types.Artifact]], report: ValidationReport
) -> None:
    """Describes the published model in its artifact, and blesses it.

    The Model's custom properties are `validation` ("passed"), `manifest_sha256`, `size_bytes`,
    `latency_ms` and the last value of each scalar in the event files of the ModelRun, under its
    TensorBoard name. The InfraBlessing, where the pipeline has that output, is the one that Pusher
    accepts.

    Args:
        output_dict: output name → artifacts.
        report: the outcome of the checks, all passed.
    """
    model = artifact_utils.get_single_instance(list(output_dict[keys.MODEL]))
    model_run = artifact_utils.get_single_instance(list(output_dict[keys.MODEL_RUN]))
    model.set_string_custom_property("validation", "passed")
    model.set_string_custom_property("manifest_sha256", report.facts["manifest_sha256"])
    facts = {name: float(report.facts[name]) for name in _REPORTED_FACTS if name in report.facts}
    for name, value in {**last_scalars(model_run.uri), **facts}.items():
        if math.isfinite(value):
            model.set_float_custom_property(name, value)
        else:  # neither the metadata store nor JSON can hold a number that is not finite
            model.set_string_custom_property(name, str(value))
    for blessing in output_dict.get(keys.INFRA_BLESSING, ()):
        _bless(blessing)


def _bless(blessing: types.Artifact) -> None:
    fileio.makedirs(blessing.uri)
    with fileio.open(os.path.join(blessing.uri, _BLESSED_FILE), "w") as file:
        file.write("")
    blessing.set_int_custom_property(_BLESSED_PROPERTY, 1)
