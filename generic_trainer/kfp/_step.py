"""The step in its container: from KFP's artifacts to `generic-trainer run`, and back."""

import base64
import io
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.files import copy_tree, gfile
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.texts import tuner_config
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer._run.live_view import REPORT_FILE
from generic_trainer.cli import outcome_of_run
from generic_trainer.errors import DataError

_SUFFIX = ".csv"


def run_step(
    *,
    module: str,
    user_code: str,
    run_root: str,
    model: Any,
    metrics: Any,
    report: Any,
    run: Any,
    **inputs: Any,
) -> None:
    """Trains, and fills the output artifacts.

    Args:
        module: name of the user's module.
        user_code: the zip with it, in base64.
        run_root: directory of the runs; "": one that is deleted.
        model: an output, as the following.
        metrics: the last losses, metrics and scalars of TensorBoard.
        report: the report as HTML.
        run: log, report and progress.
        **inputs: artifacts and parameters of `generic-trainer run`; None or 0 if not given.

    Raises:
        ConfigurationError: wrong parameters.
        SystemExit: the run failed, with the exit status of `generic-trainer run`.
    """
    with ScratchFolder("kfp-") as folder:
        code = os.path.join(folder, "code")
        zipfile.ZipFile(io.BytesIO(base64.b64decode(user_code))).extractall(code)
        words = [os.path.join(code, f"{module}.py")]
        words += ["--output", run_root or os.path.join(folder, "runs")]
        for option, value in _options(folder, **inputs).items():
            words += [f"--{option.replace('_', '-')}", value]
        outcome = outcome_of_run(words)
        failed = outcome["exit_status"] != 0
        run_dir = outcome.get("model_run", "")
        if failed and gfile().exists(f"{run_dir}.failed"):
            run_dir += ".failed"
        if gfile().exists(run_dir):
            copy_tree(run_dir, run.path)
            if os.path.exists(page := os.path.join(run.path, REPORT_FILE)):
                shutil.copyfile(page, report.path)
        if failed:
            print(outcome["error"], file=sys.stderr)
            sys.exit(outcome["exit_status"])
        for name, last in outcome["metrics"].items():
            metrics.log_metric(name, last)
        published = os.path.join(outcome["model"], SERVING_MODEL_DIR)
        copy_tree(published, model.path)
        model.metadata.update(_facts(outcome["report"]), framework="TensorFlow")


def _options(
    folder: str,
    examples: Any,
    schema: Any,
    hyperparameters: Mapping[str, Any] | str | None,
    custom_config: Mapping[str, Any] | str | None,
    contract: str | None,
    **others: Any,
) -> dict[str, str]:
    """Returns option → word of `generic-trainer run`, with files of its own in a folder."""
    options = _examples(examples.path, folder)
    if schema is not None:
        inside = os.path.join(schema.path, "schema.pbtxt")
        options["schema"] = inside if os.path.isdir(schema.path) else schema.path
    values = json.loads(hyperparameters) if isinstance(hyperparameters, str) else hyperparameters
    config = json.dumps(tuner_config(values)) if values else None
    files = {"hyperparameters": config, "contract": contract}
    for name, text in files.items():
        if text:
            options[name] = os.path.join(folder, f"{name}.json")
            with open(options[name], "w", encoding="utf-8") as file:
                file.write(text)
    if custom_config is not None:
        options["custom_config"] = (
            custom_config if isinstance(custom_config, str) else json.dumps(custom_config)
        )
    given = {name: getattr(value, "path", value) for name, value in others.items()}
    return options | {name: str(value) for name, value in given.items() if value}


def _examples(path: str, folder: str) -> dict[str, str]:
    """Returns the options for an artifact of examples.

    Raises:
        DataError: it is neither CSV nor the output of an ExampleGen.
    """
    if os.path.isfile(path):
        if path.endswith(_SUFFIX):
            return {"examples": path}
        csv = os.path.join(folder, f"examples{_SUFFIX}")  # KFP's paths have no suffixes
        os.symlink(os.path.abspath(path), csv)
        return {"examples": csv}
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    tables = [name for name in names if name.endswith(_SUFFIX)]
    if {"train.csv", "eval.csv"} == set(tables):
        return {split: os.path.join(path, f"{split}{_SUFFIX}") for split in ("train", "eval")}
    if len(tables) == 1:
        return {"examples": os.path.join(path, tables[0])}
    if any(name.startswith("Split-") for name in names):
        return {"examples": path}
    raise DataError(
        f"examples: expected a CSV file, a directory with one or with train.csv and eval.csv, or "
        f"one with Split-train and Split-eval, found {names[:12] or 'nothing'} in {path}",
        path=path,
    )


def _facts(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of the report and the manifest that are numbers or words."""
    facts = {k: v for k, v in report["facts"].items() if isinstance(v, (bool, int, float, str))}
    outcomes = [result["status"] for result in report["results"]]
    return facts | {
        f"checks_{status}": outcomes.count(status) for status in ("pass", "warn", "skip")
    }
