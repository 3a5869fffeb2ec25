"""Rehearsals: what a module exports without training is checked before anything is trained.

A module that has an `export_fn` has it called alone; of any other `run_fn` is called on a few
records, where nothing can come of it (`dry_job`).

By default that is done where it costs little, and a wrong alarm would cost the run. So there a run
is refused only for what the code decides and no training can change; what untrained weights,
vocabularies that nobody has adapted yet, and an `export_fn` that needs a checkpoint may fail on is
a line in the log.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Mapping

from generic_trainer._core.files import gfile, read_whole, write_whole
from generic_trainer._core.progress import recording
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._run.publishing import require_passed
from generic_trainer.errors import GenericTrainerError, WorkerLostError
from generic_trainer.launchers import Distribution, Job, TrainingRequest, dry_job, launch
from generic_trainer.user_code import defines_function
from generic_trainer.validation import Checker, Result, ServingContract, ValidationReport

_EXPORT_FN = "export_fn"
_REHEARSAL_DIR = "rehearsal"
# Beside the checkpoints: how long training and rehearsal took, in seconds.
_DURATIONS_FILE = "durations.json"
# A rehearsal may cost this share of the training; where nobody knows that yet, so many seconds if
# it calls `export_fn` alone.
_SHARE = 0.05
_FIRST_TIMEOUT_S = 120.0
_USUAL_S = 15.0
_USUAL_DRY_RUN_S = 30.0
# No training takes less for a step, so that many steps tell how long a first one takes at least.
_SHORTEST_STEP_S = 0.001
_DRY_RUN_TIMEOUT_S = 600.0  # of a loop whose end is not what `train_steps` says

# They look at files and at the graph: at names, types and ops. What untrained weights, vocabularies
# or indices can be reasons for is in none of them.
_OF_THE_CODE = frozenset({
    "presence", "inputs_read", "manifest_matches", "parses", "fingerprint", "serve_tag",
    "signatures_exist", "required_signatures", "signature_specs", "serialized_input",
    "batch_dimension", "output_shape", "signature_tensors", "signature_methods",
    "composite_tensors", "schema_features", "label_inputs", "unregistered_ops", "denied_ops",
    "python_ops", "file_ops", "absolute_paths", "devices", "compiled_functions", "assets",
    "vocabularies", "variables_read", "eval_config", "eval_signatures", "embedded_code",
    "format_consumers",
})  # fmt: skip
# They call the model. What they find is of the code where the same weights score other rows: live
# dropout, rows that depend on their batch, a label that is needed.
_OF_THE_CODE_IF_IT_SCORES = frozenset({
    "memory", "latency", "output_per_row", "deterministic", "row_independence", "batch_sizes",
    "session", "warmup", "without_label", "without_optional",
})  # fmt: skip
_ABLE_TO_SCORE = frozenset({"scores", "outputs_finite"})

_logger = logging.getLogger(__name__)


def rehearse(job: Job, contract: ServingContract, checker: Checker) -> None:
    """Checks an export of untrained weights, if that is asked for or worth it.

    Raises:
        ModelValidationError: it failed; see `ServingContract.rehearse`.
        TrainingError: `export_fn` raised, and the contract asks for a rehearsal.
        WorkerLostError: this process is to stop.
    """
    if contract.rehearse is None:
        _rehearse_if_cheap(job, contract, checker)
    elif contract.rehearse:
        report = _rehearse(job, contract, checker)
        if report is None:
            _logger.warning(
                "The contract asks for a rehearsal, but %s has no export_fn(fn_args), and exports "
                "nothing in a dry run: there is none.",
                job.request.user_code.module,
            )
        else:
            require_passed(report, "The untrained export")


def not_cured_by_training(report: ValidationReport) -> ValidationReport:
    """Returns a report with those failures alone that the trained model would have too."""
    well = {each.name for each in report.results if each.status in ("pass", "warn")}
    certain = _OF_THE_CODE | (_OF_THE_CODE_IF_IT_SCORES if well >= _ABLE_TO_SCORE else frozenset())
    return dataclasses.replace(
        report,
        results=tuple(
            each if each.status != "fail" or each.name in certain else _as_warning(each)
            for each in report.results
        ),
    )


def note_training(request: TrainingRequest, seconds: float) -> None:
    """Notes how long a training took, by which the next run sees what a rehearsal may cost."""
    # A dry run of what takes less is never worth it.
    if _has_export_fn(request) or seconds * _SHARE >= _USUAL_DRY_RUN_S:
        _note(_durations_path(request), training=round(seconds, 1))


def export_alone(job: Job, directory: str, *, timeout_s: float | None = None) -> bool:
    """Has `export_fn` of the module export into a local directory; returns whether there is one.

    It runs in a child process. In this one it would leave its names in Keras and memory on the GPU
    behind, and in a cluster a strategy can be made but once.

    Raises:
        TrainingError: `export_fn` raised, or took longer than `timeout_s` seconds.
    """
    with recording("", "rehearsal"):  # which is no part of the run's course
        launch(dataclasses.replace(_alone(job, timeout_s), export_fn_dir=directory))
    return os.path.exists(directory)


def _alone(job: Job, timeout_s: float | None) -> Job:
    """Returns the job in one process of this machine."""
    alone = Distribution(launcher="local", env=job.distribution.env, timeout_s=timeout_s)
    return dataclasses.replace(job, distribution=alone)


def _rehearse_if_cheap(job: Job, contract: ServingContract, checker: Checker) -> None:
    if contract.format == "any":
        return
    path, is_short = _durations_path(job.request), _has_export_fn(job.request)
    known = _durations(path)
    if "training" in known:
        budget_s = known["training"] * _SHARE
    elif is_short:
        budget_s = _FIRST_TIMEOUT_S
    else:
        budget_s = (job.request.train_steps or 0) * _SHORTEST_STEP_S * _SHARE
    if known.get("rehearsal", _USUAL_S if is_short else _USUAL_DRY_RUN_S) > budget_s:
        return
    started = time.monotonic()
    try:
        report = _rehearse(job, _of_any_size(contract), checker, timeout_s=budget_s)
    except WorkerLostError:
        raise
    except GenericTrainerError as error:
        _logger.warning(
            "export_fn cannot export untrained weights, so what it writes is checked after the "
            "training only: %s",
            error,
        )
        return
    finally:
        _note(path, rehearsal=round(time.monotonic() - started, 1))
    if report is None:
        return
    certain = not_cured_by_training(report)
    require_passed(
        certain,
        "What the module exports without training, which no training would mend "
        "(ServingContract(rehearse=False) does not try it),",
    )
    if not report.passed:
        _logger.warning(
            "The untrained export fails checks that training may cure: %s", report.summary()
        )


def _rehearse(
    job: Job, contract: ServingContract, checker: Checker, *, timeout_s: float | None = None
) -> ValidationReport | None:
    directory = os.path.join(job.request.scratch_dir, _REHEARSAL_DIR)
    # It may be imported into the module, which only a process tells that imports it.
    if contract.rehearse or _has_export_fn(job.request):
        _logger.info("Rehearsing: %s exports untrained weights", _EXPORT_FN)
        if export_alone(job, directory, timeout_s=timeout_s):
            return checker.validate(os.path.join(directory, SERVING_MODEL_DIR), contract)
    code = job.request.user_code
    if not defines_function(code, code.function):  # of another trainer API, or without its source
        return None
    try:
        dry = dry_job(_alone(job, timeout_s or _DRY_RUN_TIMEOUT_S), directory)
        with recording("", "rehearsal"):
            launch(dry)
    except WorkerLostError:
        raise
    except GenericTrainerError as error:
        _logger.info("%s is not rehearsed, and trains all the same: %s", code.function, error)
        return None
    exported = os.path.join(dry.request.staging_dir, SERVING_MODEL_DIR)
    return checker.validate(exported, contract) if os.path.exists(exported) else None


def _of_any_size(contract: ServingContract) -> ServingContract:
    """Returns a contract without shapes: how many classes or words there are, training may tell."""

    def types(tensors: Mapping[str, str]) -> dict[str, str]:
        return {name: tensor.partition("[")[0].strip() for name, tensor in tensors.items()}

    specs = (
        dataclasses.replace(spec, inputs=types(spec.inputs), outputs=types(spec.outputs))
        for spec in contract.signature_specs
    )
    return dataclasses.replace(contract, signatures=tuple(specs))


def _as_warning(result: Result) -> Result:
    return dataclasses.replace(result, status="warn")


def _has_export_fn(request: TrainingRequest) -> bool:
    return defines_function(request.user_code, _EXPORT_FN)


def _durations_path(request: TrainingRequest) -> str:
    """Returns the file that all runs of the node share."""
    return request.checkpoint_dir_of(_DURATIONS_FILE)


def _durations(path: str) -> dict[str, float]:
    """Returns `training` and `rehearsal`, as far as an earlier run has noted them."""
    if not gfile().exists(path):
        return {}
    try:
        return {name: float(seconds) for name, seconds in json.loads(read_whole(path)).items()}
    except Exception as error:  # what it raises depends on the file system
        _logger.info("%s is damaged: %s", path, error)
        return {}


def _note(path: str, **seconds: float) -> None:
    try:
        gfile().makedirs(os.path.dirname(path))
        write_whole(path, json.dumps({**_durations(path), **seconds}))
    except Exception as error:  # a full disk must not cost the run
        _logger.warning("%s could not be written: %s", path, error)
