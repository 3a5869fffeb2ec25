"""`generic-trainer validate`: the checks of an exported model, on their own."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer._core.protos import load_schema, read_proto, require_eval_config
from generic_trainer._core.texts import is_number
from generic_trainer.cli._files import require_files
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation import (
    ServingContract,
    ValidationReport,
    differences,
    print_report,
    start_checker,
)


def add_validate(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "validate",
        help="check whether an exported model works downstream",
        description="Checks a SavedModel, or a model in another format (TFLite, .keras, pickles, "
        "ONNX, XGBoost, ...), in a separate process; the model is never changed.",
    )
    parser.set_defaults(run=_validate)
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="directory with saved_model.pb or a model in another format, or the file of such; of "
        "two, the second is compared with the first as well",
    )
    parser.add_argument("--contract", metavar="FILE", help="YAML or JSON file of a ServingContract")
    parser.add_argument(
        "--examples", metavar="GLOB", help="TFRecords of real eval tf.Examples, or their directory"
    )
    parser.add_argument(
        "--example",
        metavar="FILE",
        action="append",
        help="a tf.Example in text format, such as a report has beside it; may be repeated",
    )
    parser.add_argument("--schema", metavar="FILE", help="schema of the examples (schema.pbtxt)")
    parser.add_argument(
        "--statistics", metavar="GLOB", help="statistics of the examples (FeatureStats.pb)"
    )
    parser.add_argument(
        "--transform-graph", metavar="DIR", help="TransformGraph artifact, to compare vocabularies"
    )
    parser.add_argument("--eval-config", metavar="FILE", help="the Evaluator's tfma.EvalConfig")
    parser.add_argument("--base-model", metavar="DIR", help="SavedModel to compare with")
    parser.add_argument(
        "--source",
        metavar="DIR",
        help="SavedModel that the model was converted or quantised from, whose predictions it must "
        "have",
    )
    parser.add_argument(
        "--signature",
        metavar="NAME",
        action="append",
        help="signature that must exist; may be repeated (default: what the contract says)",
    )
    parser.add_argument(
        "--label",
        metavar="FEATURE",
        action="append",
        help="feature that is absent when the model serves; may be repeated",
    )
    add_report_options(parser)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Adds how long to check and how to show the outcome, for `show_report`."""
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=600.0,
                        dest="timeout_s", help="for a check (default: %(default)g)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", metavar="FILE",
                        help="also write the report as an HTML page, and beside it the examples "
                        "that fail")  # fmt: skip


def _seconds(text: str) -> float:
    if not is_number(seconds := float(text)) or seconds <= 0:
        raise ValueError(text)
    return seconds


def require_place_for_report(options: argparse.Namespace) -> None:
    """Checks, before minutes of work, that a report can be written to where it shall go.

    Raises:
        ConfigurationError: it cannot.
    """
    if options.html and not Path(options.html).absolute().parent.is_dir():
        raise ConfigurationError(
            f"--html: {options.html} is in no directory that exists", path=options.html
        )
    if options.html and Path(options.html).is_dir():
        raise ConfigurationError(f"--html: {options.html} is a directory", path=options.html)


def _validate(options: argparse.Namespace) -> int:
    for model in options.models:
        if not is_remote(model) and not Path(model).exists():
            raise ConfigurationError(f"MODEL: {model} is not a directory or a file", path=model)
    if options.html and len(options.models) > 1:
        raise ConfigurationError("--html: expected one model, whose report it is")
    require_place_for_report(options)
    options.examples = _files_of(options.examples)
    files = "contract", "schema", "transform_graph", "eval_config", "base_model", "source"
    require_files(**{name: getattr(options, name) for name in files})
    contract = _contract(options)
    if options.schema and not is_remote(options.schema):
        load_schema(options.schema)
    if options.eval_config and not is_remote(options.eval_config):
        require_eval_config(options.eval_config)
    if options.examples and not is_remote(options.examples) and not glob.glob(options.examples):
        raise ConfigurationError(f"--examples: no file matches {options.examples}")
    with start_checker(timeout_s=options.timeout_s) as checker:
        reports = []
        for number, model in enumerate(options.models):
            if number == 1 and len(options.models) == 2 and contract.base_model is None:
                contract = dataclasses.replace(contract, base_model=options.models[0])
            reports.append(checker.validate(model, contract))
    if len(reports) == 1:
        show_report(reports[0], options)
    else:
        _show_reports(reports, options)
    return int(not all(report.passed for report in reports))


def _show_reports(reports: Sequence[ValidationReport], options: argparse.Namespace) -> None:
    """Prints several reports, and what differs between them where they are two."""
    changes = differences(*reports) if len(reports) == 2 else []
    if options.json:
        listed = [json.loads(report.to_json()) for report in reports]
        print(json.dumps({"reports": listed, "differences": changes}, indent=2))
        return
    for report in reports:
        print(f"\n{report.model_dir}")
        print_report(report)
    if len(reports) == 2:
        print(f"\nFrom {reports[0].model_dir} to {reports[1].model_dir}:")
        for change in changes:
            print(f"  {change['what']}: {change['before']} → {change['after']}")
        base = [result for result in reports[1].results if result.name == "base_model"]
        print("".join(f"  {result.message}\n" for result in base) or "  nothing else", end="")


def _contract(options: argparse.Namespace) -> ServingContract:
    """Joins the contract's file and the options; options win."""
    contract = (
        ServingContract.from_yaml(options.contract)
        if options.contract
        else ServingContract(signatures=())
    )
    if options.examples and options.example:
        raise ConfigurationError("--examples and --example: expected one of them")
    given = {
        "examples": options.examples or _examples(options.example),
        "schema": options.schema,
        "statistics": options.statistics,
        "transform_graph": options.transform_graph,
        "eval_config": options.eval_config,
        "base_model": options.base_model,
        "source_model": options.source,
        "signatures": options.signature,
        "label_keys": options.label,
    }
    return dataclasses.replace(contract, **{k: v for k, v in given.items() if v is not None})


def _files_of(examples: str | None) -> str | None:
    """Returns the glob of a directory's files, of an Examples artifact those to evaluate on."""
    if not examples or not Path(examples).is_dir():
        return examples
    split = Path(examples, "Split-eval")
    return str((split if split.is_dir() else Path(examples)) / "*")


def _examples(files: list[str] | None) -> list[bytes] | None:
    """Returns the examples in some files, serialized.

    Raises:
        DataError: a file holds none.
    """
    if files is None:
        return None
    import tensorflow as tf

    read = (read_proto(file, tf.train.Example, "example") for file in files)
    return [example.SerializeToString(deterministic=True) for example in read]


def show_report(report: ValidationReport, options: argparse.Namespace) -> None:
    """Prints a report as the options say."""
    if options.json:
        print(report.to_json())
    else:
        print_report(report)
    if options.html:  # last: what cannot be written has been printed
        page = Path(options.html)
        _write(page, report.to_html())
        for name, text in report.failing_examples.items():
            _write(page.with_name(name), text)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"--html: {file} cannot be written: {error.strerror}", path=str(file)
        ) from error
