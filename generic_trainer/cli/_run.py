"""`generic-trainer run`: training and publishing with a module file, without a pipeline."""

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer import errors
from generic_trainer._core import texts
from generic_trainer._core.files import absolute, file_errors_as, gfile, is_remote, read_text
from generic_trainer._core.progress import last_metrics, note, recording
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.tfx_names import FORMAT_TF_EXAMPLE, SERVING_MODEL_DIR
from generic_trainer._entry_points import RUN_FN, may_define
from generic_trainer._run.store import with_run_key
from generic_trainer.cli._csv import read_csv, types_of_schema, write_schema
from generic_trainer.cli._examples import (
    add_examples_options,
    csv_files_of,
    splits_of,
    written_examples,
)
from generic_trainer.cli._fn_args import (
    empty_cells_in,
    empty_cells_remedy,
    keep_empty_cells,
    no_examples,
)
from generic_trainer.cli._options import (
    add_command,
    hidden_stderr,
    option,
    quiet_libraries,
    require_files,
    require_paths,
)
from generic_trainer.launchers import Distribution, ExamplesFormat, Job, TrainingRequest, exit_code
from generic_trainer.tracking import Tracking, parse_trackings
from generic_trainer.user_code import UserCode, bundle_module_file, defines_function, read_bundle
from generic_trainer.validation import ServingContract, ValidationReport

_Path = str | os.PathLike[str]

_DRY_STEPS = 2
_OF_ANY_SEARCHER = "metric", "smaller_is_better"
# Arguments that may be files; the last three may be values instead.
_FILES = (
    *("schema", "transform_graph", "base_model", "eval_config", "sign_with"),
    *("hyperparameters", "custom_config", "contract"),
)


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _run,
        "Train with a module file, without a pipeline, and publish the model",
        "Trains with run_fn of a module file, or with its trial or trainer_fn, checks the "
        "export and publishes it as OUTPUT/model/N/Format-Serving; log and report are in "
        "OUTPUT/model_run/N. The same command continues a run that was killed. Exit status: 1 "
        "wrong user code, 2 wrong call or data, 74 full disk, 126 the export fails its checks, "
        "127 hang, 128 out of memory, 143 lost worker.",
    )
    parser.add_argument(
        "module_file",
        metavar="MODULE_FILE",
        help="Python file with run_fn, trainer_fn or a trial; a trial that reads its own data "
        "needs no examples",
    )
    parser.add_argument("--output", metavar="DIR", help="directory of models and logs")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="train epochs of two steps on ten examples of each split, export and check, and "
        "keep nothing",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the outcome as one line of JSON, the last line"
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also show what TensorFlow's C++ code says below the level of errors",
    )
    add_examples_options(parser)
    parser.add_argument(
        "--label",
        metavar="FEATURE",
        help="feature that the model predicts, and that is absent when it serves: the report "
        "compares predictions with it",
    )
    parser.add_argument(
        "--schema",
        metavar="FILE",
        help="schema.pbtxt of the examples; that of a .csv file is inferred, and one that is given "
        "decides which columns are numbers",
    )
    parser.add_argument(
        "--transform-graph", metavar="DIR", help="output of Transform: transform_fn/"
    )
    parser.add_argument(
        "--base-model",
        metavar="DIR",
        help="fn_args.base_model, a SavedModel for the module file to start from; a check compares "
        "the new model with it",
    )
    parser.add_argument(
        "--hyperparameters", metavar="FILE", help="best_hyperparameters.txt of a Tuner"
    )
    parser.add_argument("--custom-config", metavar="JSON", help="fn_args.custom_config")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file of fn_args.custom_config, such as Determined's const.yaml",
    )
    parser.add_argument("--contract", metavar="FILE", help="YAML or JSON file of a ServingContract")
    parser.add_argument("--eval-config", metavar="FILE", help="the Evaluator's tfma.EvalConfig")
    parser.add_argument(
        "--distribution", metavar="JSON", help='such as \'{"launcher": "local", "num_workers": 2}\''
    )
    parser.add_argument(
        "--tracking",
        metavar="TRACKER[:URI]",
        action="append",
        default=[],
        help="such as mlflow:http://host:5000, or JSON of a Tracking; may be given several times",
    )
    parser.add_argument(
        "--sign-with",
        metavar="FILE",
        help="private key that signs the model, for `generic-trainer verify`",
    )


def _run(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    outcome = outcome_of(options)
    if outcome["error"]:
        print(f"generic-trainer run: {outcome['error']}", file=sys.stderr)
    if options.json:
        print(json.dumps(outcome))
    return int(outcome["exit_status"])


def outcome_of(options: argparse.Namespace) -> dict[str, Any]:
    """Trains as `_run` does.

    Returns:
        `exit_status`, `error`, and where they exist `model`, `model_run`, `report` and `metrics`,
        as JSON can hold them.

    Raises:
        ConfigurationError: the options are wrong.
    """
    # Wrong options are reported at once, before TensorFlow is imported.
    try:
        distribution = Distribution.from_json(options.distribution or "{}")
    except errors.ConfigurationError as error:
        raise errors.ConfigurationError(f"--distribution: {error}") from error
    try:
        custom_config = texts.parse_json_object(options.custom_config or "null")
    except ValueError as error:
        message = f"--custom-config must be a JSON object, but {error}; a file goes into --config"
        raise errors.ConfigurationError(message) from error
    if options.config and custom_config is not None:
        raise errors.ConfigurationError("--config and --custom-config: expected one of them")
    arguments = vars(options) | {
        "custom_config": options.config or custom_config,
        "distribution": distribution,
        "tracking": parse_trackings(options.tracking),
        "named": lambda name: option("config" if name == "custom_config" else name),
    }
    quiet_libraries(options.verbose)

    outcome: dict[str, Any] = {"exit_status": 0, "error": None}
    try:
        _train(argparse.Namespace(**arguments), outcome)
    except errors.ConfigurationError:
        raise
    except errors.GenericTrainerError as error:
        outcome |= {"exit_status": exit_code(error), "error": str(error)}
    if (report := outcome.get("report")) is not None:
        if options.dry_run:
            verdict = report.summary().replace(report.model_dir, "The export", 1)
            print(f"{verdict}. A dry run keeps no files.", file=sys.stderr)
        finite = {k: value for k, value in outcome["metrics"].items() if math.isfinite(value)}
        outcome |= {"report": json.loads(report.to_json()), "metrics": finite}
    return outcome


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The outcome of `run`.

    Attributes:
        model: directory of the published SavedModel, `OUTPUT/model/N/Format-Serving`; None after a
            dry run.
        model_run: directory with log, report and event files, `OUTPUT/model_run/N`; None after a
            dry run.
        report: the results of the checks; None in a worker of a cluster other than the chief.
        metrics: name → last value of each loss, metric and scalar of TensorBoard, such as `loss`
            and `val_loss`. A callback may have restored the weights of an earlier epoch since: how
            good the published model is stands in `report.facts`, such as `eval_accuracy`.
    """

    model: str | None
    model_run: str | None
    report: ValidationReport | None
    metrics: Mapping[str, float]


def run(
    module_file: _Path,
    *,
    output: _Path | None = None,
    examples: _Path | None = None,
    train: _Path | None = None,
    eval: _Path | None = None,
    train_steps: int | None = None,
    eval_steps: int | None = None,
    label: str | None = None,
    schema: _Path | None = None,
    transform_graph: _Path | None = None,
    base_model: _Path | None = None,
    hyperparameters: Mapping[str, Any] | _Path | None = None,
    custom_config: Mapping[str, Any] | _Path | None = None,
    contract: ServingContract | _Path | None = None,
    eval_config: _Path | None = None,
    distribution: Distribution | None = None,
    tracking: str | Tracking | Sequence[str | Tracking] = (),
    sign_with: _Path | None = None,
    dry_run: bool = False,
) -> RunResult:
    """Trains with a module file, checks its export and publishes it, as `generic-trainer run` does.

    ::

        import generic_trainer

        result = generic_trainer.run("trainer.py", examples="houses.csv", output="runs")
        print(result.report.verdict, result.metrics["val_loss"], result.model)

    A notebook shows the run while it trains. The same call continues a run that was killed.

    Args:
        module_file: Python file with `run_fn`, `trainer_fn` or a trial.
        output: directory of models and logs; only a dry run can do without.
        examples: output of an ExampleGen or Transform, a directory with `Split-*/`; or a .csv file,
            of which a third of the rows is for evaluation. Not needed by code that reads its own
            data.
        train: glob of TFRecords of tf.Examples to train on, or a .csv file; together with `eval`,
            in place of `examples`.
        eval: the same to evaluate on.
        train_steps: `fn_args.train_steps`, a number of batches; by default one pass.
        eval_steps: `fn_args.eval_steps`; by default one pass.
        label: feature that the model predicts, and that is absent when it serves: the report
            compares predictions with it.
        schema: schema.pbtxt of the examples; that of a .csv file is inferred.
        transform_graph: output of Transform, a directory with `transform_fn/`.
        base_model: `fn_args.base_model`, directory of a SavedModel for the module file to start
            from; a check compares the new model with it.
        hyperparameters: name → value, the config of a `keras_tuner.HyperParameters`, or its file.
        custom_config: `fn_args.custom_config`, or a YAML file of it: for trials, the experiment
            configuration.
        contract: further requirements on the model, or a YAML or JSON file of them.
        eval_config: file of the Evaluator's `tfma.EvalConfig`.
        distribution: the workers; by default this process trains.
        tracking: trackers, such as `"mlflow:http://host:5000"`.
        sign_with: file of the private key that signs the model.
        dry_run: whether to train epochs of two steps on ten examples of each split, export and
            check, and keep nothing.

    Raises:
        ConfigurationError: wrong arguments; before TensorFlow is imported, if it is not yet.
        DataError: the examples, the schema or another file cannot be read.
        ModuleFileError: the module cannot be imported, or has nothing that trains.
        TrainingError: the module's code raised, or a worker was lost.
        ExportError: there is no export to publish; a `ModelValidationError`, with the report as its
            field, if the export failed its checks. It is kept beside the log.
    """
    require_paths(module_file=module_file, output=output, examples=examples, train=train, eval=eval)
    arguments = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in locals().items()
    }
    arguments |= {
        "distribution": distribution or Distribution(),
        "tracking": parse_trackings(tracking),
        "named": str,
        "verbose": True,
    }
    outcome: dict[str, Any] = {"report": None, "metrics": {}}
    _train(argparse.Namespace(**arguments), outcome)
    is_kept = not dry_run
    return RunResult(
        model=os.path.join(outcome["model"], SERVING_MODEL_DIR) if is_kept else None,
        model_run=outcome["model_run"] if is_kept else None,
        report=outcome["report"],
        metrics=outcome["metrics"],
    )


def _train(options: argparse.Namespace, outcome: dict[str, Any]) -> None:
    """Trains and publishes.

    Args:
        options: the arguments of `run`, and two more: `named`, a function that returns what the
            user calls an argument, and `verbose`.
        outcome: gets `model`, `model_run`, `report` and `metrics` as soon as they are known.

    Raises:
        GenericTrainerError: see `run`.
    """
    _check_options(options)
    with (
        file_errors_as(errors.TrainingError, "The run failed on a file or directory"),
        ScratchFolder("run-") as scratch_dir,
    ):
        try:
            request = _request(options, scratch_dir)
            if not options.dry_run:
                outcome |= {"model": request.model_dir, "model_run": request.model_run_dir}
            from generic_trainer._run.run import train_and_publish

            job = Job(
                request=request,
                distribution=options.distribution,
                fn_args_factory="generic_trainer.cli._fn_args:make_fn_args",
            )
            report = train_and_publish(job, () if options.dry_run else options.tracking)
        except errors.GenericTrainerError as error:
            for made in (outcome.pop("model", ""), outcome.get("model_run", "")):
                with contextlib.suppress(OSError):
                    os.rmdir(made)  # if it is empty: no script is to take it for a model
            remedy = empty_cells_remedy(error, empty_cells_in(scratch_dir))
            error.args = (f"{error}{remedy}",)
            raise
        if report is not None:
            outcome |= {"report": report, "metrics": last_metrics(request.model_run_dir)}


def _check_options(options: argparse.Namespace) -> None:
    problems, named = [], options.named
    if not options.output and not options.dry_run:
        problems.append(f"give {named('output')}, or {named('dry_run')}")
    for name in ("output", "base_model", "transform_graph"):
        if (path := getattr(options, name)) and os.path.isfile(path):
            problems.append(f"{named(name)}: {path} is a file, expected a directory")
    if options.examples and (options.train or options.eval):
        problems.append(f"give either {named('examples')}, or {named('train')} and {named('eval')}")
    elif bool(options.train) != bool(options.eval):
        problems.append(f"{named('train')} and {named('eval')} go together")
    for name in ("train_steps", "eval_steps"):
        if (steps := getattr(options, name)) is not None and steps < 1:
            problems.append(f"{named(name)} must be at least 1, got {steps}")
    errors.raise_problems(errors.ConfigurationError, "wrong options", problems)
    given = {name: getattr(options, name) for name in _FILES}
    files = {name: path for name, path in given.items() if isinstance(path, str)}
    csv_files = {split or "examples": path for split, path in csv_files_of(options).items()}
    require_files(named, MODULE_FILE=options.module_file, **files, **csv_files)
    examples = filter(None, (options.examples, options.train, options.eval))
    if not csv_files and not any(map(is_remote, examples)):
        splits_of(options)


def _request(options: argparse.Namespace, scratch_dir: str) -> TrainingRequest:
    """Returns the request, with examples and schema of CSV files written to the scratch folder.

    The first part checks everything that can be checked without importing TensorFlow.
    """
    schema = texts.load_schema(options.schema)  # otherwise only the export would fail
    contract = options.contract
    if isinstance(contract, str):
        contract = ServingContract.from_yaml(contract)
    if options.label:
        contract = contract or ServingContract(signatures=())
        contract = dataclasses.replace(contract, label_keys=(options.label,))
    files = csv_files_of(options)
    table = read_csv(files, types_of_schema(schema)) if files else None
    if table is not None:
        for label in contract.label_keys if contract else ():
            table.require_label(label)
        keep_empty_cells(table, scratch_dir)
    schema_path = options.schema
    if table is not None and schema_path is None:
        schema_path = write_schema(table, os.path.join(scratch_dir, "schema.pbtxt"))
    user_code = bundle_module_file(options.module_file, scratch_dir, may_define=may_define)
    custom_config = _custom_config(options, user_code)
    hyperparameters = texts.load_hyperparameters(options.hyperparameters)
    if not (options.examples or options.train) and _reads_examples(user_code):
        raise no_examples(options.named)

    with contextlib.nullcontext() if options.verbose else hidden_stderr():
        import tensorflow as tf

    try:
        output = os.path.join(scratch_dir, "runs") if options.dry_run else options.output
        splits = written_examples(options, table, os.path.join(scratch_dir, "examples"))
        request = TrainingRequest(
            schema_path=schema_path,
            user_code=user_code,
            hyperparameters=hyperparameters,
            contract=contract,
            train_files=splits.get("train", ()),
            eval_files=splits.get("eval", ()),
            split_files=splits,
            examples_format=ExamplesFormat(FORMAT_TF_EXAMPLE),
            scratch_dir=scratch_dir,
            train_steps=_DRY_STEPS if options.dry_run else options.train_steps,
            eval_steps=1 if options.dry_run else options.eval_steps,
            transform_graph_path=_existing("transform_graph", options),
            base_model=_existing("base_model", options),
            custom_config=custom_config,
            sign_with=options.sign_with,
            eval_config=texts.load_eval_config(_existing("eval_config", options)),
            **new_directories(output),  # last: a wrong option leaves no directories behind
        )
        if files:  # the report names these, not the examples that were made of them
            with recording(request.model_run_dir, "sources"):
                folder = os.path.join(scratch_dir, "examples", "Split-")
                note(sources={f"{folder}{name}": files.get(name) or files[""] for name in splits})
        return with_run_key(request, options.distribution.env)
    except tf.errors.OpError as error:  # an unknown scheme, a directory that is not writable
        raise errors.ConfigurationError(str(error.message)) from error


def _custom_config(options: argparse.Namespace, code: UserCode) -> Mapping[str, Any] | None:
    """Returns the mapping that is given, or that of a file; for a dry run of trials, a short one.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    config = options.custom_config
    name = options.named("custom_config")
    path = None
    if isinstance(config, str):
        path = config
        try:
            config = texts.parse_yaml(read_text(path))
        except (OSError, ValueError) as error:
            message = f"{name}: {path} cannot be read: {error}"
            raise errors.ConfigurationError(message, path=path) from error
    if config is not None and not isinstance(config, Mapping):
        message = f"{name}: {path or ''} must hold a mapping, found {texts.describe(config)}"
        raise errors.ConfigurationError(message, path=path)
    if options.dry_run and not defines_function(code, RUN_FN):
        config = dict(config or {})
        if isinstance(searcher := config.get("searcher"), Mapping):
            kept = {key: searcher[key] for key in _OF_ANY_SEARCHER if key in searcher}
            config["searcher"] = {**kept, "name": "single", "max_length": {"batches": _DRY_STEPS}}
    return config


def _reads_examples(code: UserCode) -> bool:
    """Whether a module of a `run_fn` or `trainer_fn` certainly reads the examples."""
    sources = read_bundle(code).files.values()
    is_api = any(defines_function(code, name) for name in (RUN_FN, "trainer_fn"))
    return is_api and any(b".train_files" in source for source in sources)


def new_directories(output: str) -> dict[str, Any]:
    """Makes `model/N` and `model_run/N` with the next N; concurrent runs get different ones."""
    import tensorflow as tf

    output, files = absolute(output), gfile()
    models, runs = os.path.join(output, "model"), os.path.join(output, "model_run")
    files.makedirs(models)
    files.makedirs(runs)
    # Also the number of a model whose log was deleted, and that of "7.failed/".
    names = (re.split("[./]", name)[0] for path in (models, runs) for name in files.listdir(path))
    last = max((int(name) for name in names if name.isdecimal()), default=0)
    for number in itertools.count(last + 1):
        model_run_dir = os.path.join(runs, str(number))
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            files.mkdir(model_run_dir)
            break
    model_dir = os.path.join(models, str(number))
    files.makedirs(model_dir)
    return {"model_dir": model_dir, "model_run_dir": model_run_dir}


def _existing(name: str, options: argparse.Namespace) -> str | None:
    path = getattr(options, name)
    if path is None:
        return None
    if not gfile().exists(path):
        raise errors.ConfigurationError(f"{options.named(name)}: {path} does not exist", path=path)
    return path
