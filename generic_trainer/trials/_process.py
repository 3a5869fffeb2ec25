"""The process that a trial runs in: its random generators, its devices, its code."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import gfile
from generic_trainer.training import distributed, get_strategy
from generic_trainer.trials._trial import HorovodContext, TrialRun
from generic_trainer.user_code import imported_files

_logger = logging.getLogger(__name__)


def seed_generators(seed: int) -> None:
    """Sets Python's, NumPy's and TensorFlow's, before any of the trial's code runs."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)


def fit_to_devices(
    run: TrialRun, *, is_graph: bool = False
) -> tuple[TrialRun, tf.distribute.Strategy]:
    """Returns the trial with the slots that this machine has, and the strategy to train it in.

    1. In a cluster of workers each of them is a slot, whatever the configuration says.
    2. Several slots of one process are GPUs, or logical CPU devices, under `MirroredStrategy`.
    3. Where there are too few, it is one slot, which trains on whole global batches: slower, and
       the same steps. So it is where a graph of TensorFlow 1 (`is_graph`) makes a step of several
       batches: several devices of a process cannot reduce gradients now and then.
    """
    workers = distributed.size()
    if workers > 1:
        strategy = get_strategy()  # before anything else of TensorFlow
        slots = max(strategy.num_replicas_in_sync, workers)
        if run.slots not in (1, slots):
            _logger.warning(
                "resources.slots_per_trial is %d; the trial has %d slots, one for each worker",
                run.slots,
                slots,
            )
        return dataclasses.replace(run, slots=slots, workers=workers), strategy
    if run.slots < 2:
        return run, tf.distribute.get_strategy()
    is_alone = is_graph and HorovodContext.of(run).aggregation_frequency > 1
    for kind in () if is_alone else ("GPU", "CPU"):
        devices = [device.name for device in tf.config.list_logical_devices(kind)]
        if len(devices) >= run.slots:
            # The default reduction waits for ever on several CPU devices.
            reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
            return run, tf.distribute.MirroredStrategy(
                devices[: run.slots], cross_device_ops=reduction
            )
    _logger.warning(
        "resources.slots_per_trial is %d, and %s: one trains on whole batches.",
        run.slots,
        "aggregation_frequency above 1" if is_alone else "this machine has fewer devices",
    )
    return dataclasses.replace(run, slots=1), tf.distribute.get_strategy()


def share_of_dataset(dataset: Any, run: TrialRun, shard: bool) -> Any:
    """Returns the records that this process reads of a Dataset, marked as data of its own.

    To `shard`, each of n workers takes every n-th; else they all take all. What is no Dataset is
    returned as it is.
    """
    is_dataset = isinstance(dataset, (tf.data.Dataset, tf.compat.v1.data.Dataset))
    if run.workers == 1 or not is_dataset:
        return dataset
    if shard:
        dataset = dataset.shard(run.workers, distributed.rank())
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def mean_over_slots(metrics: Mapping[str, Any], run: TrialRun) -> dict[str, Any]:
    """Returns the means over all workers of metrics, numbers or nested lists, of the same names."""
    if run.workers == 1:
        return dict(metrics)
    of_all = distributed.gather(dict(metrics))
    return {
        name: np.mean([each[name] for each in of_all], axis=0).tolist()
        for name in metrics
        if all(each.get(name) is not None for each in of_all)
    }


def write_code(file: str | None, directory: str) -> None:
    """Writes a module's file, and what it imports from its own folder, into `directory`/code."""
    for path, content in _files(file).items():
        target = os.path.join(directory, "code", path)
        gfile().makedirs(os.path.dirname(target))
        with gfile().GFile(target, "wb") as opened:
            opened.write(content)


@functools.lru_cache(maxsize=8)  # the same in each checkpoint of a trial
def _files(file: str | None) -> dict[str, bytes]:
    return imported_files(file) if file and os.path.isfile(file) else {}
