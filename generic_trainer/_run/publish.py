"""Publishing: an export is checked, then becomes visible to its consumers by one rename.

`run_fn` writes into a staging directory inside the Model artifact, on the same file system as the
destination. Until the rename the artifact has no `Format-Serving`, even if the process is killed or
the disk is full. An export that failed its last check is kept: the next run of the same key, or
`generic-trainer publish`, checks it again and publishes it without training.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable

from generic_trainer._core.files import (
    copy_tree,
    delete_tree,
    file_errors_as,
    follow_links,
    gfile,
    move_aside,
    publish_tree,
)
from generic_trainer._core.progress import note
from generic_trainer._core.scratch import claimed
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._run.derived_contract import derived_contract
from generic_trainer._run.live import REPORT_FILE, run_sections
from generic_trainer._run.rehearse import export_alone, require_passed
from generic_trainer._run.run_key import run_key
from generic_trainer._run.store import (
    RUN_FILE,
    KeptExport,
    delete_checkpoints,
    find_kept_export,
    read_facts,
    sizes_below,
    take_estimator_export,
    write_facts,
)
from generic_trainer.errors import ConfigurationError, ExportError, ModelValidationError
from generic_trainer.launchers import Job, TrainingRequest
from generic_trainer.user_code import UserCode
from generic_trainer.validation import (
    Checker,
    ServingContract,
    ValidationReport,
    is_report_file,
    write_manifest,
)

# Beside the export that it replaces.
_REPAIRED_DIR = "repaired_export"

_logger = logging.getLogger(__name__)


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
        contract: the requirements.
        checker: the process that runs the checks.
        rejected: the directory of the exports if they fail, for the report.

    Returns:
        The outcome of the checks, all passed.

    Raises:
        ExportError: nothing was exported, or a disk is full.
        ModelValidationError: the export failed the checks.
    """
    model = os.path.join(exported, SERVING_MODEL_DIR)
    if not gfile().exists(model):
        raise ExportError(
            "run_fn returned without exporting a model: expected a SavedModel in "
            f"fn_args.serving_model_dir ({model}), found nothing. Export one with "
            "`generic_trainer.training.export_model(model, fn_args)`, or with "
            "`model.export(fn_args.serving_model_dir)`.",
            path=model,
        )
    take_estimator_export(model, request.model_run_dir)
    for name in gfile().listdir(exported):
        follow_links(os.path.join(exported, name.rstrip("/")))
    note(phase="checks")
    _logger.info("Checking the exported model")
    report = checker.validate(model, contract)
    rests_in = os.path.join(request.model_dir if report.passed else rejected, SERVING_MODEL_DIR)
    report = dataclasses.replace(report, model_dir=rests_in)
    write_report(report, request.model_run_dir, run=about_run(request))
    for warning in report.warnings:
        _logger.warning("%s: %s → %s", warning.name, warning.message, warning.remedy)
    require_passed(report, "The exported model")
    _logger.info("%s; the report is in %s", report.summary(), request.model_run_dir)
    return report


@file_errors_as(ExportError, "The model could not be published")
def publish(request: TrainingRequest, exported: str, report: ValidationReport) -> ValidationReport:
    """Moves an export that passed to the place where consumers look for it.

    The other exports move too; `Format-Serving` moves last, as it makes the artifact a model.

    Args:
        request: the run.
        exported: the directory of the exports; it is gone afterwards.
        report: the outcome of the checks.

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
    try:
        delete_tree(exported)
    except Exception as error:  # the model is published: nothing after that fails the run
        _logger.warning("The empty directory %s could not be deleted: %s", exported, error)
    if not request.model_dir.startswith(request.scratch_dir):  # as in a dry run
        _logger.info(
            "Published the model in %s", os.path.join(request.model_dir, SERVING_MODEL_DIR)
        )
    return report


def write_report(report: ValidationReport, directory: str, *, run: str = "") -> None:
    """Writes a report into the directory of a ModelRun, with the examples that it refers to.

    Args:
        report: the outcome of the checks.
        directory: of the ModelRun.
        run: the page's sections about the run, as HTML.
    """
    pages = {REPORT_FILE: report.to_html(run)} if run else {}
    for name, text in {**report.files, **pages}.items():
        with gfile().GFile(os.path.join(directory, name), "w") as file:
            file.write(text)


def about_run(request: TrainingRequest) -> str:
    """Returns the sections of the report's page about the run, as HTML."""
    try:
        return run_sections(request)
    except Exception:  # damaged files, for example: they do not fail a good model
        _logger.warning("The report omits the course of the run", exc_info=True)
        return ""


# ---- exports that were kept ----------------------------------------------------------------------


def publish_kept_export(request: TrainingRequest, checker: Checker) -> ValidationReport | None:
    """Publishes the export of an earlier run of the same key, if it passes now.

    Such a run need not train again after the contract was corrected, a library of ops was
    installed, or `generic-trainer publish` has repaired the export. Log and event files of the
    earlier run become those of this run.

    Args:
        request: the run.
        checker: the process that runs the checks.

    Returns:
        The report; None if there is no such export.

    Raises:
        ConfigurationError: another run uses it.
        ModelValidationError: it fails; training again would give the same model.
        ExportError: it cannot be published, because a disk is full for example.
    """
    kept = find_kept_export(request)
    if kept is None:
        return None
    with claimed(kept.directory):
        _logger.warning(
            "Not training: the run of %s had the same inputs, code and hyperparameters, and failed "
            "its last check. Checking its export again. To train again, delete that directory.",
            kept.directory,
        )
        contract, exported = derived_contract(request), kept.export_dir
        try:
            report = check_export(request, exported, contract, checker, rejected=exported)
        except ModelValidationError as error:
            raise ModelValidationError(
                f"{error}\nThis run did not train: it checked the export in {kept.directory}, "
                "which does not meet the present requirements either. Correct the contract, repair "
                f"the export with `generic-trainer publish {kept.directory} --module-file`, or "
                "delete that directory to train again.",
                path=error.path,
                report=error.report,
            ) from error
        return publish_from(kept, request, report)


@file_errors_as(ExportError, "The kept export could not be published")
def publish_from(
    kept: KeptExport, request: TrainingRequest, report: ValidationReport
) -> ValidationReport:
    """Publishes a kept export into the artifacts of a run, and deletes the failed run.

    Args:
        kept: the export, which has passed.
        request: the run that owns the artifacts.
        report: the outcome of the checks.

    Returns:
        The report, with the run that trained the model as the fact `trained_in`.

    Raises:
        ExportError: it cannot be published.
    """
    report = dataclasses.replace(
        report,
        model_dir=os.path.join(request.model_dir, SERVING_MODEL_DIR),
        facts={**report.facts, "trained_in": kept.directory},
    )
    report = publish(request, kept.export_dir, report)
    try:
        for name in gfile().listdir(kept.directory):
            if name == RUN_FILE or is_report_file(name):
                gfile().remove(os.path.join(kept.directory, name))
        move_aside(kept.directory, request.model_run_dir)
        write_report(report, request.model_run_dir, run=about_run(request))
        delete_tree(kept.directory)
    except Exception as error:  # the model is published: nothing after that fails the run
        _logger.warning("The files of %s could not be moved: %s", kept.directory, error)
    failed = dataclasses.replace(request, model_run_dir=kept.directory)
    for key in kept.run_keys:
        delete_checkpoints(failed.checkpoint_dir_of(key))
    return report


def kept_job(directory: str, scratch_dir: str) -> Job:
    """Returns the job of a failed run, with its checkpoints and a new scratch directory.

    Raises:
        ConfigurationError: the directory holds no export that could be published.
    """
    path = os.path.join(directory, RUN_FILE)
    try:
        # Others may write there: nothing is unpickled.
        job = Job.from_json(read_facts(directory)["job"], is_ours=False)
    except Exception as error:  # damaged values raise any class
        raise ConfigurationError(
            f"The job of the run cannot be read from {path}: {error}. If custom_config holds an "
            "object that JSON cannot express, or the file is damaged, run the pipeline again: it "
            "checks and publishes this export without this command.",
            path=path,
        ) from error
    request = dataclasses.replace(job.request, model_run_dir=directory, scratch_dir=scratch_dir)
    return dataclasses.replace(job, request=request)


def check_again(
    kept: KeptExport,
    job: Job,
    checker: Checker,
    *,
    contract: ServingContract | None = None,
    repair: Callable[[str], UserCode] | None = None,
) -> tuple[KeptExport, ValidationReport]:
    """Checks a kept export once more, and replaces it by a repaired one that passes.

    Args:
        kept: the export.
        job: its job, of `kept_job`.
        checker: the process that runs the checks.
        contract: the requirements, instead of the pipeline's contract.
        repair: packs, into a directory, a module whose `export_fn` exports again from the run's
            checkpoint.

    Returns:
        The record of the export, and the report, which is also written beside it.

    Raises:
        ConfigurationError: the module has no `export_fn`.
        TrainingError: `export_fn` raised.
        DataError: the inputs of the run are gone.
    """
    request, exported, keys = job.request, kept.export_dir, kept.run_keys
    if contract is not None:
        request = dataclasses.replace(request, contract=contract)
    if repair is not None:
        request = dataclasses.replace(request, user_code=repair(request.scratch_dir))
        exported = os.path.join(request.scratch_dir, _REPAIRED_DIR)
        if not export_alone(dataclasses.replace(job, request=request), exported):
            raise ConfigurationError(
                f"{request.user_code.module} has no export_fn(fn_args): expected a function that "
                "builds the model, reads the checkpoint of fn_args.checkpoint_dir (see "
                "generic_trainer.training.restore_weights) and exports to fn_args."
            )
        keys = tuple(dict.fromkeys([*keys, run_key(request, job.distribution.env).digest]))
    report = checker.validate(os.path.join(exported, SERVING_MODEL_DIR), derived_contract(request))
    report = dataclasses.replace(report, model_dir=os.path.join(kept.export_dir, SERVING_MODEL_DIR))
    write_report(report, kept.directory)
    if not report.passed or repair is None:
        return kept, report
    _replace(kept, exported)
    kept = dataclasses.replace(kept, run_keys=keys, files=sizes_below(kept.export_dir))
    kept.write(kept.directory)
    for key in keys:
        write_facts(request.checkpoint_dir_of(key), kept_in=kept.directory)
    return kept, report


def _replace(kept: KeptExport, exported: str) -> None:
    """Replaces the kept exports by those of the same names in a local directory."""
    for name in os.listdir(exported):
        beside = os.path.join(kept.directory, _REPAIRED_DIR, name)
        copy_tree(os.path.join(exported, name), beside)
        publish_tree(beside, os.path.join(kept.export_dir, name))
    delete_tree(os.path.join(kept.directory, _REPAIRED_DIR))
