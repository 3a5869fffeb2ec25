"""The user's estimator and its data, as the trial runs them."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer import estimator as tf_estimator
from generic_trainer.trials._trial import TrialRun

__all__ = ["rebuilt", "then"]

_logger = logging.getLogger(__name__)


def rebuilt(estimator: Any, model_dir: str, run: TrialRun) -> Any:
    """Returns the estimator with a configuration for this trial.

    It has the trial's seed and, on several slots, a MirroredStrategy; checkpoints are not written
    periodically, but when the trial says so. Sessions place softly where the user's
    `session_config` does not decide. An evaluation takes one device, so that it is one pass.

    Args:
        estimator: what the user built.
        model_dir: an own directory of this trial.
        run: the trial.
    """
    config = estimator.config.replace(
        model_dir=model_dir,
        tf_random_seed=run.seed,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        keep_checkpoint_max=1,
        session_config=estimator.config.session_config
        or tf.compat.v1.ConfigProto(allow_soft_placement=True),
        train_distribute=_strategy(run.slots),
        eval_distribute=None,
    )
    return tf_estimator.Estimator(
        estimator._model_fn,
        config=config,
        params=estimator.params or None,
        warm_start_from=estimator._warm_start_settings,
    )


def then(input_fn: Callable[..., Any], convert: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns an input function that converts what another returns, with the same arguments."""

    @functools.wraps(input_fn)
    def converting(*args: Any, **kwargs: Any) -> Any:
        return convert(input_fn(*args, **kwargs))

    # Estimators look at the names of the arguments, through no wrapper.
    converting.__signature__ = inspect.signature(input_fn)  # type: ignore[attr-defined]
    return converting


def _strategy(slots: int) -> tf.distribute.Strategy | None:
    if slots < 2:
        return None
    for kind in ("GPU", "CPU"):
        devices = [device.name for device in tf.config.list_logical_devices(kind)]
        if len(devices) >= slots:
            # The default reduction waits for ever on several CPU devices.
            reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
            return tf.distribute.MirroredStrategy(devices[:slots], cross_device_ops=reduction)
    _logger.warning(
        "resources.slots_per_trial is %d, but there are not so many devices: training on one.",
        slots,
    )
    return None
