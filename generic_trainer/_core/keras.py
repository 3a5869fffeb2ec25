"""Keras 2 or Keras 3: of `tf.keras`, and of a single object."""

import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

# Set to 1 before TensorFlow is imported, it makes tf.keras Keras 2.
LEGACY_VARIABLE = "TF_USE_LEGACY_KERAS"
LEGACY_VALUES = ("1", "true", "True")  # with which TensorFlow takes Keras 2
_PACKAGES = ("keras", "tf_keras")


def keras_module() -> ModuleType:
    """Returns the package behind `tf.keras`: `keras`, or `tf_keras`, which is Keras 2.

    `tf.keras` is lazy and has no version under Keras 2. Its first use decides which package it is;
    later changes of the environment have no effect.
    """
    import tensorflow as tf

    return sys.modules[tf.keras.layers.Layer.__module__.partition(".")[0]]


def same_keras() -> dict[str, str]:
    """Returns the environment variable that gives another process the `tf.keras` of this one.

    The value in this process may be wrong: importing tensorflow_transform sets it to 1, long after
    `tf.keras` has become Keras 3. Empty if TensorFlow is not imported, or finds no Keras: then the
    environment decides, in both processes.
    """
    if "tensorflow" not in sys.modules:
        return {}
    try:
        return {LEGACY_VARIABLE: str(int(keras_module().__name__ == "tf_keras"))}
    except ImportError:
        return {}


def legacy_setting(env: Mapping[str, str]) -> str:
    """Returns "1" if `tf.keras` is or will be Keras 2, else "0", and does not decide it.

    Unlike `same_keras`, it leaves the user's module free to set the variable: that is code.

    Args:
        env: variables that the process that trains has besides those of this one.
    """
    value = env.get(LEGACY_VARIABLE)
    if value is None and "tensorflow" in sys.modules:
        keras = vars(sys.modules["tensorflow"]).get("keras")
        # Its first use replaces the lazy module, of which even the name would be a use.
        if keras is not None and not type(keras).__name__.endswith("LazyLoader"):
            value = str(int(keras.__name__.startswith("tf_keras")))
    if value is None:
        value = os.environ.get(LEGACY_VARIABLE)
    return str(int(value in LEGACY_VALUES))


def keras_3_package() -> ModuleType | None:
    """Returns the package `keras` if it is Keras 3, without deciding what `tf.keras` will be."""
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


def is_class_of_keras(kind: type, *names: str) -> bool:
    """Returns whether a class is one of Keras with one of the names; a user's may have them too."""
    return kind.__name__ in names and kind.__module__.partition(".")[0] in _PACKAGES
