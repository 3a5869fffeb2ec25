"""What `adapt` has taught the layers of a model: vocabularies and statistics.

Layers keep it beside their variables: `StringLookup` its vocabulary in a table, `Discretization`
its quantiles in an array; `Normalization` computes constants from its variables in
`finalize_state`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from generic_trainer.training._walk import walk

_IDF_WEIGHTS = "idf_weights"


def adapted_state(model: Any) -> dict[str, Any]:
    """Returns the vocabularies and arrays of a model's layers, as plain data."""
    return {
        path: {"vocabulary": _vocabulary(layer), "arrays": _arrays(layer)}
        for path, layer in _layers_of(model)
    }


def set_adapted_state(model: Any, states: Mapping[str, Any]) -> None:
    """Restores the state of `adapted_state`; the variables must have been restored before.

    Raises:
        RuntimeError: a layer has been called with a vocabulary of another size.
    """
    for path, layer in _layers_of(model):
        state = states.get(path, {"vocabulary": None, "arrays": {}})
        vocabulary, arrays = state["vocabulary"], dict(state["arrays"])
        weights = {name: arrays.pop(name) for name in (_IDF_WEIGHTS,) if name in arrays}
        if vocabulary not in (None, _vocabulary(layer)):
            layer.set_vocabulary(vocabulary, **weights)
        for name, array in arrays.items():
            setattr(layer, name, array)
        if all(array.size for array in _arrays(layer).values()):  # else it was never adapted
            layer.finalize_state()


def _layers_of(model: Any) -> list[tuple[str, Any]]:
    return [(path, part) for path, part in walk(model) if hasattr(type(part), "finalize_state")]


def _vocabulary(layer: Any) -> list[Any] | None:
    if not hasattr(layer, "lookup_table"):
        return None
    tokens = layer.get_vocabulary(include_special_tokens=True)
    return [token.item() if isinstance(token, np.generic) else token for token in tokens]


def _arrays(layer: Any) -> dict[str, np.ndarray]:
    if not hasattr(type(layer), "adapt"):  # with Keras 2, any layer has `finalize_state`
        return {}
    arrays = {name: value for name, value in vars(layer).items() if isinstance(value, np.ndarray)}
    arrays = {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
    if getattr(layer, "output_mode", None) == "tf_idf" and hasattr(layer, _IDF_WEIGHTS):
        # A variable, which with Keras 3 a layer has only once it has a vocabulary.
        size = len(_vocabulary(layer) or ())
        arrays[_IDF_WEIGHTS] = getattr(layer, _IDF_WEIGHTS).numpy()[:size]
    return arrays
