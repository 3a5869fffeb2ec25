"""Refusal of trainings and evaluations of estimators that would never end.

Both end after a number of steps. It may be None, such as `fn_args.train_steps` of a run without
steps: then they end with their data, or when a hook stops them. A dataset that repeats forever has
no end, nor has a queue of TensorFlow 1 that is filled without a number of epochs.

The data are those that the estimator gets. Calling an input function only to look would change
what the next call returns: it may draw random numbers, or consume a generator.
"""

import contextlib
import contextvars
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from generic_trainer.errors import ConfigurationError

_LISTENERS = "saving_listeners"  # of a TrainSpec alone
# Operations that may end what threads put into queues: the first two after a number of epochs.
_MAY_END = {
    *("CountUpTo", "ResourceCountUpTo", "IteratorGetNext", "IteratorGetNextSync"),
    *("PyFunc", "PyFuncStateless", "EagerPyFunc", "Placeholder"),
}

# Mode → its input function, and the error to raise if the dataset of that repeats forever: hooks
# and exporters train and evaluate too, on other data.
_unlimited: contextvars.ContextVar[Mapping[str, tuple[Any, str]]] = contextvars.ContextVar(
    "unlimited", default=types.MappingProxyType({})
)
# Estimator → the mode and the error of its newest dataset, if that repeats forever. It is not a
# context variable: a strategy calls the model function in threads of its own.
_endless: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def refuse_endless(*specs: Any) -> Iterator[None]:
    """Makes a training or evaluation in this context fail if nothing would ever end it.

    It raises `ConfigurationError` after the calls of the input and model functions.

    Args:
        *specs: the TrainSpec or EvalSpec of what follows, or both.
    """
    unlimited = {}
    for spec in specs:
        limit, mode = ("max_steps", "train") if hasattr(spec, "max_steps") else ("steps", "eval")
        if getattr(spec, limit) is None and not (spec.hooks or getattr(spec, _LISTENERS, None)):
            error = (
                f"{type(spec).__name__}(input_fn) returns a dataset that repeats forever, and "
                f"neither {limit} nor a hook ends it. Pass {limit}, such as fn_args.train_steps or "
                "eval_steps (--train-steps, --eval-steps of `generic-trainer run`), or let the "
                "dataset end, such as by num_epochs=1."
            )
            unlimited[mode] = spec.input_fn, error
    token = _unlimited.set(unlimited)
    try:
        yield
    finally:
        _unlimited.reset(token)


def noting_endless(call_input_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method of `Estimator` that calls the input function."""

    @functools.wraps(call_input_fn)
    def method(estimator: Any, input_fn: Any, mode: str, *args: Any, **kwargs: Any) -> Any:
        data = call_input_fn(estimator, input_fn, mode, *args, **kwargs)
        _endless.pop(estimator, None)
        unlimited_fn, error = _unlimited.get().get(mode, (None, ""))
        if input_fn is unlimited_fn and (_is_endless(data) or _is_fed_forever(input_fn)):
            _endless[estimator] = mode, error
        return data

    return method


def raising_endless(call_model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method of `Estimator` that calls the model function, whose hooks may stop."""

    @functools.wraps(call_model_fn)
    def method(estimator: Any, features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = call_model_fn(estimator, features, labels, mode, config)
        endless_mode, error = _endless.get(estimator, ("", ""))
        hooks = spec.training_hooks or spec.training_chief_hooks or spec.evaluation_hooks
        if mode == endless_mode and not hooks:
            raise ConfigurationError(error)
        return spec

    return method


def _is_endless(data: Any) -> bool:
    """Whether the result of an input function is a dataset that repeats forever.

    The operations for this are in a copy of the graph. Seeds of later operations, and so initial
    weights, depend on the number of operations before them.
    """
    import tensorflow as tf  # not with this package

    if not isinstance(data, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
        return False
    variant = tf.data.experimental.to_variant(data)
    # Else the GPUs' memory would be taken here, and not as the estimator's configuration says.
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    try:
        graph = tf.compat.v1.graph_util.extract_sub_graph(
            variant.graph.as_graph_def(), [variant.op.name]
        )
        for node in graph.node:  # which may be on a server of a cluster
            node.device = ""
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            (copied,) = tf.import_graph_def(graph, return_elements=[variant.name])
            number = session.run(tf.raw_ops.DatasetCardinality(input_dataset=copied))
    except (tf.errors.OpError, ValueError):  # it needs variables, or is too large to copy
        return False
    return bool(number == tf.data.INFINITE_CARDINALITY)


def _is_fed_forever(input_fn: Callable[..., Any]) -> bool:
    """Whether an input function, which has been called, fills its queues forever."""
    import tensorflow as tf  # not with this package

    # The queues of `numpy_input_fn` and `pandas_input_fn` do not show their number of epochs.
    if inspect.isfunction(input_fn) and input_fn.__module__.startswith("tensorflow_estimator."):
        cells = dict(zip(input_fn.__code__.co_freevars, input_fn.__closure__ or (), strict=False))
        return "num_epochs" in cells and cells["num_epochs"].cell_contents is None
    graph = tf.compat.v1.get_default_graph()
    fills_queues = bool(graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS))
    return fills_queues and _MAY_END.isdisjoint(
        operation.type for operation in graph.get_operations()
    )
