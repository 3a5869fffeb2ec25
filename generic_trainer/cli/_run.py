"""`generic-trainer run`: training and publishing with a module file, without a pipeline."""

from __future__ import annotations

import argparse
import glob
import json
import logging
import os
import sys
import warnings
from typing import Any

from generic_trainer._core.files import absolute, file_errors_as, gfile, is_remote, read_text
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.texts import parse_json, parse_json_object
from generic_trainer._core.tfx_names import FORMAT_TF_EXAMPLE
from generic_trainer.cli._csv import SUFFIX, Table, read_csv, write_examples, write_schema
from generic_trainer.cli._files import require_files
from generic_trainer.errors import (
    ConfigurationError,
    GenericTrainerError,
    TrainingError,
    raise_problems,
)
from generic_trainer.launchers import Distribution, ExamplesFormat, Job, TrainingRequest
from generic_trainer.tracking import parse_trackings
from generic_trainer.validation import ServingContract

_SPLIT = "Split-"
_DRY_STEPS, _DRY_EXAMPLES = 2, 10
_FILES = "schema", "transform_graph", "base_model", "hyperparameters", "contract", "eval_config"


def add_run(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="train with a module file, without a pipeline, and publish the model",
        description=(
            "Trains with run_fn of a module file, or what stands in for it, checks the export and "
            "publishes it as OUTPUT/model/N/Format-Serving; log and report are in "
            "OUTPUT/model_run/N. A run that was killed goes on when the same command is given. "
            "Exit status: 1 wrong user code, 2 wrong call or data, 74 full disk, 126 the export "
            "fails its checks, 127 hang, 128 out of memory, 143 lost worker."
        ),
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add("module_file", metavar="MODULE_FILE", help="Python file with run_fn, trainer_fn or a trial")
    add("--output", metavar="DIR", help="where models and logs go")
    add("--dry-run", action="store_true", help="train two steps on ten examples of each split, "
        "export and check, and keep nothing")  # fmt: skip
    add("--json", action="store_true", help="print the outcome as one line of JSON, the last line")
    add("--examples", metavar="DIR", help="what an ExampleGen or Transform has written: Split-*/; "
        "or a .csv file, of which every third row is to evaluate on")  # fmt: skip
    add("--train", metavar="GLOB", help="TFRecords of tf.Examples to train on, or a .csv file")
    add("--eval", metavar="GLOB", help="TFRecords of tf.Examples to evaluate on, or a .csv file")
    add("--train-steps", metavar="N", type=int, help="fn_args.train_steps")
    add("--eval-steps", metavar="N", type=int, help="fn_args.eval_steps")
    add("--schema", metavar="FILE", help="schema.pbtxt of the examples; that of a .csv "
        "file is inferred")  # fmt: skip
    add("--transform-graph", metavar="DIR", help="what Transform has written: transform_fn/")
    add("--base-model", metavar="DIR", help="SavedModel to start from, and to compare with")
    add("--hyperparameters", metavar="FILE", help="best_hyperparameters.txt of a Tuner")
    add("--custom-config", metavar="JSON", help="fn_args.custom_config")
    add("--contract", metavar="FILE", help="YAML or JSON file of a ServingContract")
    add("--eval-config", metavar="FILE", help="the Evaluator's tfma.EvalConfig")
    add(
        "--distribution", metavar="JSON", help='such as \'{"launcher": "local", "num_workers": 2}\''
    )
    tracked = "such as mlflow:http://host:5000, or JSON of a Tracking; may be given several times"
    add("--tracking", metavar="TRACKER[:URI]", action="append", default=[], help=tracked)


def _run(options: argparse.Namespace) -> int:
    # What is wrong with the options is said at once, before TensorFlow is imported.
    try:
        distribution = Distribution.from_json(options.distribution or "{}")
    except ConfigurationError as error:
        raise ConfigurationError(f"--distribution: {error}") from error
    trackings = parse_trackings(options.tracking)
    _check_options(options)
    from generic_trainer.launchers import exit_code

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    outcome: dict[str, Any] = {"exit_status": 0, "error": None}
    try:
        with (
            file_errors_as(TrainingError, "The run failed on a file or directory"),
            ScratchFolder("run-") as scratch_dir,
        ):
            given, table = _given(options, scratch_dir)
            _quiet_imports()
            import tensorflow as tf

            from generic_trainer._run.run import train_and_publish
            from generic_trainer.executors import FN_ARGS_FACTORY

            try:
                request = _request(options, scratch_dir, given, table)
            except tf.errors.OpError as error:  # an unknown scheme, a place that is not writable
                raise ConfigurationError(str(error.message)) from error
            if not options.dry_run:
                outcome |= {"model": request.model_dir, "model_run": request.model_run_dir}
            report = train_and_publish(
                Job(
                    request=request,
                    distribution=distribution,
                    fn_args_factory=FN_ARGS_FACTORY,
                ),
                () if options.dry_run else trackings,
            )
            if report is not None:
                outcome["report"] = json.loads(report.to_json())
            if report is not None and options.dry_run:
                verdict = report.summary().replace(report.model_dir, "The export", 1)
                print(f"{verdict}. Nothing is kept of a dry run.", file=sys.stderr)
    except ConfigurationError:
        raise
    except GenericTrainerError as error:
        print(f"generic-trainer run: {error}", file=sys.stderr)
        outcome |= {"exit_status": exit_code(error), "error": str(error)}
    if options.json:
        print(json.dumps(outcome))
    return int(outcome["exit_status"])


def _check_options(options: argparse.Namespace) -> None:
    problems = []
    if bool(options.output) == options.dry_run:
        problems.append("give either --output, or --dry-run")
    elif options.output and os.path.isfile(options.output):
        problems.append(f"--output: {options.output} is a file, and no directory")
    for word in ("base_model", "transform_graph"):
        if (path := getattr(options, word)) and os.path.isfile(path):
            problems.append(f"--{word.replace('_', '-')}: {path} is a file, and no directory")
    if bool(options.examples) == bool(options.train or options.eval):
        problems.append("give either --examples, or --train and --eval")
    elif not options.examples and not (options.train and options.eval):
        problems.append("--train and --eval go together")
    for word in ("train_steps", "eval_steps"):
        steps = getattr(options, word)
        if steps is not None and steps < 1:
            problems.append(f"--{word.replace('_', '-')} must be at least 1, got {steps}")
    if options.custom_config:
        try:
            if not isinstance(parse_json(options.custom_config), dict):
                problems.append("--custom-config must be a JSON object")
        except ValueError as error:
            problems.append(f"--custom-config is not JSON: {error}")
    raise_problems(ConfigurationError, "wrong options", problems)
    require_files(
        MODULE_FILE=options.module_file, **{name: getattr(options, name) for name in _FILES}
    )
    if not _csv_files(options) and not any(
        map(is_remote, filter(None, (options.examples, options.train, options.eval)))
    ):
        _splits(options)


def _quiet_imports() -> None:
    """Keeps what TensorFlow and Google's clients say of being imported from the first lines."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.")


def _given(options: argparse.Namespace, scratch_dir: str) -> tuple[dict[str, Any], Table | None]:
    """Returns what can be told, and be wrong, without importing TensorFlow; and the CSV files."""
    from generic_trainer._core.protos import load_schema
    from generic_trainer._entry_points import may_define
    from generic_trainer.user_code import bundle_module_file

    load_schema(options.schema)  # else only the export would fail
    files = _csv_files(options)
    table = read_csv(files) if files else None
    schema_path = options.schema and absolute(options.schema)
    if table is not None and schema_path is None:
        schema_path = write_schema(table, os.path.join(scratch_dir, "schema.pbtxt"))
    given = {
        "schema_path": schema_path,
        "user_code": bundle_module_file(options.module_file, scratch_dir, may_define=may_define),
        "hyperparameters": _hyperparameters(options.hyperparameters),
        "contract": ServingContract.from_yaml(options.contract) if options.contract else None,
    }
    return given, table


def _request(
    options: argparse.Namespace, scratch_dir: str, given: dict[str, Any], table: Table | None
) -> TrainingRequest:
    from generic_trainer._core.protos import load_eval_config
    from generic_trainer._run.run_key import with_run_key

    if table is not None:
        most = _DRY_EXAMPLES if options.dry_run else None
        splits = write_examples(table, os.path.join(scratch_dir, "examples"), most)
    else:
        splits = _splits(options)
    if options.dry_run and table is None:
        splits = _first_examples(splits, os.path.join(scratch_dir, "examples"))
    request = TrainingRequest(
        **given,
        train_files=splits["train"],
        eval_files=splits["eval"],
        split_files=splits,
        examples_format=ExamplesFormat(FORMAT_TF_EXAMPLE),
        scratch_dir=scratch_dir,
        train_steps=_DRY_STEPS if options.dry_run else options.train_steps,
        eval_steps=1 if options.dry_run else options.eval_steps,
        transform_graph_path=_existing("--transform-graph", options.transform_graph),
        base_model=_existing("--base-model", options.base_model),
        custom_config=parse_json(options.custom_config) if options.custom_config else None,
        eval_config=load_eval_config(_existing("--eval-config", options.eval_config)),
        **new_directories(
            options.output or os.path.join(scratch_dir, "runs")
        ),  # last, so that a wrong option leaves nothing behind
    )
    return with_run_key(request)


def _csv_files(options: argparse.Namespace) -> dict[str, str]:
    """Returns split → CSV file, `""` for one that holds both; nothing where there is none."""
    given = {"": options.examples, "train": options.train, "eval": options.eval}
    files = {split: path for split, path in given.items() if path}
    of_csv = [path for path in files.values() if path.endswith(SUFFIX)]
    if of_csv and len(of_csv) < len(files):
        raise ConfigurationError(
            f"--train and --eval: expected both to be {SUFFIX} files or neither, but one is "
            f"{of_csv[0]}"
        )
    return files if of_csv else {}


def _splits(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Returns split → file patterns, of which each matches a file."""
    splits: dict[str, tuple[str, ...]]
    if options.examples:
        folders = _matching(os.path.join(absolute(options.examples), f"{_SPLIT}*"))
        splits = {
            os.path.basename(folder).removeprefix(_SPLIT): (os.path.join(folder, "*"),)
            for folder in folders
        }
        if missing := [f"{_SPLIT}{name}" for name in ("train", "eval") if name not in splits]:
            raise ConfigurationError(
                f"--examples: {options.examples} has no {' and no '.join(missing)}; "
                f"found {sorted(splits) or 'no splits'}. Name the files with --train and --eval.",
                path=options.examples,
            )
    else:
        splits = {"train": (absolute(options.train),), "eval": (absolute(options.eval),)}
    empty = [pattern for (pattern,) in splits.values() if not _matching(pattern)]
    if empty:
        raise ConfigurationError(f"no file matches {', '.join(empty)}")
    return splits


def _first_examples(splits: dict[str, tuple[str, ...]], folder: str) -> dict[str, tuple[str, ...]]:
    """Copies the first examples of each split, and returns the patterns of the copies."""
    from generic_trainer._core.records import copy_records

    return {
        split: (copy_records(pattern, os.path.join(folder, split), _DRY_EXAMPLES),)
        for split, (pattern,) in splits.items()
    }


def _matching(pattern: str) -> list[str]:
    return gfile().glob(pattern) if is_remote(pattern) else glob.glob(pattern)


def new_directories(output: str) -> dict[str, Any]:
    """Makes `model/N` and `model_run/N` with the next N; two runs at once get one each."""
    import tensorflow as tf

    output, files = absolute(output), gfile()
    runs = os.path.join(output, "model_run")
    files.makedirs(runs)
    names = (name.rstrip("/") for name in files.listdir(runs))
    number = 1 + max((int(name) for name in names if name.isdecimal()), default=0)
    while True:
        model_run_dir = os.path.join(runs, str(number))
        try:
            files.mkdir(model_run_dir)
            break
        except tf.errors.AlreadyExistsError:
            number += 1
    model_dir = os.path.join(output, "model", str(number))
    files.makedirs(model_dir)
    return {"model_dir": model_dir, "model_run_dir": model_run_dir}


def _existing(word: str, path: str | None) -> str | None:
    if path is None:
        return None
    if not gfile().exists(path):
        raise ConfigurationError(f"{word}: {path} does not exist", path=path)
    return absolute(path)  # which workers find that run elsewhere on this machine


def _hyperparameters(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        return parse_json_object(read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--hyperparameters: {path} is no JSON object: {error}", path=path
        ) from error
