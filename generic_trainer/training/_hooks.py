"""Hooks around `fit` of Keras 2 and Keras 3, undone at the end."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer._core import internals

# From the package of the model's Keras and the arguments of `fit` by their names, `self` included,
# which it may change, to a context of the call.
FitHook: TypeAlias = Callable[[ModuleType, dict[str, Any]], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def hooked_fits(hook: FitHook) -> Iterator[None]:
    """Runs each call of `fit` within the context in the context of a hook."""
    with contextlib.ExitStack() as stack:
        for name in ("keras", "tf_keras"):  # imported by the user's module, or as `tf.keras`
            model = getattr(sys.modules.get(name), "Model", None)
            if model is not None:
                around = functools.partial(_fit, sys.modules[name], hook)
                stack.enter_context(internals.replaced_method(model, "fit", around))
        yield


def _fit(
    keras: ModuleType, hook: FitHook, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    try:
        bound = inspect.signature(original).bind(*args, **kwargs)
    except TypeError:  # raise Keras's own error for wrong arguments
        return original(*args, **kwargs)
    with hook(keras, bound.arguments):
        return original(*bound.args, **bound.kwargs)


@contextlib.contextmanager
def one_more_callback(
    keras: ModuleType | Any, arguments: dict[str, Any], callback: Any
) -> Iterator[None]:
    """Adds a callback to a call of `fit`, before its other callbacks.

    Args:
        keras: the package of the model's Keras.
        arguments: of `fit`, by name.
        callback: of that Keras.
    """
    given = arguments.get("callbacks")
    # `fit` passes neither the model nor its parameters on to those in a list of Keras's own class.
    given = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else given
    arguments["callbacks"] = [callback, *([] if given is None else tf.nest.flatten(given))]
    yield
