"""The process that a trial runs in: its random generators, its devices, its code."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import random
import sys

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import gfile
from generic_trainer.trials._trial import TrialRun
from generic_trainer.user_code import imported_files

_logger = logging.getLogger(__name__)


def seed_generators(seed: int) -> None:
    """Sets Python's, NumPy's and TensorFlow's, before any of the trial's code runs."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)


def fit_to_devices(run: TrialRun) -> tuple[TrialRun, tf.distribute.Strategy]:
    """Returns the trial with the slots that this machine has, and the strategy to train it in.

    Several slots are GPUs, or logical CPU devices, under `MirroredStrategy`. Where there are too
    few, it is one slot, which trains on whole global batches: slower, and the same steps.
    """
    if run.slots < 2:
        return run, tf.distribute.get_strategy()
    for kind in ("GPU", "CPU"):
        devices = [device.name for device in tf.config.list_logical_devices(kind)]
        if len(devices) >= run.slots:
            # The default reduction waits for ever on several CPU devices.
            reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
            return run, tf.distribute.MirroredStrategy(
                devices[: run.slots], cross_device_ops=reduction
            )
    _logger.warning(
        "resources.slots_per_trial is %d, and this machine has fewer devices: one trains on whole "
        "batches.",
        run.slots,
    )
    return dataclasses.replace(run, slots=1), tf.distribute.get_strategy()


def code_file(module: str) -> str | None:
    """Returns the file of a module; None if it has none, in a notebook say."""
    return getattr(sys.modules.get(module), "__file__", None)


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
