"""Which `tf.distribute` strategy fits this process: its place in the cluster, and its GPUs."""

from __future__ import annotations

import logging
import sys
from typing import Any

import tensorflow as tf

from generic_trainer._core.cluster import has_parameter_servers, is_one_of_several, this_task
from generic_trainer.errors import ConfigurationError
from generic_trainer.training._keras_3 import refusal

__all__ = ["get_strategy"]

_logger = logging.getLogger(__name__)


def get_strategy() -> tf.distribute.Strategy:
    """Returns the strategy to build and train the model in.

    ::

        with training.get_strategy().scope():
            model = build_model()
            model.compile(...)

    1. A cluster with parameter servers: `ParameterServerStrategy`, in the chief.
    2. A cluster of several workers: `MultiWorkerMirroredStrategy`.
    3. Else, with two GPUs or more: `MirroredStrategy`.
    4. Else the default strategy, which does nothing.

    The cluster is read from `TF_CONFIG`. GPUs are told to take memory as they need it. Call this
    before anything else of TensorFlow: `MultiWorkerMirroredStrategy` must be the first.

    Raises:
        ConfigurationError: `TF_CONFIG` cannot be understood; this process is a server and trains
            nothing; or the workers would train Keras 3 models, which fails inside Keras.
    """
    _grow_memory()
    if has_parameter_servers():
        return _parameter_servers()
    if is_one_of_several():
        _refuse_keras_3()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _parameter_servers() -> tf.distribute.Strategy:
    task = this_task()
    if task.type not in ("chief", "master"):
        raise ConfigurationError(
            f"TF_CONFIG names parameter servers and says that this process is {task.type} "
            f"{task.index}. Expected the chief: it alone calls run_fn and sends the others their "
            "work. Start them with tf.distribute.Server, or let GenericTrainer's launchers do it."
        )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.experimental.ParameterServerStrategy(resolver)


def _refuse_keras_3() -> None:
    if _trains_keras_3():
        raise refusal(_keras_version())


def _trains_keras_3() -> bool:
    # Who has imported tf_keras by its own name trains with that.
    return _keras_version().startswith("3.") and "tf_keras" not in sys.modules


def _keras_version() -> str:
    return str(getattr(tf.keras, "__version__", "2"))  # which only Keras 3 tells


def _grow_memory() -> None:
    """Lets other processes, such as the next step of a pipeline, use the GPUs as well."""
    for gpu in tf.config.list_physical_devices("GPU"):
        _grow(gpu)


def _grow(gpu: Any) -> None:
    try:
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:  # TensorFlow has started to use it
        _logger.warning("%s takes all of its memory: %s", gpu.name, error)
