"""The devices that a trial with several slots trains on."""

from __future__ import annotations

import dataclasses
import logging

import tensorflow as tf

from generic_trainer.trials._trial import TrialRun

__all__ = ["fit_to_devices"]

_logger = logging.getLogger(__name__)


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
