"""A finished export, made visible to the components downstream whole or not at all.

`run_fn` writes into a staging directory inside the Model artifact, on the same file system as the
place where consumers look. Publishing is one rename from there; until then the artifact has no
`Format-Serving`, whatever was killed or ran out of disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import logging
import os
from collections.abc import Iterator

from generic_trainer._core.files import (
    delete_tree,
    file_errors_as,
    follow_links,
    gfile,
    is_remote,
    move_aside,
    publish_tree,
)
from generic_trainer._core.goodput import goodput_of
from generic_trainer._core.locks import locks_held
from generic_trainer._core.progress import note
from generic_trainer._core.scratch import LOCK_SUFFIX, claimed, sweep
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._run.live import REPORT_FILE, compared_models, run_sections
from generic_trainer.errors import ExportError, ModelValidationError
from generic_trainer.launchers import TrainingRequest
from generic_trainer.validation import (
    Checker,
    ServingContract,
    ValidationReport,
    write_manifest,
)

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def own_staging(request: TrainingRequest) -> Iterator[None]:
    """Claims a run's staging directory, and deletes those that killed runs of the node have left.

    A lock beside it tells the living from the dead. Object stores have none: there they stay.
    """
    own = request.staging_dir
    if is_remote(own):
        yield
        return
    stagings = stagings_of_the_node(request)
    with claimed(own):
        for path in sweep(stagings):
            _logger.info("Deleted %s, which a killed run had left", path)
        yield


def stagings_of_the_node(request: TrainingRequest) -> list[str]:
    """Returns the local staging directories of the node that have a lock beside them."""
    own = request.staging_dir
    if is_remote(own):
        return []
    node_models, name = os.path.dirname(request.model_dir.rstrip("/")), os.path.basename(own)
    locks = glob.glob(os.path.join(glob.escape(node_models), "*", name + LOCK_SUFFIX))
    return [each.removesuffix(LOCK_SUFFIX) for each in locks]


@file_errors_as(ExportError, "The exported model could not be checked")
def check_export(
    request: TrainingRequest,
    exported: str,
    contract: ServingContract,
    checker: Checker,
    *,
    rejected: str,
) -> ValidationReport:
    """Checks an export, and writes the report into the ModelRun.

    Args:
        request: the run.
        exported: the directory of its exports, such as the staging directory.
        contract: what the export must fulfil.
        checker: the process that the checks run in.
        rejected: the directory of the exports when somebody reads that they failed.

    Returns:
        The outcome of the checks, all passed.

    Raises:
        ExportError: nothing was exported, or a disk is full.
        ModelValidationError: the export failed the checks.
    """
    model = os.path.join(exported, SERVING_MODEL_DIR)
    if not gfile().exists(model):
        raise ExportError(
            "run_fn returned and exported no model: expected a SavedModel in "
            f"fn_args.serving_model_dir ({model}), found nothing there. Save one with "
            "`model.export(fn_args.serving_model_dir)` or `tf.saved_model.save`.",
            path=model,
        )
    for name in gfile().listdir(exported):
        follow_links(os.path.join(exported, name.rstrip("/")))
    note(phase="checks")
    _logger.info("Checking the exported model")
    report = checker.validate(model, contract)
    rests_in = os.path.join(request.model_dir if report.passed else rejected, SERVING_MODEL_DIR)
    facts = {**report.facts, **goodput_of(request.model_run_dir)}
    report = dataclasses.replace(report, model_dir=rests_in, facts=facts)
    write_report(report, request.model_run_dir, run=about_run(request, report))
    for warning in report.warnings:
        _logger.warning("%s: %s → %s", warning.name, warning.message, warning.remedy)
    require_passed(report, "The exported model")
    _logger.info("%s; the report is in %s", report.summary(), request.model_run_dir)
    return report


@file_errors_as(ExportError, "The model could not be published")
def publish(request: TrainingRequest, exported: str, report: ValidationReport) -> ValidationReport:
    """Moves an export that passed to where consumers look for it.

    Everything beside it moves too, `Format-Serving` last: it is what makes the artifact a model.

    Args:
        request: the run.
        exported: the directory of the exports; it is gone afterwards.
        report: what the checks said.

    Returns:
        The report, with the checksum of the model's manifest among its facts.

    Raises:
        ExportError: a disk is full, for example.
    """
    note(phase="publishing")
    manifest_hash = write_manifest(os.path.join(exported, SERVING_MODEL_DIR), report)
    report = dataclasses.replace(report, facts={**report.facts, "manifest_sha256": manifest_hash})
    names = sorted(name.rstrip("/") for name in gfile().listdir(exported))
    for name in sorted(names, key=lambda name: name == SERVING_MODEL_DIR):
        publish_tree(os.path.join(exported, name), os.path.join(request.model_dir, name))
    delete_tree(exported)
    _logger.info("Published the model in %s", os.path.join(request.model_dir, SERVING_MODEL_DIR))
    return report


def delete_checkpoints(directory: str) -> None:
    """Deletes what nothing is left to resume from; a model that is published stays so.

    Another run of the same key may be at work there already: it needs them, and deletes them later.
    """
    try:
        if is_remote(directory):
            delete_tree(directory)
            return
        with locks_held(directory) as alone:
            if alone:
                delete_tree(directory)
            else:
                _logger.info("Another run goes on from the checkpoints in %s", directory)
    except Exception as error:
        _logger.warning("The checkpoints in %s could not be deleted: %s", directory, error)


def require_passed(report: ValidationReport, subject: str) -> None:
    """Raises what the checks found; `subject` is the start of the message.

    Raises:
        ModelValidationError: a check failed.
    """
    if not report.passed:
        raise ModelValidationError(
            f"{subject} failed its checks and is not published.\n{report.summary()}",
            path=report.model_dir,
            report=report,
        )


def write_report(report: ValidationReport, directory: str, *, run: str = "") -> None:
    """Writes a report into the directory of a ModelRun, with the examples that it is about.

    Args:
        report: the outcome of the checks.
        directory: of the ModelRun.
        run: what the page shows of the run, as HTML.
    """
    pages = {REPORT_FILE: report.to_html(run)} if run else {}
    for name, text in {**report.files, **pages}.items():
        with gfile().GFile(os.path.join(directory, name), "w") as file:
            file.write(text)


def about_run(request: TrainingRequest, report: ValidationReport) -> str:
    """Returns what the report's page shows of the run, as HTML."""
    try:
        return run_sections(request.model_run_dir, compared_models(request, report))
    except Exception:  # damaged files of another run, say: a good model is published all the same
        _logger.warning("The report is without the course of the run", exc_info=True)
        return ""


def keep_failed_run(request: TrainingRequest) -> str:
    """Saves log and export of a failed run, and returns the directory they are in.

    TFX's local orchestrators delete the output directories of a failed step, and with them what
    tells why it failed.
    """
    kept = request.failed_run_dir
    move_aside(request.model_run_dir, kept)
    if gfile().exists(request.staging_dir):
        move_aside(request.staging_dir, request.rejected_export_dir)
        delete_tree(request.staging_dir)
    return kept
