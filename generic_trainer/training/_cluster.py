"""Who this process is in a training cluster, read from `TF_CONFIG`."""

from __future__ import annotations

import json
import os
from typing import Any

from generic_trainer.errors import ConfigurationError

__all__ = ["is_chief", "is_one_of_several", "task", "tf_config"]

_TF_CONFIG = "TF_CONFIG"
_TRAINS = ("chief", "master", "worker")


def is_chief() -> bool:
    """Whether this process is the one that exports the model.

    Follows `tf.distribute.cluster_resolver.TFConfigClusterResolver`:

    1. Without `TF_CONFIG`, or with one that names no cluster, the process is alone and the chief.
    2. The task of type `chief` is the chief, and so is `master`, its name before TF 2.0.
    3. In a cluster with neither, worker 0 is.

    Raises:
        ConfigurationError: `TF_CONFIG` is not JSON, or it names a cluster and no task in it.
    """
    config = tf_config()
    cluster = config.get("cluster")
    if not cluster:
        return True
    task_type, task_index = task(config)
    if task_type in ("chief", "master"):
        return task_index == 0
    return task_type == "worker" and task_index == 0 and not {"chief", "master"} & cluster.keys()


def is_one_of_several() -> bool:
    """Whether several processes train the same model, each with its share of the data."""
    cluster = tf_config().get("cluster") or {}
    return not cluster.get("ps") and sum(len(cluster.get(name, ())) for name in _TRAINS) > 1


def tf_config() -> dict[str, Any]:
    """Returns `TF_CONFIG`; empty when there is none.

    Raises:
        ConfigurationError: it is not a JSON object.
    """
    text = os.environ.get(_TF_CONFIG) or "{}"
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{_TF_CONFIG} in the environment must be JSON, but got {text!r} ({error})."
        ) from error
    if not isinstance(config, dict):
        raise ConfigurationError(
            f"{_TF_CONFIG} in the environment must be a JSON object, but got {text!r}."
        )
    return config


def task(config: dict[str, Any]) -> tuple[str, int]:
    """Returns the type and the index of this process.

    Raises:
        ConfigurationError: `config` names no task.
    """
    task = config.get("task") or {}
    try:
        return str(task["type"]), int(task["index"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f'{_TF_CONFIG} names a cluster, so it must also name this process as "task": '
            f'{{"type": ..., "index": ...}}, but got {config.get("task")!r}.'
        ) from error
