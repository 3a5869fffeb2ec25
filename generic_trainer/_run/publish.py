"""Publishing: an export is checked, then becomes visible to its consumers by one rename.

`run_fn` writes into a staging directory inside the Model artifact, on the same file system as the
destination. Until the rename the artifact has no `Format-Serving`, even if the process is killed or
the disk is full. An export that failed its last check is kept: the next run of the same key, or
`generic-trainer publish`, checks it again and publishes it without training.
"""

import dataclasses
import logging
import os
import shutil
from typing import Any

from generic_trainer._core import files
from generic_trainer._core.keras import LEGACY_VARIABLE
from generic_trainer._core.progress import ProgressReader, note
from generic_trainer._core.scratch import claimed
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._core.values import digest
from generic_trainer._run import store
from generic_trainer._run.contract import derived_contract, export_alone, require_passed
from generic_trainer._run.live_view import REPORT_FILE, run_sections
from generic_trainer._run.run_key import parts_of_run_key
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.launchers import Job, TrainingRequest
from generic_trainer.user_code import UserCode
from generic_trainer.validation import (
    Checker,
    ServingContract,
    ValidationReport,
    is_report_file,
    sign_model,
    write_manifest,
)

# Beside the export that it replaces.
_REPAIRED_DIR = "repaired_export"

_logger = logging.getLogger(__name__)


@files.file_errors_as(ExportError, "The exported model could not be checked")
def check_export(
    request: TrainingRequest,
    contract: ServingContract,
    checker: Checker,
    kept: store.KeptExport | None = None,
) -> ValidationReport:
    """Checks an export, and writes the report into the ModelRun.

    Args:
        request: the run.
        contract: the requirements.
        checker: the process that runs the checks.
        kept: the export of an earlier run; None for the run's own, in its staging directory.

    Returns:
        The outcome of the checks, all passed.

    Raises:
        ExportError: nothing was exported, or a disk is full.
        ModelValidationError: the export failed the checks.
    """
    subject = "The exported model"
    exported = request.export_dir
    if kept is not None:
        exported = kept.export_dir
        subject = (
            f"The export in {kept.directory}, which this run checked instead of training (correct "
            f"the contract, repair it with `generic-trainer publish {kept.directory} "
            "--module-file`, or delete that directory to train again),"
        )
    model = os.path.join(exported, SERVING_MODEL_DIR)
    if not files.gfile().exists(model):
        raise ExportError(
            "run_fn returned without exporting a model: expected a SavedModel in "
            f"fn_args.serving_model_dir ({model}), found nothing. Export one with "
            "`generic_trainer.training.export_model(model, fn_args)`, or with "
            "`model.export(fn_args.serving_model_dir)`.",
            path=model,
        )
    store.take_estimator_export(model, request.model_run_dir)
    for name in files.gfile().listdir(exported):
        follow_links(os.path.join(exported, name.rstrip("/")))
    note(phase="checks")
    _logger.info("Checking the exported model")
    report = checker.validate(model, contract)
    kept_in = request.rejected_export_dir if kept is None else exported
    report = _moved(report, request.model_dir if report.passed else kept_in)
    report = write_report(report, request)
    for warning in report.warnings:
        _logger.warning("%s: %s → %s", warning.name, warning.message, warning.remedy)
    require_passed(report, subject)
    _logger.info("%s", report.summary())
    return report


@files.file_errors_as(ExportError, "The model could not be published")
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
        ConfigurationError: the key of the signature cannot be used.
        ExportError: a disk is full, for example.
    """
    note(phase="publishing")
    model = os.path.join(exported, SERVING_MODEL_DIR)
    inputs: dict[str, str] = {}
    with store.only_logged("The manifest omits the inputs of the training"):  # a damaged file
        # Another run of the same key may have deleted its facts with its checkpoints.
        key = store.read_facts(request.checkpoint_dir).get("key") or parts_of_run_key(request, {})
        # Without those whose digests could betray a short secret.
        inputs = {name: part for name, part in key.items() if name not in ("custom_config", "env")}
    manifest_hash = write_manifest(model, report, **inputs)
    if request.sign_with:
        sign_model(model, request.sign_with, request.scratch_dir)
    report = _moved(report, request.model_dir, manifest_sha256=manifest_hash)
    names = sorted(name.rstrip("/") for name in files.gfile().listdir(exported))
    for name in sorted(names, key=lambda name: name == SERVING_MODEL_DIR):
        files.publish_tree(os.path.join(exported, name), os.path.join(request.model_dir, name))
    with store.only_logged("The empty directory of the export could not be deleted"):
        files.delete_tree(exported)
    if not request.model_dir.startswith(request.scratch_dir):  # as in a dry run
        # The last lines of a run on the terminal.
        _logger.info("The report is %s", os.path.join(request.model_run_dir, REPORT_FILE))
        _logger.info("Published the model in %s", report.model_dir)
    return report


def write_report(report: ValidationReport, request: TrainingRequest) -> ValidationReport:
    """Writes a report into the ModelRun, with the course of the run and the failing examples.

    Returns:
        The report, with what the time of the run went into among its facts: `time_shares`, and of
        these `goodput`, that of the steps which the model has kept. Both are absent if no steps
        are known.
    """
    run = ""
    with store.only_logged("The report omits the course of the run"):  # damaged files, for example
        progress = ProgressReader(request.model_run_dir).look()
        run = run_sections(request, progress)
        if progress.goodput is not None:
            spent = {"time_shares": progress.time_shares, "goodput": progress.goodput}
            report = dataclasses.replace(report, facts={**report.facts, **spent})
    for name, text in {**report.files, REPORT_FILE: report.to_html(run)}.items():
        with files.gfile().GFile(os.path.join(request.model_run_dir, name), "w") as file:
            file.write(text)
    return report


def _moved(report: ValidationReport, exported: str, **facts: Any) -> ValidationReport:
    """Returns a report with further facts, on the model in another directory of exports."""
    model = os.path.join(exported, SERVING_MODEL_DIR)
    return dataclasses.replace(report, model_dir=model, facts={**report.facts, **facts})


def follow_links(directory: str) -> None:
    """Replaces a directory that is a link, and links that lead out of it, by their targets.

    Files of Hugging Face's snapshots, for example, are links to `../../blobs`, which break if the
    directory is moved, or copied with its links. Broken links and relative links within the
    directory are kept. Remote directories have no links.
    """
    if files.is_remote(directory):
        return
    if os.path.islink(directory) and os.path.exists(directory):
        _follow(directory)
    for folder, folders, names in os.walk(directory):
        for path in (os.path.join(folder, name) for name in (*folders, *names)):
            if os.path.islink(path) and _leads_out(path, os.path.realpath(directory)):
                _follow(path)


def _follow(link: str) -> None:
    part = f"{link}.part"
    files.delete_tree(part)  # of a run that was killed
    if os.path.isdir(link):
        shutil.copytree(os.path.realpath(link), part)
        os.unlink(link)  # which a directory cannot replace
    else:
        shutil.copyfile(os.path.realpath(link), part)
    os.replace(part, link)


def _leads_out(link: str, root: str) -> bool:
    """Whether the target of a link does not move along with a directory."""
    real = os.path.realpath(link)
    if not os.path.exists(real) or f"{root}{os.sep}".startswith(f"{real}{os.sep}"):
        return False  # broken, or a loop
    return os.path.isabs(os.readlink(link)) or not real.startswith(f"{root}{os.sep}")


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
    kept = store.find_kept_export(request)
    if kept is None:
        return None
    with claimed(kept.directory):
        _logger.warning(
            "Not training: the run of %s had the same inputs, code and hyperparameters, and failed "
            "its last check. Checking its export again. To train again, delete that directory.",
            kept.directory,
        )
        report = check_export(request, derived_contract(request), checker, kept)
        return publish_from(kept, request, report)


def publish_from(
    kept: store.KeptExport, request: TrainingRequest, report: ValidationReport
) -> ValidationReport:
    """Publishes a kept export into the artifacts of a run, and deletes the failed run.

    Args:
        kept: the export, which has passed.
        request: the run that owns the artifacts.
        report: the outcome of the checks.

    Returns:
        The report, with the run that trained the model as the fact `trained_in`, and the goodput
        of that run.

    Raises:
        ExportError: it cannot be published.
    """
    report = publish(
        request, kept.export_dir, _moved(report, request.model_dir, trained_in=kept.directory)
    )
    with store.only_logged("The files of the failed run could not be moved"):
        for name in files.gfile().listdir(kept.directory):
            if name == store.RUN_FILE or is_report_file(name):
                files.gfile().remove(os.path.join(kept.directory, name))
        files.move_aside(kept.directory, request.model_run_dir)
        report = write_report(report, request)
        files.delete_tree(kept.directory)
    failed = dataclasses.replace(request, model_run_dir=kept.directory)
    for key in kept.run_keys:
        store.delete_checkpoints(failed.checkpoint_dir_of(key))
    return report


def kept_job(directory: str, **changes: Any) -> Job:
    """Returns the job of a failed run, with its checkpoints.

    Args:
        directory: of the failed run.
        **changes: fields of the request, such as a new scratch directory.

    Raises:
        ConfigurationError: the directory holds no export that could be published.
    """
    path = os.path.join(directory, store.RUN_FILE)
    try:
        # Others may write there: nothing is unpickled.
        job = Job.from_json(store.read_facts(directory)["job"], is_ours=False)
    except Exception as error:  # damaged values raise any class
        raise ConfigurationError(
            f"The job of the run cannot be read from {path}: {error}. If custom_config holds an "
            "object that JSON cannot express, or the file is damaged, run the pipeline again: it "
            "checks and publishes this export without this command.",
            path=path,
        ) from error
    request = dataclasses.replace(job.request, model_run_dir=directory, **changes)
    return dataclasses.replace(job, request=request)


def check_again(
    kept: store.KeptExport, job: Job, checker: Checker, *, repaired: UserCode | None = None
) -> tuple[store.KeptExport, ValidationReport]:
    """Checks a kept export once more, and replaces it by a repaired one that passes.

    Args:
        kept: the export.
        job: its job, of `kept_job`.
        checker: the process that runs the checks.
        repaired: a module whose `export_fn` exports again from the run's checkpoint.

    Returns:
        The record of the export, and the report, which is also written beside it.

    Raises:
        ConfigurationError: the module has no `export_fn`.
        TrainingError: `export_fn` raised.
        DataError: the inputs of the run are gone.
    """
    request = job.request
    exported = kept.export_dir
    if repaired is not None:
        request = dataclasses.replace(request, user_code=repaired)
        exported = os.path.join(request.scratch_dir, _REPAIRED_DIR)
        if not export_alone(dataclasses.replace(job, request=request, has_trained=True), exported):
            raise ConfigurationError(
                f"{repaired.module} has no export_fn(fn_args): expected a function that "
                "builds the model, reads the checkpoint of fn_args.checkpoint_dir (see "
                "generic_trainer.training.restore_weights) and exports to fn_args."
            )
    report = checker.validate(os.path.join(exported, SERVING_MODEL_DIR), derived_contract(request))
    report = _moved(report, kept.export_dir)
    write_report(report, request)
    if report.passed and repaired is not None:
        _replace(kept, exported)
        parts = parts_of_run_key(request, job.distribution.env)
        keys: list[str] = []
        # The next run of the pipeline has the Keras that trained, and finds the code that the
        # module imports; this process may have another Keras, and another `sys.path`.
        with store.only_logged("Which Keras the run had is unknown"):
            trained = store.read_facts(request.checkpoint_dir)["key"]
            parts[LEGACY_VARIABLE] = trained[LEGACY_VARIABLE]
            keys.append(digest({**parts, "imported_code": trained["imported_code"]}))
        keys.append(digest(parts))
        kept = dataclasses.replace(
            kept,
            run_keys=tuple(dict.fromkeys([*kept.run_keys, *keys])),
            files=store.sizes_below(kept.export_dir),
        )
        store.write_facts(kept.directory, run_keys=kept.run_keys, files=kept.files)
        for key in kept.run_keys:
            store.write_facts(request.checkpoint_dir_of(key), kept_in=kept.directory)
    return kept, report


def _replace(kept: store.KeptExport, exported: str) -> None:
    """Replaces the kept exports by those of the same names in a local directory."""
    for name in os.listdir(exported):
        beside = os.path.join(kept.directory, _REPAIRED_DIR, name)
        files.copy_tree(os.path.join(exported, name), beside)
        files.publish_tree(beside, os.path.join(kept.export_dir, name))
    files.delete_tree(os.path.join(kept.directory, _REPAIRED_DIR))
