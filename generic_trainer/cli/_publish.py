"""`generic-trainer publish`: checks the export of a failed run again, and publishes it."""

import argparse
import dataclasses
import logging
import sys
from typing import Any

from generic_trainer._core.files import absolute, file_errors_as, gfile
from generic_trainer._core.scratch import ScratchFolder, claimed
from generic_trainer._entry_points import may_define
from generic_trainer._run.store import KeptExport
from generic_trainer.cli._options import add_command, require_files
from generic_trainer.cli._run import new_directories
from generic_trainer.cli._validate import (
    add_report_options,
    require_writable_html,
    show_report,
)
from generic_trainer.errors import ExportError
from generic_trainer.user_code import bundle_module_file
from generic_trainer.validation import Checker, ServingContract

_GONE = (
    "The examples of the run are gone: no file matches {}. A run of a .csv file makes them for "
    "itself: `generic-trainer run`, with the same arguments and another --contract, makes them "
    "again, and publishes the kept export without training."
)


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _publish,
        "Check the export of a failed run again, and publish it without training",
        "Checks the export of a run that failed its last check again: with another contract, or "
        "exported anew from its checkpoint by export_fn of a repaired module. If it meets the "
        "pipeline's contract, the next run of the node with the same inputs, code (or repaired "
        "module) and hyperparameters publishes it without training; with --output, this command "
        "does.",
    )
    parser.add_argument(
        "directory", metavar="RUN", help="directory of the failed run: .../model_run/7.failed"
    )
    parser.add_argument(
        "--contract",
        metavar="FILE",
        help="YAML or JSON file of a ServingContract, instead of the pipeline's contract",
    )
    parser.add_argument(
        "--module-file",
        metavar="FILE",
        help="Python file whose export_fn exports the model anew, from the checkpoint in "
        "fn_args.checkpoint_dir",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="publish at once, as DIR/model/N/Format-Serving, without a pipeline; the --output of "
        "`generic-trainer run`, or another directory on the same file system",
    )
    add_report_options(parser)


@file_errors_as(ExportError, "The kept export could not be published")
def _publish(options: argparse.Namespace) -> int:
    require_files(RUN=options.directory, contract=options.contract, module_file=options.module_file)
    require_writable_html(options)
    changes = {"contract": ServingContract.from_yaml(options.contract)} if options.contract else {}
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    from generic_trainer._run.publish import check_again, kept_job, publish_from

    directory = absolute(options.directory.rstrip("/"))
    kept = KeptExport.read(directory)
    with (
        claimed(directory),
        ScratchFolder("run-") as scratch_dir,
        Checker(timeout_s=options.timeout_s) as checker,
    ):
        job = kept_job(directory, scratch_dir=scratch_dir, **changes)
        module_file = options.module_file
        repaired = None
        if module_file:
            repaired = bundle_module_file(module_file, scratch_dir, may_define=may_define)
        kept, report = check_again(kept, job, checker, repaired=repaired)
        show_report(report, options)
        if not report.passed:
            if gone := [pattern for pattern in job.request.eval_files if not gfile().glob(pattern)]:
                print(_GONE.format(", ".join(gone)), file=sys.stderr)
            return 1
        if options.output:
            directories = new_directories(options.output)
            publish_from(kept, dataclasses.replace(job.request, **directories), report)
            outcome = f"Published in {directories['model_dir']}"
        else:
            outcome = (
                "The next run of the node with the same inputs, code and hyperparameters publishes "
                "this export instead of training, if it meets the pipeline's contract. Delete "
                f"{directory} to train anew."
            )
        print(outcome, file=sys.stderr)  # standard output is the report's
    return 0
