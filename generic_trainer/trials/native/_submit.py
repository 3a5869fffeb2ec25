"""Submission of an experiment to a Ray cluster, as a job."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import checkpoint_storage_dir
from generic_trainer.trials.native._context_dir import command_in, existing_context_dir, pack
from generic_trainer.trials.native._loading import one_batch_config
from generic_trainer.trials.native._task import EXPERIMENT, PACKAGE, entrypoint

__all__ = ["submit_experiment"]

_DEFAULT_ADDRESS = "http://localhost:8265"

_logger = logging.getLogger(__name__)


def submit_experiment(
    config: Mapping[str, Any],
    test: bool,
    context_dir: str,
    command: Sequence[str] | None,
    master_url: str | None,
) -> str:
    """Sends the folder with the code to the cluster and has the script run there.

    1. The job's Python must have generic-trainer and TensorFlow.
    2. Results go below the configuration's `checkpoint_storage`, into a folder of the job's name:
       `model_run/trials.json`, checkpoints, and `Format-Serving` if there is a model to serve.
    3. `environment.environment_variables` are those of the job; `resources.ray` is passed on to
       Ray, such as ``{"entrypoint_num_gpus": 1}``.

    Args:
        config: the experiment configuration.
        test: whether one batch is enough.
        context_dir: the folder.
        command: the script in it and its arguments; by default the script that runs now.
        master_url: the cluster's address; by default that in the environment variable DET_MASTER.

    Returns:
        The job's name.

    Raises:
        InvalidExperimentException: the folder is empty or does not have the script.
        ValueError: the folder is too large.
        ConfigurationError: Ray is not installed, or does not answer.
    """
    folder = existing_context_dir(context_dir)
    script = command_in(folder, command)
    config = one_batch_config(config) if test else config
    name = f"experiment-{uuid.uuid4().hex[:12]}"
    experiment = {"config": config, "directory": os.path.join(checkpoint_storage_dir(config), name)}
    with tempfile.TemporaryDirectory(prefix="context-") as scratch:
        # As a zip, because Ray leaves out files by rules of its own.
        pack(folder, Path(scratch, PACKAGE))
        _connect(_address(master_url)).submit_job(
            entrypoint=entrypoint(script),
            submission_id=name,
            runtime_env={"working_dir": scratch, "env_vars": _environment(config, experiment)},
            metadata={"description": str(config.get("description", ""))},
            **((config.get("resources") or {}).get("ray") or {}),
        )
    _logger.info("Submitted %s; results go to %s", name, experiment["directory"])
    return name


def _environment(config: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, str]:
    variables = (config.get("environment") or {}).get("environment_variables") or []
    own = dict(variable.split("=", 1) for variable in variables)
    return {**own, EXPERIMENT: json.dumps(experiment)}


def _address(master_url: str | None) -> str:
    address = master_url or os.environ.get("DET_MASTER") or _DEFAULT_ADDRESS
    return address if is_remote(address) else f"http://{address}"


def _connect(address: str) -> Any:
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigurationError(
            "An experiment is sent to a cluster by Ray, which is not installed: run "
            '`pip install "generic-trainer[ray]"`, or pass local=True, test=True.'
        ) from error
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"No Ray cluster takes jobs at {address}: {error} Pass master_url, the address of its "
            "dashboard, or set the environment variable DET_MASTER."
        ) from error
