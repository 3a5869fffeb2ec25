"""What a signature says about its tensors."""

from __future__ import annotations

from typing import Any

__all__ = ["batched", "describe_info", "dtype_of", "is_dense", "is_serialized", "shape_of"]


def dtype_of(info: Any) -> Any:
    """Returns the `tf.DType` of a `TensorInfo`; a composite tensor has that of its values."""
    import tensorflow as tf

    if info.WhichOneof("encoding") == "composite_tensor":
        return tf.as_dtype(info.composite_tensor.components[0].dtype)
    return tf.as_dtype(info.dtype)


def shape_of(info: Any) -> list[int | None] | None:
    """Returns the dimensions of a `TensorInfo`, None for an unknown one or an unknown rank."""
    if info.tensor_shape.unknown_rank:
        return None
    return [None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim]


def describe_info(info: Any) -> str:
    """Returns e.g. `float32[None, 1]`."""
    shape = shape_of(info)
    dims = "[...]" if shape is None else "[" + ", ".join(map(str, shape)) + "]"
    return f"{dtype_of(info).name}{dims}"


def batched(info: Any) -> bool:
    """Whether the tensor can have any number of rows."""
    shape = shape_of(info)
    return not is_dense(info) or shape is None or (len(shape) > 0 and shape[0] is None)


def is_dense(info: Any) -> bool:
    """Whether the tensor is neither ragged nor sparse."""
    return info.WhichOneof("encoding") not in ("composite_tensor", "coo_sparse")


def is_serialized(signature: Any) -> bool:
    """Whether the signature has one string input of rank 1: serialized examples, or raw text."""
    import tensorflow as tf

    if len(signature.inputs) != 1:
        return False
    (info,) = signature.inputs.values()
    shape = shape_of(info)
    return dtype_of(info) == tf.string and (shape is None or len(shape) == 1)
