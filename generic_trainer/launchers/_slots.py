"""Slots of trials: the number of workers that a configuration of Determined asks for.

Users have `resources.slots_per_trial`, the workers of a trial, in their `custom_config`. It is read
before the user's module, because the module is imported on the workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.files import absolute, read_text
from generic_trainer._core.machine import available_cpus, visible_gpus
from generic_trainer._core.texts import parse_yaml
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._job import Job

_logger = logging.getLogger(__name__)


def with_a_worker_for_each_slot(job: Job) -> Job:
    """Returns a job with a worker for each slot that its `custom_config` asks for.

    1. This applies if a launcher starts workers and `num_workers` is 1, the default.
    2. A worker with at least as many GPUs as slots trains alone.
    3. A machine with fewer processors than slots trains with one worker on whole batches, as in
       process.
    """
    wanted, config = job.distribution, _config(job.request.custom_config or {})
    resources = config.get("resources")
    slots = resources.get("slots_per_trial") if isinstance(resources, Mapping) else None
    starts_others = wanted.launcher != "in_process" and not wanted.parameter_servers
    # The check of the configuration reports other values.
    if not isinstance(slots, int) or slots < 2 or wanted.max_workers > 1 or not starts_others:
        return job
    if _fits_one(wanted, slots):
        return job
    _logger.info("resources.slots_per_trial: training with %d workers", slots)
    return dataclasses.replace(job, distribution=dataclasses.replace(wanted, num_workers=slots))


def _config(custom_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration, if necessary from the YAML file with its absolute path."""
    config = custom_config.get("experiment_config", custom_config)
    if isinstance(config, str) and absolute(config) == config:
        with contextlib.suppress(OSError, ValueError):  # which the trial reports
            config = parse_yaml(read_text(config))
    return config if isinstance(config, Mapping) else {}


def _fits_one(wanted: Distribution, slots: int) -> bool:
    if wanted.gpus_per_worker is not None:
        return wanted.gpus_per_worker >= slots
    if wanted.launcher != "local":
        return False
    return len(visible_gpus()) >= slots or len(available_cpus()) < slots
