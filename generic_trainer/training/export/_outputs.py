"""Named dense tensors from whatever a model returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ExportError, raise_problems

__all__ = ["dense_only", "named_outputs"]


def named_outputs(outputs: Any, output_name: str, names: Any = None) -> dict[str, tf.Tensor]:
    """Returns the outputs of a signature.

    1. A tensor is called `output_name`.
    2. A dict and a named tuple keep their names.
    3. A list takes the model's own `output_names`, else `output_name` with `_0`, `_1`, ...

    Args:
        outputs: what the model, or `postprocess`, returned; each tensor [N, ...], N examples.
        output_name: see above.
        names: the model's `output_names`, if it has any.

    Raises:
        ExportError: something else than tensors with a row per example; lists all that is wrong.
    """
    named = {name: _tensor(value) for name, value in _named(outputs, output_name, names).items()}
    problems = [
        f"output {name!r} should be a dense tensor [batch, ...], found {_describe(value)}"
        for name, value in named.items()
        if not isinstance(value, tf.Tensor) or value.shape.rank == 0
    ]
    remedy = "the model's outputs cannot be served (change them with postprocess=)"
    raise_problems(ExportError, remedy, problems)
    return named


def dense_only(features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the dense ones of `features`; a signature's outputs cannot be sparse or ragged.

    They are not filled up either: their width would then depend on the other rows of the batch.
    """
    return {name: value for name, value in features.items() if isinstance(value, tf.Tensor)}


def _named(outputs: Any, output_name: str, names: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    if not isinstance(outputs, (list, tuple)):
        return {output_name: outputs}
    if not names or len(names) != len(outputs):
        names = [f"{output_name}_{index}" for index in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))


def _tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if hasattr(value, "__array__") else value


def _describe(value: Any) -> str:
    if isinstance(value, tf.Tensor):
        return "a single value without a batch dimension"
    return f"a {type(value).__name__}"
