"""TensorFlow with the names that estimator code knows and that later releases took away.

`tf` here is TensorFlow itself but for two things. It has `tf.estimator`. And its Keras is Keras 2,
with the optimizers that it had until 2.10, whatever `tf.keras` is elsewhere in the process:
estimators build TF 1 graphs, where newer Keras cannot make its variables. `tf` is a module object
of its own, so nobody else's `tensorflow` changes.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

__all__ = ["tf"]

_KERAS = "tf_keras.api._v2.keras"
_KERAS_V1 = "tf_keras.api._v1.keras"
_KERAS_MODEL = "generic_trainer.estimator._keras_model"
_OPTIMIZERS = {
    name: f"{_KERAS}.optimizers.legacy:{name}"
    for name in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "Adamax",
        "Ftrl",
        "Nadam",
        "Optimizer",
        "RMSprop",
        "SGD",
    )
}

# Dotted name in TensorFlow → the module, or "module:name", that it means here. The Keras ones are
# what TensorFlow itself takes when TF_USE_LEGACY_KERAS=1.
_ELSEWHERE = {
    "estimator": "generic_trainer.estimator",
    "initializers": f"{_KERAS}.initializers",
    "keras": _KERAS,
    "losses": f"{_KERAS}.losses",
    "metrics": f"{_KERAS}.metrics",
    "optimizers": f"{_KERAS}.optimizers",
    **{f"optimizers.{name}": home for name, home in _OPTIMIZERS.items()},
    **{f"keras.optimizers.{name}": home for name, home in _OPTIMIZERS.items()},
    "keras.estimator.model_to_estimator": f"{_KERAS_MODEL}:model_to_estimator",
    "compat.v1.estimator": "generic_trainer.estimator.v1",
    "compat.v1.keras": _KERAS_V1,
    "compat.v1.keras.estimator.model_to_estimator": f"{_KERAS_MODEL}:model_to_estimator_v1",
    "compat.v1.layers": f"{_KERAS_V1}.__internal__.legacy.layers",
    "compat.v1.nn.rnn_cell": f"{_KERAS_V1}.__internal__.legacy.rnn_cell",
    "compat.v2.estimator": "generic_trainer.estimator",
    "compat.v2.keras": _KERAS,
}


class _TensorFlow(ModuleType):
    """TensorFlow, or a module inside it, with some of its names found elsewhere."""

    def __init__(self, path: str) -> None:
        super().__init__(f"tensorflow.{path}" if path else "tensorflow", __doc__)
        self._path = path

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}" if self._path else name
        if any(place.startswith(f"{path}.") for place in _ELSEWHERE):
            # Kept, so that `tf.compat is tf.compat`.
            return self.__dict__.setdefault(name, _TensorFlow(path))
        return _find(path)

    def __dir__(self) -> list[str]:
        added = (place.rpartition(".") for place in _ELSEWHERE)
        return sorted(
            {*dir(_find(self._path)), *(name for path, _, name in added if path == self._path)}
        )


def _find(path: str) -> Any:
    """Returns what a dotted name in TensorFlow means here; TensorFlow for the empty name."""
    if path in _ELSEWHERE or not path:
        module, _, name = _ELSEWHERE.get(path, "tensorflow").partition(":")
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    parent, _, name = path.rpartition(".")
    return getattr(_find(parent), name)


tf: Any = _TensorFlow("")
