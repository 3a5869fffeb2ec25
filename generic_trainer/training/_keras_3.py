"""Keras 3 on several workers: an error that says so, instead of one from inside Keras."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

from generic_trainer.errors import ConfigurationError

__all__ = ["keras_3_on_one_worker_only", "refusal"]

_LEGACY = "TF_USE_LEGACY_KERAS"


def refusal(version: str) -> ConfigurationError:
    """Returns the error for a Keras 3 that is to train on several workers."""
    return ConfigurationError(
        f"Keras {version} cannot train on several workers: under MultiWorkerMirroredStrategy its "
        f"fit fails. Set the environment variable {_LEGACY}=1 before TensorFlow is imported (and "
        "have tf-keras installed): tf.keras is then Keras 2, which can. With "
        f"Distribution(env={{'{_LEGACY}': '1'}}) the workers have it set."
    )


@contextlib.contextmanager
def keras_3_on_one_worker_only() -> Iterator[None]:
    """Has `fit` of Keras 3 refuse a model that was built in a `MultiWorkerMirroredStrategy`.

    Whether a module uses Keras 3 is known no sooner: a loop of one's own trains well with that
    strategy, and `tf_keras` is Keras 2 whatever `tf.keras` is.
    """
    keras = _keras_3()
    if keras is None:
        yield
        return
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        strategy = getattr(self, "distribute_strategy", None)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise refusal(keras.__version__)
        return original(self, *args, **kwargs)

    keras.Model.fit = fit
    try:
        yield
    finally:
        keras.Model.fit = original


def _keras_3() -> Any:
    if os.environ.get(_LEGACY, "").lower() in ("1", "true"):
        return None
    try:
        import keras
    except ImportError:
        return None
    return keras if keras.__version__.startswith("3.") else None
