"""Raw features as named dense tensors, for clients that hold no tf.Examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError, raise_problems

__all__ = ["from_tensors", "tensor_specs"]


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
