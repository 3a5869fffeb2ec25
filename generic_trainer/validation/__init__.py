"""Checks of an exported model before its consumers rely on it.

::

    from generic_trainer.validation import ServingContract, validate_saved_model

    report = validate_saved_model("export/1", ServingContract(examples="eval/*.gz"))
    if not report.passed:
        print(report.summary())

The checks run in a separate process, without the user's code and with the model at another
path. Neither TensorFlow nor TFX is imported here.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer._core.records import read_records
    from generic_trainer.validation._check import Result, all_checks
    from generic_trainer.validation._checker import Checker, validate_saved_model
    from generic_trainer.validation._contract import ServingContract, SignatureSpec
    from generic_trainer.validation._manifest import write_manifest
    from generic_trainer.validation._report import ValidationReport, print_report
    from generic_trainer.validation._tfma_lint import lint_eval_config

__all__ = [
    "Checker",
    "Result",
    "ServingContract",
    "SignatureSpec",
    "ValidationReport",
    "all_checks",
    "lint_eval_config",
    "print_report",
    "read_records",
    "validate_saved_model",
    "write_manifest",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_check": "Result all_checks",
        "_checker": "Checker validate_saved_model",
        "_contract": "ServingContract SignatureSpec",
        "_manifest": "write_manifest",
        # The last three are for programs that keep, compare and extend reports.
        "_report": "ValidationReport print_report is_report_file html_templates",
        "_served": "ServedModel",  # for the command
        "_signature": "sign_model signature_problem signer",  # for the run and the command
        "_tfma_lint": "lint_eval_config",
        "generic_trainer._core.records": "read_records",
    },
)
