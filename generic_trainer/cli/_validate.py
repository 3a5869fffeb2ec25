"""`generic-trainer validate`: the checks of an exported model, without training."""

import argparse
import dataclasses
import glob
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer._core.texts import is_number, load_eval_config, load_schema, read_proto
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer.cli._options import add_command, option, require_files
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation import Checker, ServingContract, ValidationReport, print_report


def _seconds(text: str) -> float:
    if not is_number(seconds := float(text)) or seconds <= 0:
        raise ValueError(text)
    return seconds


# Option → field of the contract.
_SAME = "schema", "statistics", "transform_graph", "eval_config", "base_model"
_FIELDS = dict(zip(_SAME, _SAME, strict=True)) | {
    "source": "source_model",
    "signature": "signatures",
    "label": "label_keys",
}


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _validate,
        "Check whether an exported model works downstream",
        "Checks a SavedModel or a TFLite model in a separate process; the model is never changed.",
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="directory with saved_model.pb or a TFLite model, or a TFLite file; of two, the "
        "second is compared with the first as well",
    )
    parser.add_argument("--contract", metavar="FILE", help="YAML or JSON file of a ServingContract")
    parser.add_argument(
        "--examples", metavar="GLOB", help="TFRecords of real eval tf.Examples, or their directory"
    )
    parser.add_argument(
        "--example",
        metavar="FILE",
        action="append",
        help="a tf.Example in text format, such as those beside a report; may be repeated",
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
        help="signature that must exist; may be repeated (default: those of the contract)",
    )
    parser.add_argument(
        "--label",
        metavar="FEATURE",
        action="append",
        help="feature that is absent when the model serves; may be repeated",
    )
    add_report_options(parser)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that runs the checks and shows their report."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        dest="timeout_s",
        type=_seconds,
        default=600.0,
        help="for a check (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write the report as an HTML page, and the failing examples beside it",
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


def validate(
    model: str | os.PathLike[str],
    contract: ServingContract | str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 600.0,
    **fields: Any,
) -> ValidationReport:
    """Checks whether an exported model works downstream, as `generic-trainer validate` does.

    ::

        import generic_trainer

        report = generic_trainer.validate(result.model, examples="eval/*", label_keys=["price"])
        print(report.summary())

    The checks run in a separate process; the model is never changed. A failed check is a result of
    the report, not an error.

    Args:
        model: directory with saved_model.pb or a TFLite model, or a TFLite file.
        contract: the requirements, or a YAML or JSON file of them; None for the needs of any
            consumer.
        timeout_s: seconds that one check may take.
        **fields: fields of `ServingContract`, which take precedence over those of the contract.
            `examples` may also be a directory of TFRecords or the output of an ExampleGen.

    Raises:
        ConfigurationError: the model or a file does not exist, or a field is wrong.
    """
    path = os.fspath(model)
    if not is_remote(path):
        require_model(Path(path), "model")
    required = _completed(contract, fields, str)
    with Checker(timeout_s=timeout_s) as checker:
        return checker.validate(path, required)


def _validate(options: argparse.Namespace) -> int:
    for model in options.models:
        if not is_remote(model):
            require_model(Path(model))
    if options.html and len(options.models) > 1:
        raise ConfigurationError("--html: expected a single model, the subject of the report")
    require_writable_html(options)
    if options.examples and options.example:
        raise ConfigurationError("--examples and --example: expected one of them")
    fields = {field: getattr(options, name) for name, field in _FIELDS.items()}
    fields["examples"] = options.examples or _examples(options.example)
    option_of = {field: option(name) for name, field in _FIELDS.items()}
    contract = _completed(options.contract, fields, lambda name: option_of.get(name, option(name)))
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


def require_model(model: Path, name: str = "MODEL") -> None:
    """Checks that a local model exists, and is not the artifact around it.

    Args:
        model: its path.
        name: what the user calls the argument.

    Raises:
        ConfigurationError: it is not.
    """
    if not model.exists():
        raise ConfigurationError(f"{name}: {model} is not a directory or a file", path=str(model))
    export = model / SERVING_MODEL_DIR
    if export.is_dir() and not (model / "saved_model.pb").exists():
        raise ConfigurationError(
            f"{name}: {model} is not a model: did you mean {export}?", path=str(model)
        )


def _completed(
    contract: ServingContract | str | os.PathLike[str] | None,
    fields: Mapping[str, Any],
    named: Callable[[str], str],
) -> ServingContract:
    """Returns a contract with other fields, after checking that their files exist.

    Args:
        contract: or its file; None for the needs of any consumer.
        fields: None, as a value, keeps that of the contract.
        named: returns what the user calls a field.

    Raises:
        ConfigurationError: a file is missing, or a field is wrong.
        DataError: a schema or an eval config cannot be read.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    given |= {"contract": contract} if contract else {}
    paths = {
        name: os.fspath(value)
        for name, value in given.items()
        if isinstance(value, (str, os.PathLike))
    }
    given |= paths
    files = "contract", "schema", "transform_graph", "eval_config", "base_model", "source_model"
    require_files(named, **{name: paths[name] for name in files if name in paths})
    for name, load in (("schema", load_schema), ("eval_config", load_eval_config)):
        if name in paths and not is_remote(paths[name]):
            load(paths[name])
    if "examples" in paths:
        given["examples"] = pattern = _files_of(paths["examples"])
        if not is_remote(pattern) and not glob.glob(pattern):
            raise ConfigurationError(f"{named('examples')}: no file matches {pattern}")
    base = given.pop("contract", None) or ServingContract(signatures=())
    if isinstance(base, str):
        base = ServingContract.from_yaml(base)
    return dataclasses.replace(base, **given)


def _files_of(examples: str) -> str:
    """Returns the glob of a directory's files; of an Examples artifact, those of its eval split.

    Brackets in the path of an existing file or directory stand for themselves.
    """
    if is_remote(examples) or not Path(examples).exists():
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
        if report.failing_examples and not options.html:
            print(f"--html FILE also writes {', '.join(report.failing_examples)}")
    if options.html:  # last: if it cannot be written, the report has been printed
        page = Path(options.html)
        for name, text in {page.name: report.to_html(), **report.failing_examples}.items():
            file = page.with_name(name)
            try:
                file.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigurationError(
                    f"--html: {file} cannot be written: {error.strerror}", path=str(file)
                ) from error
