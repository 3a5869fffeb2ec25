"""An experiment as a Ray job: its submission, and what runs there by ``python -m``.

In the job the script is loaded anew for each trial; the trial loop is that of every other
experiment.
"""

import functools
import json
import logging
import os
import runpy
import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from generic_trainer._core.files import gfile, is_remote
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.trials._config import check_fields, directory_of
from generic_trainer.trials._run_fn import run_fn_from_trial
from generic_trainer.trials._scripts.loading import loaded_trial
from generic_trainer.trials._trial import Trial
from generic_trainer.trials.errors import InvalidExperimentException

# Environment variable of the job: JSON with the configuration and the directory for the results.
_EXPERIMENT = "GENERIC_TRAINER_EXPERIMENT"
_MODULE = "generic_trainer.trials._scripts.job"
_DEFAULT_ADDRESS = "http://localhost:8265"
_ALWAYS_IGNORED = ("__pycache__/", "*.py[co]")
_IGNORE_FILE = ".detignore"

_logger = logging.getLogger(__name__)


def submit(
    config: Mapping[str, Any],
    context_dir: str,
    command: Sequence[str] | None,
    master_url: str | None,
) -> str:
    """Sends the folder with the code to the cluster and has the script run there.

    1. `.detignore` in the folder names files that are not sent, in the syntax of .gitignore. The
       job's Python must have generic-trainer and TensorFlow.
    2. Results go below the configuration's `checkpoint_storage`, into a folder of the job's name:
       `model_run/trials.json`, checkpoints, and `Format-Serving` if there is a model to serve.
    3. `environment.environment_variables` are those of the job; `resources.ray` is passed on to
       Ray, such as ``{"entrypoint_num_gpus": 1}``.

    Returns:
        The job's name.

    Raises:
        InvalidExperimentException: the folder is empty or does not have the script.
        ValueError: the folder is too large for Ray.
        ConfigurationError: Ray is not installed, or does not answer.
    """
    folder = existing_context_dir(context_dir)
    script = _command_in(folder, command)
    name, directory = new_results(config, "experiment")
    checked = check_fields(config)
    options = checked.resources.ray
    kinds = ("gpu", "cuda", "rocm") if options.get("entrypoint_num_gpus") else ("cpu",)
    variables: Any = checked.environment.environment_variables
    if isinstance(variables, Mapping):
        variables = [each for kind in kinds for each in variables.get(kind) or ()]
    own = {_EXPERIMENT: json.dumps({"config": config, "directory": directory})}
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")  # as in Determined
    ignored = folder / _IGNORE_FILE
    patterns = ignored.read_text("utf-8").splitlines() if ignored.is_file() else []
    _connect(master_url or os.environ.get("DET_MASTER") or _DEFAULT_ADDRESS).submit_job(
        entrypoint=shlex.join(["python", "-m", _MODULE, *script]),
        submission_id=name,
        runtime_env={
            "working_dir": str(folder),
            "excludes": [*_ALWAYS_IGNORED, *patterns],
            "env_vars": {**dict(variable.split("=", 1) for variable in variables), **own},
        },
        metadata={"description": str(config.get("description", ""))},
        **options,
    )
    _logger.info("Submitted %s; results go to %s", name, directory)
    return name


def new_results(config: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """Returns a new name, and the directory of this name below the `checkpoint_storage`."""
    name = f"{kind}-{uuid.uuid4().hex[:12]}"
    return name, os.path.join(directory_of(config, "checkpoint_storage"), name)


def _connect(address: str) -> Any:
    address = address if is_remote(address) else f"http://{address}"
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigurationError(
            "An experiment is sent to a cluster by Ray, which is not installed: run "
            "`pip install 'ray[train]' aiohttp`, or pass local=True, test=True."
        ) from error
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"No Ray cluster takes jobs at {address}: {error} Pass master_url, the address of its "
            "dashboard, or set the environment variable DET_MASTER."
        ) from error


def existing_context_dir(context_dir: str) -> Path:
    """Returns the folder with the user's code; raises `InvalidExperimentException` without it."""
    folder = Path(context_dir).resolve()
    if not context_dir or not folder.is_dir():
        raise InvalidExperimentException(
            f"context_dir must be the folder with your code, which is sent to the cluster, but got "
            f"{context_dir!r}"
        )
    return folder


def _command_in(context_dir: Path, command: Sequence[str] | None) -> list[str]:
    """Returns the script, relative to the folder, and its arguments."""
    # In a notebook, whose `argv` is that of IPython, there is no script to send without a command.
    name, *arguments = command or [os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    script = context_dir / name  # an absolute path stays as it is
    script = script.parent.resolve() / script.name
    if not (script.is_file() and script.is_relative_to(context_dir)):
        raise InvalidExperimentException(
            f"The script {name} is not in the context directory {context_dir}, which is all "
            'that is sent to the cluster. Pass its context_dir, or command=["train.py"].'
        )
    return [script.relative_to(context_dir).as_posix(), *arguments]


def run_experiment(command: Sequence[str], config: Mapping[str, Any], directory: str) -> None:
    """Runs the experiment of a script; one that was interrupted in `directory` goes on.

    Raises:
        ModuleFileError: the script trains nothing.
    """
    main = functools.partial(runpy.run_path, command[0], run_name="__main__")
    run_trials(loaded_trial(main, command), config, directory)


def run_trials(trial_class: type[Trial], config: Mapping[str, Any], directory: str) -> None:
    """Runs the experiment of a trial class; its results go into `directory`."""
    fn_args = SimpleNamespace(
        custom_config=dict(config),
        hyperparameters=None,
        schema_path=None,
        transform_graph_path=None,
        model_run_dir=os.path.join(directory, "model_run"),
        checkpoint_dir=os.path.join(directory, "checkpoints"),
        serving_model_dir=os.path.join(directory, "Format-Serving"),
    )
    gfile().makedirs(fn_args.model_run_dir)
    try:
        run_fn_from_trial(trial_class)(fn_args)
    except ExportError as error:  # a script need not have anything to serve
        _logger.warning("The experiment is finished; no model is exported: %s", error)


if __name__ == "__main__":  # in the folder that Ray has unpacked
    logging.basicConfig(level=logging.INFO)
    sys.path.insert(0, os.getcwd())
    run_experiment(sys.argv[1:], **json.loads(os.environ[_EXPERIMENT]))
