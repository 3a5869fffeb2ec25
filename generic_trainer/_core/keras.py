"""Keras 2 or Keras 3: of `tf.keras`, and of a single object."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# Set to 1 before TensorFlow is imported, it makes tf.keras Keras 2.
LEGACY_VARIABLE = "TF_USE_LEGACY_KERAS"
_PACKAGES = ("keras", "tf_keras")


def keras_module() -> ModuleType:
    """Returns the package behind `tf.keras`: `keras`, or `tf_keras`, which is Keras 2.

    `tf.keras` is lazy, tells no version of Keras 2, and is what it was when it was first used,
    whatever the environment says since.
    """
    import tensorflow as tf

    return sys.modules[tf.keras.layers.Layer.__module__.partition(".")[0]]


def same_keras() -> dict[str, str]:
    """Returns the environment variable with which another process gets the `tf.keras` of this one.

    This process's own says too little: importing tensorflow_transform sets it to 1, long after
    `tf.keras` has become Keras 3. Empty where no TensorFlow is imported, or it finds no Keras: then
    the environment alone decides, there as here.
    """
    if "tensorflow" not in sys.modules:
        return {}
    try:
        return {LEGACY_VARIABLE: str(int(keras_module().__name__ == "tf_keras"))}
    except ImportError:
        return {}


def keras_3_package() -> ModuleType | None:
    """Returns the package `keras` where it is Keras 3, and leaves open what `tf.keras` will be."""
    try:
        import keras
    except ImportError:
        return None
    return keras if keras_version(keras).startswith("3.") else None


def keras_version(package: ModuleType | None = None) -> str:
    """Returns the version of a Keras, such as "3.6.0"; without a package that of `tf.keras`."""
    return str((package or keras_module()).__version__)


def is_keras_3(thing: Any = None) -> bool:
    """Returns whether a model, layer, optimizer or callback is one of Keras 3.

    Args:
        thing: an object of Keras, or derived from one; None asks about `tf.keras`.
    """
    if thing is None:
        return keras_version().startswith("3.")
    packages = (kind.__module__.partition(".")[0] for kind in type(thing).__mro__)
    package = next((name for name in packages if name in _PACKAGES), None)
    return package is not None and keras_version(sys.modules[package]).startswith("3.")


@contextlib.contextmanager
def one_more_callback(
    keras: ModuleType | Any, arguments: dict[str, Any], callback: Any
) -> Iterator[None]:
    """Has a call of `fit` call one more callback, before those that it is given.

    Args:
        keras: the package of the model's Keras.
        arguments: of `fit`, by name; `self` is the model.
        callback: of that Keras.
    """
    import tensorflow as tf

    given = arguments.get("callbacks")
    if not isinstance(given, keras.callbacks.CallbackList):
        arguments["callbacks"] = [callback, *([] if given is None else tf.nest.flatten(given))]
        yield
        return
    # `fit` passes neither the model nor its parameters on to those in such a list.
    callback.set_model(arguments["self"])
    callback.set_params(getattr(given, "params", None) or {})
    given.callbacks.insert(0, callback)
    try:
        yield
    finally:
        given.callbacks.remove(callback)
