"""Exports that were kept, checked again and published: by the next run, or by the command line."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable

from generic_trainer._core.files import (
    copy_tree,
    delete_tree,
    file_errors_as,
    move_into,
    publish_tree,
    read_whole,
)
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._run.derived_contract import derived_contract
from generic_trainer._run.kept_export import (
    JOB_FILE,
    KeptExport,
    announce,
    checked_for,
    find_kept_export,
    sizes_below,
)
from generic_trainer._run.publishing import (
    about_run,
    check_export,
    delete_checkpoints,
    publish,
    write_report,
)
from generic_trainer._run.rehearsal import export_alone
from generic_trainer._run.run_key import run_key
from generic_trainer.errors import (
    ConfigurationError,
    ExportError,
    ModelValidationError,
)
from generic_trainer.launchers import Job, TrainingRequest
from generic_trainer.user_code import UserCode
from generic_trainer.validation import Checker, ServingContract, ValidationReport

# Beside the export that it takes the place of.
_REPAIRED_DIR = "repaired_export"

_logger = logging.getLogger(__name__)


def publish_kept_export(request: TrainingRequest, checker: Checker) -> ValidationReport | None:
    """Publishes what an earlier run of the same key has trained, if it passes now.

    An earlier run that failed its last check need not train again when the contract was corrected,
    a library of ops was installed, or `generic-trainer publish` was called. Its log and event files
    become those of this run.

    Args:
        request: the run.
        checker: the process that the checks run in.

    Returns:
        The report; None where there is no such export, or where it fails the same contract as
        before: then this run trains.

    Raises:
        ModelValidationError: it fails a contract that it was not checked for before.
        ExportError: it cannot be published, because a disk is full for example.
    """
    kept = find_kept_export(request)
    if kept is None:
        return None
    with kept.claimed() as is_ours:
        if not is_ours:
            _logger.info("Another run is at work on %s", kept.directory)
            return None
        _logger.warning(
            "Not training: the run of %s had the same inputs, code and hyperparameters, and failed "
            "its last check. Its export is checked again%s. To train anew, delete that directory.",
            kept.directory,
            " for the contract of `generic-trainer publish`" if kept.contract else "",
        )
        contract = contract_of(request, kept.contract)
        try:
            report = check_export(
                request, kept.export_dir, contract, checker, rejected=kept.export_dir
            )
        except ModelValidationError as error:
            wanted = checked_for(request)
            if kept.contract is None and kept.checked_for == wanted:
                _logger.warning("It fails as it did before: training anew")
                return None
            dataclasses.replace(kept, checked_for=wanted).write()
            raise ModelValidationError(
                f"{error}\nNothing was trained: this is the export in {kept.directory}, and it "
                "does not pass what is required now either. Correct the contract, call "
                f"`generic-trainer publish {kept.directory}`, or delete that directory to train "
                "anew.",
                path=error.path,
                report=error.report,
            ) from error
        return publish_from(kept, request, report)


@file_errors_as(ExportError, "The kept export could not be published")
def publish_from(
    kept: KeptExport, request: TrainingRequest, report: ValidationReport
) -> ValidationReport:
    """Publishes a kept export into the artifacts of a run, and deletes what was kept of the other.

    Args:
        kept: the export, which has passed.
        request: the run whose artifacts they are.
        report: what the checks said.

    Returns:
        The report, with `trained_in` among its facts: which run has trained the model.

    Raises:
        ExportError: it cannot be published.
    """
    report = dataclasses.replace(
        report,
        model_dir=os.path.join(request.model_dir, SERVING_MODEL_DIR),
        facts={**report.facts, "trained_in": kept.directory},
    )
    report = publish(request, kept.export_dir, report)
    for name in kept.others:
        move_into(os.path.join(kept.directory, name), request.model_run_dir)
    write_report(report, request.model_run_dir, run=about_run(request, report))
    delete_tree(kept.directory)
    failed = dataclasses.replace(request, model_run_dir=kept.directory)
    for key in kept.run_keys:
        delete_checkpoints(failed.checkpoint_dir_of(key))
    return report


def contract_of(request: TrainingRequest, contract: str | None) -> ServingContract:
    """Returns the contract of a run, with another one instead of the pipeline's where it is given.

    Args:
        request: the run.
        contract: `ServingContract.to_json()`.
    """
    if contract is not None:
        request = dataclasses.replace(request, contract=ServingContract.from_json(contract))
    return derived_contract(request)


def kept_job(directory: str, scratch_dir: str) -> Job:
    """Returns the job of a failed run, which finds its checkpoints and has a new scratch directory.

    Raises:
        ConfigurationError: nothing is kept there that could be published.
    """
    path = os.path.join(directory, JOB_FILE)
    try:
        # Others may write there: nothing is unpickled.
        job = Job.from_json(read_whole(path).decode(), is_ours=False)
    except Exception as error:  # what damaged values raise is nobody's promise
        raise ConfigurationError(
            f"The job of the run cannot be read from {path}: {error}. Where custom_config holds an "
            "object that JSON cannot, or the file is damaged, run the pipeline again: it checks "
            "and publishes this export, without this command.",
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
    """Checks a kept export once more; the next run of the node publishes one that passes.

    Args:
        kept: the export.
        job: its job, of `kept_job`.
        checker: the process that the checks run in.
        contract: what it must fulfil, instead of the pipeline's contract.
        repair: packs, into a directory, a module whose `export_fn` exports again from the run's
            checkpoint.

    Returns:
        What is kept now, and the report, which lies beside it too.

    Raises:
        ConfigurationError: the module has no `export_fn`.
        TrainingError: `export_fn` raised.
        DataError: the inputs of the run are gone.
    """
    request, exported, keys = job.request, kept.export_dir, kept.run_keys
    if repair is not None:
        request = dataclasses.replace(request, user_code=repair(request.scratch_dir))
        exported = os.path.join(request.scratch_dir, _REPAIRED_DIR)
        if not export_alone(dataclasses.replace(job, request=request), exported):
            raise ConfigurationError(
                f"{request.user_code.module} has no export_fn(fn_args): expected a function that "
                "builds the model, reads the checkpoint of fn_args.checkpoint_dir (see "
                "generic_trainer.training.restore_weights) and exports to fn_args."
            )
        keys = tuple(dict.fromkeys([*keys, run_key(request).digest]))
    wanted = contract or request.contract or ServingContract(signatures=())
    report = checker.validate(
        os.path.join(exported, SERVING_MODEL_DIR), contract_of(request, wanted.to_json())
    )
    report = dataclasses.replace(report, model_dir=os.path.join(kept.export_dir, SERVING_MODEL_DIR))
    write_report(report, kept.directory)
    if not report.passed:
        return kept, report
    if exported != kept.export_dir:
        _replace(kept, exported)
    kept = dataclasses.replace(
        kept, contract=wanted.to_json(), run_keys=keys, files=sizes_below(kept.export_dir)
    )
    kept.write()
    for key in keys:
        announce(request.checkpoint_dir_of(key), kept.directory)
    return kept, report


def _replace(kept: KeptExport, exported: str) -> None:
    """Takes exports of this machine instead of the kept ones of the same names."""
    for name in os.listdir(exported):
        beside = os.path.join(kept.directory, _REPAIRED_DIR, name)
        copy_tree(os.path.join(exported, name), beside)
        publish_tree(beside, os.path.join(kept.export_dir, name))
    delete_tree(os.path.join(kept.directory, _REPAIRED_DIR))
