"""Slots of trials: as many workers as the configuration asks for, where nothing else says so.

`resources.slots_per_trial` is Determined's name for those of a trial, which users have in their
`custom_config`, and `searcher.max_concurrent_trials` says how many trials train side by side. They
are read before the user's module is, as they decide on where that is run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.files import absolute, read_text
from generic_trainer._core.machine import MIB, available_cpus, free_memory_bytes, visible_gpus
from generic_trainer._core.texts import parse_yaml
from generic_trainer.launchers import Distribution, Job

# Of a worker of which nobody says how much it takes.
_MEMORY_MB = 2048

_logger = logging.getLogger(__name__)


def with_a_worker_for_each_slot(job: Job) -> Job:
    """Returns a job with a worker for each slot that its `custom_config` asks for.

    1. That is so where a launcher starts workers, and one was asked for, which is the default.
    2. Side by side train as many trials as are asked for and as this machine has GPUs, or without
       any processors and memory, for; on Ray as many as there is room for. In pods it is
       `num_workers` that says how many there are.
    3. Slots of the only trial are the GPUs of one worker where that has as many.
    4. A machine with fewer processors than slots trains on one, and whole batches, as in process.
    """
    wanted, config = job.distribution, _config(job.request.custom_config or {})
    slots = _number(config, "resources", "slots_per_trial") or 1
    starts_others = wanted.launcher != "in_process" and not wanted.parameter_servers
    if wanted.max_workers > 1 or not starts_others:
        return job
    trials = _at_once(config)
    if trials > 1 and wanted.launcher == "local":  # to ask for GPUs takes a program
        trials = min(trials, _room(wanted) // slots)
    if trials > 1 and wanted.launcher in ("local", "ray"):
        _logger.info("max_concurrent_trials: %d trials train side by side, or fewer", trials)
        most = trials * slots
        number: int | tuple[int, int] = (slots, most) if wanted.launcher == "ray" else most
    elif slots > 1 and not _fits_one(wanted, slots):
        _logger.info("resources.slots_per_trial is %d: so many workers train", slots)
        number = slots
    else:
        return job
    return dataclasses.replace(job, distribution=dataclasses.replace(wanted, num_workers=number))


def _config(custom_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration, or what the YAML file has that it names by its whole path."""
    config = custom_config.get("experiment_config", custom_config)
    if isinstance(config, str) and absolute(config) == config:
        with contextlib.suppress(OSError, ValueError):  # which the trial tells
            config = parse_yaml(read_text(config))
    return config if isinstance(config, Mapping) else {}


def _at_once(config: Mapping[str, Any]) -> int:
    """Returns how many trials are to train side by side; 1 where nobody asks for more."""
    searcher = config.get("searcher")
    if not isinstance(searcher, Mapping) or searcher.get("max_concurrent_trials") is None:
        return 1
    most = [
        _number(config, "searcher", name)
        for name in ("max_concurrent_trials", "max_trials", "population_size")
    ]
    return min(filter(None, most), default=1)  # 0 is as many as there are


def _number(config: Mapping[str, Any], section: str, name: str) -> int:
    """Returns a number; 0 for what is none, as those find out who check the configuration."""
    fields = config.get(section)
    value = fields.get(name) if isinstance(fields, Mapping) else None
    return value if isinstance(value, int) and value > 0 else 0


def _room(wanted: Distribution) -> int:
    """Returns how many workers this machine has room for."""
    gpus = len(visible_gpus()) if wanted.gpus_per_worker != 0 else 0
    if gpus:
        return int(gpus // (wanted.gpus_per_worker or 1))
    memory_mb = free_memory_bytes() // MIB
    by_memory = memory_mb // (wanted.memory_mb_per_worker or _MEMORY_MB)
    return int(min(by_memory, len(available_cpus()) // (wanted.cpus_per_worker or 1)))


def _fits_one(wanted: Distribution, slots: int) -> bool:
    if wanted.gpus_per_worker is not None:
        return wanted.gpus_per_worker >= slots
    if wanted.launcher != "local":
        return False
    return len(visible_gpus()) >= slots or len(available_cpus()) < slots
