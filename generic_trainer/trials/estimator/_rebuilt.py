"""The user's estimator and its data, as the trial runs them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer import estimator as tf_estimator

__all__ = ["rebuilt", "then"]


def rebuilt(
    estimator: Any, model_dir: str, *, seed: int, strategy: tf.distribute.Strategy | None
) -> Any:
    """Returns the estimator with a configuration for this trial.

    Checkpoints are not written periodically, but when the trial says so. Sessions place softly
    where the user's `session_config` does not decide. An evaluation takes one device, so that it is
    one pass.

    Args:
        estimator: what the user built.
        model_dir: an own directory of this trial.
        seed: of the trial.
        strategy: what to train in; None is one device.
    """
    config = estimator.config.replace(
        model_dir=model_dir,
        tf_random_seed=seed,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        keep_checkpoint_max=1,
        train_distribute=strategy,
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
