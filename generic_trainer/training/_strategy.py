"""The `tf.distribute` strategy of this process, and what Keras 3 cannot do with it."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core.cluster import has_parameter_servers, is_one_of_several, this_task
from generic_trainer._core.keras import is_keras_3, keras_3_package, keras_version
from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed import make_strategy, runtime
from generic_trainer.user_code import loaded_modules

_logger = logging.getLogger(__name__)


def get_strategy() -> tf.distribute.Strategy:
    """Returns the strategy to build and train the model in.

    ::

        with training.get_strategy().scope():
            model = build_model()
            model.compile(...)

    1. A cluster with parameter servers: `ParameterServerStrategy`, in the chief.
    2. A cluster of several workers: `MultiWorkerMirroredStrategy` where `tf.keras` is Keras 2, or
       the user's code has imported `tf_keras`. Keras 3 cannot be trained with that one; for it, a
       strategy that does the same: each worker trains on its rows of each batch, on one device,
       gradients are averaged, and all end with the same variables and metrics. All workers give
       `fit` the same batches in the same order.
    3. Else, with two GPUs or more: `MirroredStrategy`.
    4. Else the default strategy, which does nothing.

    The cluster is read from `TF_CONFIG`. GPUs are told to take memory as they need it. Call this
    before anything else of TensorFlow: the connection of workers must be the first.

    Raises:
        ConfigurationError: `TF_CONFIG` cannot be understood, this process is a server and trains
            nothing, or TensorFlow has been used before it was connected with the other workers.
    """
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # other processes, such as the next step of a pipeline, use it as well
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError as error:  # TensorFlow has started to use it
            _logger.warning("%s takes all of its memory: %s", gpu.name, error)
    if has_parameter_servers():
        return _parameter_servers()
    if is_one_of_several():
        if is_keras_3() and not _users_code_has("tf_keras"):
            return make_strategy()
        connected = runtime()
        return connected.strategy
    return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()


@contextlib.contextmanager
def keras_3_on_one_worker_only() -> Iterator[None]:
    """Has `fit` of Keras 3 refuse a model that was built in a `MultiWorkerMirroredStrategy`.

    Whether a module uses Keras 3 is known no sooner: a loop of one's own trains well with that
    strategy, and `tf_keras` is Keras 2 whatever `tf.keras` is.
    """
    keras = keras_3_package() if is_keras_3() else None
    if keras is None:
        yield
        return
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = getattr(self, "distribute_strategy", None)
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise _refusal(keras_version(keras))
        return original(self, *args, **kwargs)

    keras.Model.fit = fit
    try:
        yield
    finally:
        keras.Model.fit = original


def _users_code_has(package: str) -> bool:
    """Returns whether a module of the user's has a package, or something of it, among its names."""
    return any(
        str(getattr(value, "__module__", None) or getattr(value, "__name__", "")).split(".")[0]
        == package
        for module in loaded_modules()
        for value in vars(module).values()
    )


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


def _refusal(version: str) -> ConfigurationError:
    return ConfigurationError(
        f"Keras {version} cannot train under MultiWorkerMirroredStrategy: inside its fit that "
        "fails. Write strategy = training.get_strategy(), from generic_trainer import training, "
        "where run_fn makes tf.distribute.MultiWorkerMirroredStrategy(); that trains Keras 3 on "
        "several workers."
    )
