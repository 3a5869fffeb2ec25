"""Slots of a trial: as many workers as its configuration asks for, where nothing else says so.

`resources.slots_per_trial` is Determined's name for it, which users have in their `custom_config`.
It is read before the user's module is, as it decides on where that is run.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from generic_trainer._core.machine import available_cpus, visible_gpus
from generic_trainer.launchers import Distribution, Job

_logger = logging.getLogger(__name__)


def with_a_worker_for_each_slot(job: Job) -> Job:
    """Returns a job with a worker for each slot that its `custom_config` asks for.

    1. That is so where a launcher starts workers, and one was asked for, which is the default.
    2. Slots are the GPUs of one worker where that has as many.
    3. A machine with fewer processors than slots trains on one, and whole batches, as in process.
    """
    wanted, slots = job.distribution, _slots(job.request.custom_config)
    starts_others = wanted.launcher != "in_process" and not wanted.parameter_servers
    if slots < 2 or wanted.max_workers > 1 or not starts_others or _fits_one(wanted, slots):
        return job
    _logger.info("resources.slots_per_trial is %d: so many workers train", slots)
    distribution = dataclasses.replace(wanted, num_workers=slots)
    return dataclasses.replace(job, distribution=distribution)


def _slots(custom_config: Mapping[str, object] | None) -> int:
    resources = (custom_config or {}).get("resources")
    slots = resources.get("slots_per_trial") if isinstance(resources, Mapping) else None
    return slots if isinstance(slots, int) else 1


def _fits_one(wanted: Distribution, slots: int) -> bool:
    if wanted.gpus_per_worker is not None:
        return wanted.gpus_per_worker >= slots
    if wanted.launcher != "local":
        return False
    return len(visible_gpus()) >= slots or len(available_cpus()) < slots
