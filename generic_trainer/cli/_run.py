"""`generic-trainer run`: training and publishing with a module file, without a pipeline."""

import argparse
import contextlib
import dataclasses
import glob
import itertools
import json
import logging
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from generic_trainer import errors
from generic_trainer._core import texts
from generic_trainer._core.files import absolute, file_errors_as, gfile, is_remote, write_whole
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.tfx_names import FORMAT_TF_EXAMPLE
from generic_trainer._entry_points import may_define
from generic_trainer._run.store import with_run_key
from generic_trainer.cli._csv import (
    SUFFIX,
    Table,
    empty_label,
    read_csv,
    types_of_schema,
    write_examples,
    write_schema,
)
from generic_trainer.cli._options import add_command, require_files
from generic_trainer.executors import FN_ARGS_FACTORY
from generic_trainer.launchers import Distribution, ExamplesFormat, Job, TrainingRequest, exit_code
from generic_trainer.tracking import parse_trackings
from generic_trainer.user_code import bundle_module_file
from generic_trainer.validation import ServingContract

_SPLIT = "Split-"
_DRY_STEPS, _DRY_EXAMPLES = 2, 10
_EMPTY_CELLS = "empty_cells.json"  # in the scratch directory: column → text, for a CSV file
_FILES = "schema", "transform_graph", "base_model", "hyperparameters", "contract", "eval_config"


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    add_command(
        commands,
        _run,
        train_steps={"type": int},
        eval_steps={"type": int},
        tracking={"action": "append", "default": []},
    )


def _run(options: argparse.Namespace) -> int:
    """Train with a module file, without a pipeline, and publish the model.

    Trains with run_fn of a module file, or with its trial or trainer_fn, checks the export and
    publishes it as OUTPUT/model/N/Format-Serving; log and report are in OUTPUT/model_run/N. The
    same command continues a run that was killed. Exit status: 1 wrong user code, 2 wrong call or
    data, 74 full disk, 126 the export fails its checks, 127 hang, 128 out of memory, 143 lost
    worker.

    Options:
        module_file MODULE_FILE: Python file with run_fn, trainer_fn or a trial
        --output DIR: directory of models and logs
        --dry-run: train two steps on ten examples of each split, export and check, and keep nothing
        --json: print the outcome as one line of JSON, the last line
        --verbose: also show what TensorFlow's C++ code says below the level of errors
        --examples DIR: output of an ExampleGen or Transform: Split-*/; or a .csv file, of which a
            third of the rows is for evaluation, chosen by a hash of the row as in CsvExampleGen
        --train GLOB: TFRecords of tf.Examples to train on, or a .csv file
        --eval GLOB: TFRecords of tf.Examples to evaluate on, or a .csv file
        --train-steps N: fn_args.train_steps; default: one pass
        --eval-steps N: fn_args.eval_steps; default: one pass
        --label FEATURE: feature that the model predicts, and that is absent when it serves: the
            report compares predictions with it
        --schema FILE: schema.pbtxt of the examples; that of a .csv file is inferred, and one that
            is given decides which columns are numbers
        --transform-graph DIR: output of Transform: transform_fn/
        --base-model DIR: SavedModel to start from, and to compare with
        --hyperparameters FILE: best_hyperparameters.txt of a Tuner
        --custom-config JSON: fn_args.custom_config
        --contract FILE: YAML or JSON file of a ServingContract
        --eval-config FILE: the Evaluator's tfma.EvalConfig
        --distribution JSON: such as '{"launcher": "local", "num_workers": 2}'
        --tracking TRACKER[:URI]: such as mlflow:http://host:5000, or JSON of a Tracking; may be
            given several times
        --sign-with FILE: private key that signs the model, for `generic-trainer verify`
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    outcome = train(options)
    if outcome["error"]:
        print(f"generic-trainer run: {outcome['error']}", file=sys.stderr)
    if options.json:
        print(json.dumps(outcome))
    return int(outcome["exit_status"])


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Trains as `_run` does.

    Returns:
        `exit_status`, `error`, and where they exist `model`, `model_run` and `report`, as a dict.

    Raises:
        ConfigurationError: the options are wrong.
    """
    # Wrong options are reported at once, before TensorFlow is imported.
    try:
        distribution = Distribution.from_json(options.distribution or "{}")
    except errors.ConfigurationError as error:
        raise errors.ConfigurationError(f"--distribution: {error}") from error
    trackings = parse_trackings(options.tracking)
    _check_options(options)

    outcome: dict[str, Any] = {"exit_status": 0, "error": None}
    empty_cells: dict[str, str] = {}
    try:
        with (
            file_errors_as(errors.TrainingError, "The run failed on a file or directory"),
            ScratchFolder("run-") as scratch_dir,
        ):
            request = _request(options, distribution, scratch_dir)
            empty_cells = _empty_cells(scratch_dir)
            if not options.dry_run:
                outcome |= {"model": request.model_dir, "model_run": request.model_run_dir}
            from generic_trainer._run.run import train_and_publish

            job = Job(
                request=request,
                distribution=distribution,
                fn_args_factory=f"{__name__}:make_fn_args",
            )
            report = train_and_publish(job, () if options.dry_run else trackings)
            if report is not None:
                outcome["report"] = json.loads(report.to_json())
            if report is not None and options.dry_run:
                verdict = report.summary().replace(report.model_dir, "The export", 1)
                print(f"{verdict}. A dry run keeps no files.", file=sys.stderr)
    except errors.ConfigurationError:
        raise
    except errors.GenericTrainerError as error:
        outcome |= {"exit_status": exit_code(error), "error": str(error)}
        outcome["error"] += _sparse_columns(f"{error} {error.__cause__}", empty_cells)
    return outcome


def _check_options(options: argparse.Namespace) -> None:
    problems = []
    if not options.output and not options.dry_run:
        problems.append("give --output, or --dry-run")
    for name in ("output", "base_model", "transform_graph"):
        if (path := getattr(options, name)) and os.path.isfile(path):
            problems.append(f"{_option(name)}: {path} is a file, expected a directory")
    if bool(options.examples) == bool(options.train or options.eval):
        problems.append("give either --examples, or --train and --eval")
    elif not options.examples and not (options.train and options.eval):
        problems.append("--train and --eval go together")
    for name in ("train_steps", "eval_steps"):
        if (steps := getattr(options, name)) is not None and steps < 1:
            problems.append(f"{_option(name)} must be at least 1, got {steps}")
    try:
        texts.parse_json_object(options.custom_config or "null")
    except ValueError as error:
        problems.append(f"--custom-config must be a JSON object, but {error}")
    errors.raise_problems(errors.ConfigurationError, "wrong options", problems)
    files = {name: getattr(options, name) for name in (*_FILES, "sign_with")}
    csv_files = {split or "examples": path for split, path in _csv_files(options).items()}
    require_files(MODULE_FILE=options.module_file, **files, **csv_files)
    given = filter(None, (options.examples, options.train, options.eval))
    if not csv_files and not any(map(is_remote, given)):
        _splits(options)


def _request(
    options: argparse.Namespace, distribution: Distribution, scratch_dir: str
) -> TrainingRequest:
    """Returns the request, with examples and schema of CSV files written to the scratch folder.

    The first part checks everything that can be checked without importing TensorFlow.
    """
    schema = texts.load_schema(options.schema)  # otherwise only the export would fail
    contract = ServingContract.from_yaml(options.contract) if options.contract else None
    if options.label:
        contract = contract or ServingContract(signatures=())
        contract = dataclasses.replace(contract, label_keys=(options.label,))
    files = _csv_files(options)
    table = read_csv(files, types_of_schema(schema)) if files else None
    if table is not None:
        for label in contract.label_keys if contract else ():
            table.require_label(label)
        cells = {name: str(empty) for name, empty in table.empty.items()}
        write_whole(os.path.join(scratch_dir, _EMPTY_CELLS), json.dumps(cells))
    schema_path = options.schema and absolute(options.schema)
    if table is not None and schema_path is None:
        schema_path = write_schema(table, os.path.join(scratch_dir, "schema.pbtxt"))
    user_code = bundle_module_file(options.module_file, scratch_dir, may_define=may_define)
    hyperparameters = texts.load_hyperparameters(options.hyperparameters)

    # Hide what TensorFlow's C++ code and Google's clients say: nobody can act on it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if options.verbose else "2")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.")
    with contextlib.nullcontext() if options.verbose else _hidden_stderr():
        import tensorflow as tf

    try:
        output = os.path.join(scratch_dir, "runs") if options.dry_run else options.output
        splits = _written_examples(options, table, os.path.join(scratch_dir, "examples"))
        request = TrainingRequest(
            schema_path=schema_path,
            user_code=user_code,
            hyperparameters=hyperparameters,
            contract=contract,
            train_files=splits["train"],
            eval_files=splits["eval"],
            split_files=splits,
            examples_format=ExamplesFormat(FORMAT_TF_EXAMPLE),
            scratch_dir=scratch_dir,
            train_steps=_DRY_STEPS if options.dry_run else options.train_steps,
            eval_steps=1 if options.dry_run else options.eval_steps,
            transform_graph_path=_existing("transform_graph", options),
            base_model=_existing("base_model", options),
            custom_config=texts.parse_json(options.custom_config or "null"),
            sign_with=options.sign_with and absolute(options.sign_with),
            eval_config=texts.load_eval_config(_existing("eval_config", options)),
            **new_directories(output),  # last: a wrong option leaves no directories behind
        )
        return with_run_key(request, distribution.env)
    except tf.errors.OpError as error:  # an unknown scheme, a directory that is not writable
        raise errors.ConfigurationError(str(error.message)) from error


@contextlib.contextmanager
def _hidden_stderr() -> Iterator[None]:
    """Hides what TensorFlow's libraries say while they load, at any log level.

    TensorFlow 2.16 prints errors as it registers CUDA's factories twice, and 2.21 logs before it
    reads its log level.
    """
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _written_examples(
    options: argparse.Namespace, table: Table | None, folder: str
) -> dict[str, tuple[str, ...]]:
    """Returns split → file patterns, of new files for CSV files and for a dry run."""
    if table is not None:
        return write_examples(table, folder, _DRY_EXAMPLES if options.dry_run else None)
    splits = _splits(options)
    if not options.dry_run:
        return splits
    return {
        split: (_copy_records(pattern, os.path.join(folder, split), _DRY_EXAMPLES),)
        for split, (pattern,) in splits.items()
    }


def _copy_records(source: str, folder: str, count: int) -> str:
    """Writes the first records of TFRecord files into one with the name of the first of them.

    Args:
        source: a glob, whose files may be compressed; the copy is compressed if its name ends so.
        folder: the target; it is created.
        count: the number of records.

    Returns:
        The path of the copy.

    Raises:
        DataError: no file matches, or one is not a TFRecord file.
    """
    import tensorflow as tf

    from generic_trainer._core.records import read_records

    records = read_records(source, count)
    first = min(path for path in gfile().glob(source) if not gfile().isdir(path))
    path = f"{folder}/{first.rpartition('/')[2]}"
    gfile().makedirs(folder)
    with tf.io.TFRecordWriter(path, "GZIP" if path.endswith(".gz") else "") as writer:
        for record in records:
            writer.write(record)
    return path


def _csv_files(options: argparse.Namespace) -> dict[str, str]:
    """Returns split → CSV file, `""` for one that holds both; {} if the examples are TFRecords."""
    given = {"": options.examples, "train": options.train, "eval": options.eval}
    files = {split: path for split, path in given.items() if path}
    csv_files = [path for path in files.values() if path.endswith(SUFFIX)]
    if csv_files and len(csv_files) < len(files):
        raise errors.ConfigurationError(
            f"--train and --eval: expected both to be {SUFFIX} files or neither, but one is "
            f"{csv_files[0]}"
        )
    return files if csv_files else {}


def _splits(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Returns split → file patterns, of which each matches a file."""
    splits: dict[str, tuple[str, ...]]
    if options.examples:
        folders = _matching(os.path.join(_pattern(options.examples), f"{_SPLIT}*"))
        splits = {
            os.path.basename(folder).removeprefix(_SPLIT): (os.path.join(_pattern(folder), "*"),)
            for folder in folders
        }
        if missing := [f"{_SPLIT}{name}" for name in ("train", "eval") if name not in splits]:
            raise errors.ConfigurationError(
                f"--examples: {options.examples} has no {' and no '.join(missing)}; "
                f"found {sorted(splits) or 'no splits'}. Name the files with --train and --eval.",
                path=options.examples,
            )
    else:
        splits = {"train": (_pattern(options.train),), "eval": (_pattern(options.eval),)}
    empty = [pattern for (pattern,) in splits.values() if not _matching(pattern)]
    if empty:
        raise errors.ConfigurationError(f"no file matches {', '.join(empty)}")
    return splits


def _empty_cells(scratch_dir: str) -> dict[str, str]:
    """Returns column → its empty cells in words, of the columns of a CSV file that have some."""
    try:
        with open(os.path.join(scratch_dir, _EMPTY_CELLS), encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:  # the examples are not a CSV file, or this is another machine
        return {}


def _sparse_columns(error: str, empty_cells: Mapping[str, str]) -> str:
    """Returns the remedy for a module that does not expect empty cells; or "".

    Errors of TensorFlow and Keras have no field for the kind of tensor: only their texts have it.
    """
    if not empty_cells or "sparse" not in error.lower():
        return ""
    listed = "; ".join(f"{name!r}, in which {cells}" for name, cells in empty_cells.items())
    return (
        f"\nA column with empty cells is read as a tf.SparseTensor: {listed}. Two lines make such "
        "a column x dense, with 0 or an empty string in its empty cells:\n"
        "    x = tf.SparseTensor(x.indices, x.values, [x.dense_shape[0], 1])\n"
        '    x = tf.sparse.to_dense(x, default_value="" if x.dtype == tf.string else 0)'
    )


def _pattern(path: str) -> str:
    """Returns the absolute path as a pattern; brackets in an existing one stand for themselves."""
    return glob.escape(absolute(path)) if os.path.exists(path) else absolute(path)


def _matching(pattern: str) -> list[str]:
    return gfile().glob(pattern) if is_remote(pattern) else glob.glob(pattern)


def new_directories(output: str) -> dict[str, Any]:
    """Makes `model/N` and `model_run/N` with the next N; concurrent runs get different ones."""
    import tensorflow as tf

    output, files = absolute(output), gfile()
    models, runs = os.path.join(output, "model"), os.path.join(output, "model_run")
    files.makedirs(models)
    files.makedirs(runs)
    # Also the number of a model whose log was deleted, and that of "7.failed/".
    names = (re.split("[./]", name)[0] for each in (models, runs) for name in files.listdir(each))
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
        raise errors.ConfigurationError(f"{_option(name)}: {path} does not exist", path=path)
    return absolute(path)  # for workers with another working directory


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def make_fn_args(request: TrainingRequest, export_dir: str) -> Any:
    """Builds the argument as the executor does; steps that are not given become one pass.

    A run without `--train-steps` would otherwise never end, because datasets repeat by default. The
    number of batches follows from the batch size, so `train_steps` and `eval_steps` are set when
    `run_fn` makes an endless dataset of the files of the split; of several, the one with the
    smallest batches counts: a dataset for `adapt`, for example, may have larger ones.
    """
    fn_args = pkgutil.resolve_name(FN_ARGS_FACTORY)(request, export_dir)
    accessor = fn_args.data_accessor
    empty_cells = _empty_cells(request.scratch_dir)
    passes: dict[str, int] = {}  # name of the field → the steps that are set here

    def make_dataset(file_pattern: Any, options: Any, schema: Any) -> Any:
        if options.label_key in empty_cells:
            raise empty_label(options.label_key, empty_cells[options.label_key])
        dataset = accessor.tf_dataset_factory(file_pattern, options, schema)
        counts = fn_args.num_examples or {}
        for split, files in (("train", fn_args.train_files), ("eval", fn_args.eval_files)):
            name = f"{split}_steps"
            is_open = getattr(fn_args, name) in (None, passes.get(name))
            if is_open and options.num_epochs is None and file_pattern == files:
                steps = -(-counts[split] // options.batch_size)
                passes[name] = max(steps, passes.get(name, 0))
                setattr(fn_args, name, passes[name])
        return dataset

    fn_args.data_accessor = accessor._replace(tf_dataset_factory=make_dataset)
    return fn_args
