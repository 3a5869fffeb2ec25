"""`generic-trainer validate`: the checks of an exported model, without training."""

import argparse
import dataclasses
import glob
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer._core.texts import is_number, load_eval_config, load_schema, read_proto
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer.cli._options import add_command, require_files
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation import Checker, ServingContract, ValidationReport, print_report


def _seconds(text: str) -> float:
    if not is_number(seconds := float(text)) or seconds <= 0:
        raise ValueError(text)
    return seconds


TIMEOUT = {"type": _seconds, "default": 600.0, "dest": "timeout_s"}
_REPEATED = {"action": "append"}


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    add_command(
        commands,
        _validate,
        models={"nargs": "+"},
        example=_REPEATED,
        signature=_REPEATED,
        label=_REPEATED,
        timeout=TIMEOUT,
    )


def require_writable_html(options: argparse.Namespace) -> None:
    """Checks, before minutes of work, that `--html` names a file in a directory.

    Raises:
        ConfigurationError: it does not.
    """
    if options.html and not Path(options.html).absolute().parent.is_dir():
        problem = "is not in an existing directory"
    elif options.html and Path(options.html).is_dir():
        problem = "is a directory"
    else:
        return
    raise ConfigurationError(f"--html: {options.html} {problem}", path=options.html)


def _validate(options: argparse.Namespace) -> int:
    """Check whether an exported model works downstream.

    Checks a SavedModel or a TFLite model in a separate process; the model is never changed.

    Options:
        models MODEL: directory with saved_model.pb or a TFLite model, or a TFLite file; of two, the
            second is compared with the first as well
        --contract FILE: YAML or JSON file of a ServingContract
        --examples GLOB: TFRecords of real eval tf.Examples, or their directory
        --example FILE: a tf.Example in text format, such as those beside a report; may be repeated
        --schema FILE: schema of the examples (schema.pbtxt)
        --statistics GLOB: statistics of the examples (FeatureStats.pb)
        --transform-graph DIR: TransformGraph artifact, to compare vocabularies
        --eval-config FILE: the Evaluator's tfma.EvalConfig
        --base-model DIR: SavedModel to compare with
        --source DIR: SavedModel that the model was converted or quantised from, whose predictions
            it must have
        --signature NAME: signature that must exist; may be repeated (default: those of the
            contract)
        --label FEATURE: feature that is absent when the model serves; may be repeated
        --timeout SECONDS: for a check (default: %(default)g)
        --json: print the report as JSON
        --html FILE: also write the report as an HTML page, and the failing examples beside it
    """
    for model in options.models:
        if not is_remote(model):
            require_model(Path(model))
    if options.html and len(options.models) > 1:
        raise ConfigurationError("--html: expected a single model, the subject of the report")
    require_writable_html(options)
    options.examples = _files_of(options.examples)
    files = "contract", "schema", "transform_graph", "eval_config", "base_model", "source"
    require_files(**{name: getattr(options, name) for name in files})
    contract = _contract(options)
    if options.schema and not is_remote(options.schema):
        load_schema(options.schema)
    if options.eval_config and not is_remote(options.eval_config):
        load_eval_config(options.eval_config)
    if options.examples and not is_remote(options.examples) and not glob.glob(options.examples):
        raise ConfigurationError(f"--examples: no file matches {options.examples}")
    with Checker(timeout_s=options.timeout_s) as checker:
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
    """Prints several reports."""
    if options.json:
        listed = [json.loads(report.to_json()) for report in reports]
        print(json.dumps({"reports": listed}, indent=2))
        return
    for report in reports:
        print(f"\n{report.model_dir}")
        print_report(report)


def require_model(model: Path) -> None:
    """Checks that a local model exists, and is not the artifact around it.

    Raises:
        ConfigurationError: it is not.
    """
    if not model.exists():
        raise ConfigurationError(f"MODEL: {model} is not a directory or a file", path=str(model))
    export = model / SERVING_MODEL_DIR
    if export.is_dir() and not (model / "saved_model.pb").exists():
        raise ConfigurationError(
            f"MODEL: {model} is not a model: did you mean {export}?", path=str(model)
        )


def _contract(options: argparse.Namespace) -> ServingContract:
    """Joins the contract's file and the options, which take precedence."""
    contract = ServingContract(signatures=())
    if options.contract:
        contract = ServingContract.from_yaml(options.contract)
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
    """Returns the glob of a directory's files; of an Examples artifact, those of its eval split.

    Brackets in the path of an existing file or directory stand for themselves.
    """
    if not examples or is_remote(examples) or not Path(examples).exists():
        return examples
    split = Path(examples, "Split-eval")
    path = split if split.is_dir() else Path(examples)
    return glob.escape(str(path)) + ("/*" if path.is_dir() else "")


def _examples(files: list[str] | None) -> list[bytes] | None:
    """Returns the examples in some files, serialized.

    Raises:
        DataError: a file cannot be read as an example.
    """
    if files is None:
        return None
    import tensorflow as tf

    read = (read_proto(file, tf.train.Example, "example") for file in files)
    return [example.SerializeToString(deterministic=True) for example in read]


def show_report(report: ValidationReport, options: argparse.Namespace) -> None:
    """Prints a report, and writes its page, as the options ask for."""
    if options.json:
        print(report.to_json())
    else:
        print_report(report)
    if options.html:  # last: if it cannot be written, the report has been printed
        page = Path(options.html)
        for name, text in {page.name: report.to_html(), **report.failing_examples}.items():
            file = page.with_name(name)
            try:
                file.write_text(text, encoding="utf-8")
            except OSError as error:
                message = f"--html: {file} cannot be written: {error.strerror}"
                raise ConfigurationError(message, path=str(file)) from error
