"""The `tf.distribute` strategy of this process, and what several workers cannot do with others."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import has_parameter_servers, is_one_of_several, this_task
from generic_trainer._core.keras import (
    is_keras_3,
    keras_3_package,
    keras_version,
    one_more_callback,
)
from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed import agreeing_callback, make_strategy, runtime
from generic_trainer.user_code import loaded_modules

_logger = logging.getLogger(__name__)

_OF_ONE_MACHINE = (tf.distribute.MirroredStrategy, tf.distribute.TPUStrategy)


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
def checked_on_several_workers() -> Iterator[None]:
    """Has what several workers cannot do together fail in all of them, with what to do.

    1. `fit` of Keras 3 refuses a model that was built in a `MultiWorkerMirroredStrategy`. Whether a
       module uses Keras 3 is known no sooner: a loop of one's own trains well with that strategy,
       and `tf_keras` is Keras 2 whatever `tf.keras` is.
    2. `fit` of Keras 2 begins there once all workers have the same model and as many batches.
    3. A strategy for the devices of one machine, with which each worker trains by itself, is told,
       and refused where workers are connected already.
    4. Who waits for a worker whose `run_fn` has ended does not wait for ever.
    """
    with contextlib.ExitStack() as stack:
        keras_3 = keras_3_package() if is_keras_3() else None
        if keras_3 is not None:
            stack.enter_context(internals.replaced_method(keras_3.Model, "fit", _refuse_keras_3))
        if "tf_keras" in sys.modules:  # that is what the module has imported, or `tf.keras` is
            stack.enter_context(
                internals.replaced_method(sys.modules["tf_keras"].Model, "fit", _agree_first)
            )
        for kind in _OF_ONE_MACHINE:
            stack.enter_context(internals.replaced_method(kind, "__init__", _alone))
        yield
        connected = _connected()
        if connected is not None:
            with contextlib.suppress(tf.errors.OpError):  # the others have ended before
                connected.leave()


def _refuse_keras_3(fit: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_in_tensorflows_own(model):
        raise _refusal(keras_version(keras_3_package()))
    return fit(model, *args, **kwargs)


def _agree_first(fit: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_in_tensorflows_own(model):
        return fit(model, *args, **kwargs)
    bound = inspect.signature(fit).bind(model, *args, **kwargs)
    keras = sys.modules["tf_keras"]
    with one_more_callback(keras, bound.arguments, agreeing_callback(keras, runtime())):
        return fit(*bound.args, **bound.kwargs)


def _alone(make: Callable[..., None], strategy: Any, *args: Any, **kwargs: Any) -> None:
    """Makes a strategy for the devices of one machine, where that can work.

    A trial may have one worker to itself, whose cluster is none then. Once workers are connected,
    TensorFlow ends the process with a segmentation fault.
    """
    if is_one_of_several():
        told = (
            f"tf.distribute.{type(strategy).__name__} is for the devices of one machine, and this "
            "is one of several workers: each would train a model of its own. Write strategy = "
            "training.get_strategy(), from generic_trainer import training, in its place, or train "
            "on one worker."
        )
        if _connected() is not None:
            raise ConfigurationError(told)
        _logger.warning("%s", told)
    make(strategy, *args, **kwargs)


def _connected() -> Any:
    """Returns the runtime of this process if it is connected; asking for it would connect it."""
    return runtime() if runtime.cache_info().currsize else None


def _is_in_tensorflows_own(model: Any) -> bool:
    strategy = getattr(model, "distribute_strategy", None)
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


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
