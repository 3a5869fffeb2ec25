"""Named dense tensors, the inputs and outputs of signatures.

Outputs are made of whatever a model returns, inputs of raw features for clients that hold no
tf.Examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, ExportError, raise_problems


def named_outputs(outputs: Any, output_name: str, names: Any = None) -> dict[str, tf.Tensor]:
    """Returns the outputs of a signature.

    1. A tensor is called `output_name`.
    2. A dict and a named tuple keep their names.
    3. A list takes `names`, the model's own `output_names`, where there are as many; else
       `output_name` with `_0`, `_1`, ...

    Raises:
        ExportError: something else than tensors with a row per example; lists all that is wrong.
    """
    named = {
        name: tf.convert_to_tensor(value) if hasattr(value, "__array__") else value
        for name, value in _named(outputs, output_name, names).items()
    }
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


def tensor_specs(raw_spec: Mapping[str, Any]) -> dict[str, tf.TensorSpec]:
    """Returns feature name → spec of the tensor that a client sends.

    A dense feature is [N, ...] as `tf.io.parse_example` makes it. One of varying length is
    [N, longest]; see `from_tensors` for what fills the shorter rows.

    Raises:
        ConfigurationError: a feature has more parts than one dense tensor can hold.
    """
    problems = [
        f"feature {name!r} is a {type(spec).__name__}"
        for name, spec in raw_spec.items()
        if not isinstance(spec, (tf.io.FixedLenFeature, tf.io.VarLenFeature))
    ]
    subject = "raw_signature=True needs features that one dense tensor can hold"
    raise_problems(ConfigurationError, subject, problems)
    return {name: tf.TensorSpec(_shape(spec), spec.dtype, name) for name, spec in raw_spec.items()}


def from_tensors(
    tensors: Mapping[str, tf.Tensor], raw_spec: Mapping[str, Any]
) -> dict[str, tf.Tensor | tf.SparseTensor]:
    """Returns what `tf.io.parse_example` would have returned.

    In features of varying length, NaN and the empty string mean that there is no value; every
    integer is a value.
    """
    return {
        name: _sparse(tensors[name]) if isinstance(spec, tf.io.VarLenFeature) else tensors[name]
        for name, spec in raw_spec.items()
    }


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


def _describe(value: Any) -> str:
    if isinstance(value, tf.Tensor):
        return "a single value without a batch dimension"
    return f"a {type(value).__name__}"


def _shape(spec: Any) -> list[int | None]:
    if isinstance(spec, tf.io.VarLenFeature):
        return [None, None]
    shape = [spec.shape] if isinstance(spec.shape, int) else list(spec.shape)
    return [None, *shape]


def _sparse(tensor: tf.Tensor) -> tf.SparseTensor:
    if tensor.dtype == tf.string:
        is_there = tf.not_equal(tensor, "")
    elif tensor.dtype.is_floating:
        is_there = tf.logical_not(tf.math.is_nan(tensor))
    else:
        is_there = tf.ones_like(tensor, tf.bool)
    where = tf.where(is_there)
    shape = tf.shape(tensor, out_type=tf.int64)
    return tf.SparseTensor(where, tf.gather_nd(tensor, where), shape)
