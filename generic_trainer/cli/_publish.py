"""`generic-trainer publish`: what a run has trained that failed its last check, checked again."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import sys
from typing import Any

from generic_trainer._core.files import absolute, file_errors_as
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._run.run_key import KEPT_EXPORT_FILE
from generic_trainer.cli._files import require_files
from generic_trainer.cli._run import new_directories
from generic_trainer.cli._validate import (
    add_report_options,
    require_place_for_report,
    show_report,
)
from generic_trainer.errors import ConfigurationError, ExportError, GenericTrainerError
from generic_trainer.validation import ServingContract, start_checker


def add_publish(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "publish",
        help="check the export of a failed run again, and publish it without training",
        description=(
            "Checks what a run has trained and its last check has refused: for another contract, "
            "or exported again from its checkpoint by export_fn of a repaired module. What passes "
            "is published by the next run of the node with the same inputs, code (or repaired "
            "module) and hyperparameters, which then does not train; or at once, with --output."
        ),
    )
    parser.set_defaults(run=_publish)
    add = parser.add_argument
    add("directory", metavar="RUN", help="what is kept of the run: .../model_run/7.failed")
    add("--contract", metavar="FILE", help="YAML or JSON file of a ServingContract, instead of "
        "the contract of the pipeline")  # fmt: skip
    add("--module-file", metavar="FILE", help="Python file whose export_fn exports the model "
        "anew, from the checkpoint in fn_args.checkpoint_dir")  # fmt: skip
    add("--output", metavar="DIR", help="publish at once, as DIR/model/N/Format-Serving, without "
        "a pipeline; the directory that `generic-trainer run` was given, or another one on the "
        "same file system")  # fmt: skip
    add_report_options(parser)


def _publish(options: argparse.Namespace) -> int:
    require_files(RUN=options.directory, contract=options.contract, module_file=options.module_file)
    require_files(RUN=os.path.join(options.directory, KEPT_EXPORT_FILE))
    require_place_for_report(options)
    contract = ServingContract.from_yaml(options.contract) if options.contract else None
    from generic_trainer.launchers import exit_code

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        with file_errors_as(ExportError, "The kept export could not be published"):
            return _check_and_publish(options, contract)
    except ConfigurationError:
        raise
    except GenericTrainerError as error:
        print(f"generic-trainer publish: {error}", file=sys.stderr)
        return exit_code(error)


def _check_and_publish(options: argparse.Namespace, contract: ServingContract | None) -> int:
    from generic_trainer._entry_points import may_define
    from generic_trainer._run.kept_export import KeptExport
    from generic_trainer._run.republishing import check_again, kept_job, publish_from
    from generic_trainer.user_code import UserCode, bundle_module_file

    def repair(scratch_dir: str) -> UserCode:
        return bundle_module_file(options.module_file, scratch_dir, may_define=may_define)

    directory = absolute(options.directory.rstrip("/"))
    kept = KeptExport.read(directory)
    with (
        kept.claimed() as is_ours,
        ScratchFolder("run-") as scratch_dir,
        start_checker(timeout_s=options.timeout_s) as checker,
    ):
        if not is_ours:
            raise ConfigurationError(f"Another run is at work on {directory}", path=directory)
        job = kept_job(directory, scratch_dir)
        kept, report = check_again(
            kept, job, checker, contract=contract, repair=repair if options.module_file else None
        )
        show_report(report, options)
        if not report.passed:
            return 1
        if options.output:
            places = new_directories(options.output)
            publish_from(kept, dataclasses.replace(job.request, **places), report)
            _say(f"Published in {places['model_dir']}")
        else:
            _say(
                "The next run of the node with the same inputs, code and hyperparameters publishes "
                f"this export instead of training. Delete {directory} to train anew."
            )
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # standard output is the report's
