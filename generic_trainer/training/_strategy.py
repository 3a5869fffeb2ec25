"""The `tf.distribute` strategy of this process, and checks for strategies that cannot work."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import has_parameter_servers, is_one_of_several, this_task
from generic_trainer._core.keras import is_keras_3, keras_version
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import distributed
from generic_trainer.training._watch import hooked_fits, one_more_callback
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
    2. A cluster of several workers: `MultiWorkerMirroredStrategy` if `tf.keras` is Keras 2 or the
       user's code has imported `tf_keras`. It cannot train Keras 3, which gets an equivalent
       strategy: each worker trains on its rows of each batch, on one device, gradients are
       averaged, and all workers end with the same variables and metrics. All workers must pass the
       same batches to `fit` in the same order.
    3. Two GPUs or more without a cluster: `MirroredStrategy`.
    4. Otherwise the default strategy, which does nothing.

    The cluster is read from `TF_CONFIG`. GPU memory is allocated as needed, not all at once. Call
    this before any other use of TensorFlow, because workers must be connected first.

    Raises:
        ConfigurationError: `TF_CONFIG` is malformed, this process is a server and does not train,
            or TensorFlow was used before it was connected with the other workers.
    """
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # other processes, such as the next step of a pipeline, may use the same GPU
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError as error:  # TensorFlow already uses the GPU
            _logger.warning("TensorFlow allocates all memory of %s: %s", gpu.name, error)
    if has_parameter_servers():
        return _parameter_servers()
    if is_one_of_several():
        if is_keras_3() and not _users_code_has("tf_keras"):
            return distributed.make_strategy()
        return distributed.runtime().strategy
    return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()


@contextlib.contextmanager
def checked_on_several_workers() -> Iterator[None]:
    """Raises errors, within the context, for uses of several workers that cannot work.

    1. `fit` of Keras 3 rejects a model that was built in a `MultiWorkerMirroredStrategy`. It cannot
       be checked earlier: custom loops train with that strategy, and so do models of `tf_keras`,
       which is Keras 2 even if `tf.keras` is Keras 3.
    2. `fit` of Keras 2 in that strategy first compares models and numbers of batches between the
       workers.
    3. A strategy for the devices of one machine, with which each worker would train a separate
       model, is logged. It is rejected if workers are connected already.
    4. Workers that wait for one whose `run_fn` has ended fail instead of waiting forever.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(hooked_fits(_checked_fit))
        for kind in _OF_ONE_MACHINE:
            stack.enter_context(internals.replaced_method(kind, "__init__", _alone))
        stack.callback(distributed.forget_strategy)
        yield
        connected = _connected()
        if connected is not None:
            with contextlib.suppress(tf.errors.OpError):  # the other workers have ended already
                connected.leave()


@contextlib.contextmanager
def _checked_fit(keras: ModuleType, arguments: dict[str, Any]) -> Iterator[None]:
    strategy = getattr(arguments["self"], "distribute_strategy", None)
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        yield
        return
    if keras.__name__ == "keras":
        raise ConfigurationError(
            f"Keras {keras_version(keras)} cannot train under MultiWorkerMirroredStrategy: its fit "
            "would fail. Write strategy = training.get_strategy(), from generic_trainer import "
            "training, instead of tf.distribute.MultiWorkerMirroredStrategy() in run_fn; that "
            "trains Keras 3 on several workers."
        )
    # Connected here: in the strategy's scope the variable of the connection would be mirrored.
    connected = distributed.runtime()

    def agree(logs: Any) -> None:
        distributed.agree_to_fit(connected, arguments["self"], agreement.params)

    agreement: Any = keras.callbacks.LambdaCallback(on_train_begin=agree)
    with one_more_callback(keras, arguments, agreement):
        yield


def _alone(make: Callable[..., None], strategy: Any, *args: Any, **kwargs: Any) -> None:
    """Creates a strategy for the devices of one machine, unless that would crash.

    It is right for a trial that runs on a single worker, which then has no cluster. Among several
    workers it only gets a warning, but once they are connected, creating it ends the process with a
    segmentation fault.
    """
    if is_one_of_several():
        message = (
            f"tf.distribute.{type(strategy).__name__} is for the devices of one machine, and this "
            "is one of several workers: each would train a model of its own. Write strategy = "
            "training.get_strategy(), from generic_trainer import training, instead, or train on "
            "one worker."
        )
        if _connected() is not None:
            raise ConfigurationError(message)
        _logger.warning("%s", message)
    make(strategy, *args, **kwargs)


def _connected() -> Any:
    """Returns the runtime of this process, or None if it is not connected yet.

    `runtime()` itself would connect it.
    """
    runtime = distributed.runtime
    return runtime() if runtime.cache_info().currsize else None


def _users_code_has(package: str) -> bool:
    """Returns whether a module of the user has imported a package, or a name from it."""
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
            f"TF_CONFIG lists parameter servers, and this process is {task.type} "
            f"{task.index}. Expected the chief: it alone calls run_fn and sends the others their "
            "work. Start them with tf.distribute.Server, or let GenericTrainer's launchers do it."
        )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.experimental.ParameterServerStrategy(resolver)
