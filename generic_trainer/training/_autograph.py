"""A faster start of Keras 2's `fit`: AutoGraph skips Keras's own code, as it does with Keras 3.

On the first batch, AutoGraph converts all code of a training step. TensorFlow lists `keras` among
the packages that need no conversion. It lists `tf_keras`, the name of Keras 2 since TensorFlow
2.16, only in later releases; before these, converting its two hundred functions takes most of half
a minute.

User code is still converted if Keras requests that: `call` of layers, losses, metrics. Other user
code is only converted because the Keras code around it is (a custom `train_step`, a schedule, an
activation). A model with such code is traced without this optimization.
"""

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals

_PACKAGE = "tf_keras"
_MADE = ("train_function", "test_function", "predict_function")
# Packages that need no conversion.
_LIBRARIES = ("builtins", "functools", "numpy", "tensorflow", "tensorflow_transform", _PACKAGE)
# Methods of Keras that a class may override: Keras requests the conversion of `call`, and the
# others do not receive tensors of the graph.
_ASKED_FOR = frozenset({"build", "call", "compute_output_shape", "from_config", "get_config"})

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def keras_2_left_alone() -> Iterator[None]:
    """Makes `fit`, `evaluate` and `predict` of Keras 2 start faster, if it is imported."""
    keras = sys.modules.get(_PACKAGE)
    with contextlib.ExitStack() as stack:
        if keras and not internals.TF_AUTOGRAPH_CONVERSION.get().is_allowlisted(keras.Model):
            for name in _MADE:
                stack.enter_context(internals.replaced_method(keras.Model, f"make_{name}", _make))
        yield


def _make(make: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    function = make(model, *args, **kwargs)
    if not isinstance(function, tf.types.experimental.GenericFunction) or _needs_conversion(model):
        return function

    def make_converted() -> Any:
        name = make.__name__.removeprefix("make_")
        # What wraps the function, a resuming fit for example, goes on around the new one.
        wrapped = getattr(model, name)
        converted = make(model, force=True)
        setattr(model, name, wrapped)
        return converted

    return _Function(function, make_converted)


class _Function:
    """A `tf.function` of Keras 2 that runs with the code of Keras 2 unconverted.

    If tracing fails because of that, it is traced again with conversion.
    """

    def __init__(self, function: Any, make: Callable[[], Any]) -> None:
        self._function = function
        self._make = make
        self._is_left_alone = True

    def __call__(self, *args: Any) -> Any:
        if self._is_left_alone:
            try:
                with keras_2_unconverted():
                    return self._function(*args)
            except (AttributeError, TypeError) as error:  # of a condition, or of `int(tensor)`
                _logger.info("Tracing again, with AutoGraph for the code of Keras 2: %s", error)
                self._function = self._make()
                self._is_left_alone = False
        return self._function(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._function, name)


@contextlib.contextmanager
def keras_2_unconverted() -> Iterator[None]:
    """Prevents AutoGraph from converting the code of Keras 2 within the context."""
    with contextlib.ExitStack() as stack:
        for name, module, value in _lists():  # cached, because each step needs them
            stack.callback(name.set, module, name.of(module))
            name.set(module, value)
        yield


@functools.cache
def _lists() -> tuple[tuple[internals.PrivateName, Any, Any], ...]:
    """Returns AutoGraph's rules and its cache, with the values that exclude Keras 2."""
    rules = internals.TF_AUTOGRAPH_RULES
    cache = internals.TF_AUTOGRAPH_FOUND
    config = internals.TF_AUTOGRAPH_CONFIG.get()
    conversion = internals.TF_AUTOGRAPH_CONVERSION.get()
    excluding = (config.DoNotConvert(_PACKAGE), *rules.of(config))
    return (rules, config, excluding), (cache, conversion, type(cache.of(conversion))())


def _needs_conversion(model: Any) -> bool:
    """Returns whether Keras 2 may call user code without requesting its conversion."""
    keras = sys.modules[_PACKAGE]
    # Keras requests the conversion of these, or `layers` includes them.
    known = (keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric)
    layers = list(internals.KERAS_2_LAYERS.of(model)())
    optimizer = getattr(model, "optimizer", None)
    parts = [value for layer in (*layers, optimizer) for value in _values(layer)]
    called = [part for part in parts if callable(part) and not isinstance(part, known)]
    are_asked_for = all(_is_asked_for(type(layer)) for layer in layers)
    return not (are_asked_for and all(map(_is_of_a_library, [optimizer, *called])))


def _is_asked_for(kind: type) -> bool:
    """Returns whether Keras requests the conversion of all methods that a layer overrides."""
    mine = [base for base in kind.__mro__ if not _is_of_a_library(base)]
    keras = next(base for base in kind.__mro__ if _is_of_a_library(base))
    replaced = {name for base in mine for name in vars(base) if hasattr(keras, name)}
    others = replaced - _ASKED_FOR
    # Any class has special methods such as `__init__`.
    return all(name.startswith("__") and name != "__call__" for name in others)


def _values(thing: Any) -> Iterator[Any]:
    """Yields an object's attributes, items of containers, and parts of partial functions."""
    for name, value in vars(thing).items() if hasattr(thing, "__dict__") else ():
        # The traced functions themselves, and `loss`, whose conversion Keras requests.
        if name in (*_MADE, "loss"):
            continue
        held = value.values() if isinstance(value, dict) else value
        for item in held if isinstance(value, (list, tuple, dict)) else (value,):
            yield item
            if isinstance(item, functools.partial):
                yield item.func
                yield from item.args


def _is_of_a_library(thing: Any) -> bool:
    owner = thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
    return (getattr(owner, "__module__", None) or "").partition(".")[0] in _LIBRARIES
