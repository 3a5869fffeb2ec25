"""Tensors that a signature takes and returns, and the features that it parses from examples."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core import internals
from generic_trainer.validation._graph import Graphs, Place, node_name

ASSIGNS = re.compile(r"Assign(Add|Sub)?(Variable(Op)?)?$|(Resource)?(Sparse)?(Scatter|Apply)[A-Z]")


def dtype_of(info: Any) -> Any:
    """Returns the `tf.DType` of a `TensorInfo`; a composite tensor has that of its values."""
    import tensorflow as tf

    if info.WhichOneof("encoding") == "composite_tensor":
        return tf.as_dtype(info.composite_tensor.components[0].dtype)
    return tf.as_dtype(info.dtype)


def shape_of(info: Any) -> list[int | None] | None:
    """Returns the dimensions of a `TensorInfo`, None for an unknown one or an unknown rank."""
    return dims_of(info.tensor_shape)


def dims_of(shape: Any) -> list[int | None] | None:
    """Returns the same of a `TensorShapeProto`."""
    return None if shape.unknown_rank else [None if d.size < 0 else d.size for d in shape.dim]


def describe_info(info: Any) -> str:
    """Returns e.g. `float32[None, 1]`."""
    shape = shape_of(info)
    dims = "[...]" if shape is None else "[" + ", ".join(map(str, shape)) + "]"
    return f"{dtype_of(info).name}{dims}"


def describe_infos(infos: Mapping[str, Any]) -> str:
    """Returns the inputs or outputs of a signature, e.g. `(x: float32[None, 1])`."""
    return f"({', '.join(f'{key}: {describe_info(info)}' for key, info in sorted(infos.items()))})"


def shapes_agree(shape: Sequence[int | None] | None, other: Sequence[int | None] | None) -> bool:
    """Returns whether two shapes, as `shape_of` returns them, can be those of one tensor."""
    if shape is None or other is None:
        return True
    pairs = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def tensors(signature: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields "input" or "output", the name and the `TensorInfo` of each tensor of a signature."""
    yield from (("input", key, info) for key, info in sorted(signature.inputs.items()))
    yield from (("output", key, info) for key, info in sorted(signature.outputs.items()))


def feature_of(key: str, features: Container[str]) -> str:
    """Returns the feature that an input takes: of its name, or of that before Keras's suffix."""
    return key if key in features else key.removesuffix("_input")


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


@dataclasses.dataclass(frozen=True)
class ParsedFeature:
    """One feature of a parsed tf.Example.

    Attributes:
        name: the feature's key.
        dtype: `"float32"`, `"int64"` or `"string"`.
        size: number of values that a row needs; 1 for any length.
        dense_size: number of values that a row must have; None for any number.
        is_required: whether parsing fails for a row without it.
    """

    name: str
    dtype: str
    size: int
    dense_size: int | None = None
    is_required: bool = False


def parsed_features(graph_def: Any, signature: Any) -> dict[str, ParsedFeature]:
    """Returns name → feature for all that the signature's functions parse from tf.Examples."""
    graphs = Graphs(graph_def)
    features: dict[str, ParsedFeature] = {}
    for (function, _), node in graphs.needed_for(_outputs(signature)).items():
        inputs = [graphs.placed.get((function, node_name(each))) for each in node.input]
        for feature in _features_of(node, inputs):
            features.setdefault(feature.name, feature)
    return features


def nodes_of(graph_def: Any, signature: Any) -> list[Any]:
    """Returns every `NodeDef` that a signature needs, those of the functions it calls included."""
    return list(Graphs(graph_def).needed_for(_outputs(signature)).values())


def _outputs(signature: Any) -> list[Place]:
    return [("", node_name(info.name)) for info in signature.outputs.values()]


def assigns(graph_def: Any, signature: Any) -> bool:
    """Whether a call of the signature changes variables of the model."""
    return any(ASSIGNS.match(node.op) for node in nodes_of(graph_def, signature))


def tensor_dtype(nodes: Mapping[str, Any], library: Mapping[str, Any], tensor: str) -> Any:
    """Returns the `tf.DType` of a tensor of a graph, None where its op is not known.

    Args:
        nodes: name → `NodeDef` of the graph.
        library: name → `FunctionDef`.
        tensor: `"node:output"`, as a `TensorInfo` has it.

    Raises:
        LookupError: there is no such tensor.
    """
    import tensorflow as tf

    name, _, number = tensor.partition(":")
    node = nodes[name]
    function = library.get(node.op)
    definition = internals.TF_FIND_OP.get()(node.op) if function is None else function.signature
    if definition is None:
        return None
    defaults = {attribute.name: attribute.default_value for attribute in definition.attr}

    def attribute(key: str) -> Any:
        return node.attr[key] if key in node.attr else defaults[key]

    dtypes: list[int] = []
    for output in definition.output_arg:
        if output.type_list_attr:
            dtypes += attribute(output.type_list_attr).list.type
        else:
            dtype = output.type or attribute(output.type_attr).type
            dtypes += [dtype] * (attribute(output.number_attr).i if output.number_attr else 1)
    dtype = dtypes[int(number or 0)]
    return tf.as_dtype(dtype).base_dtype if dtype else None


def _features_of(node: Any, inputs: Sequence[Any]) -> Iterator[ParsedFeature]:
    """Yields the features that a `NodeDef` parses; `inputs`: its own, None for others' tensors."""
    attributes = node.attr
    defaults: Sequence[Any] = ()
    if node.op == "ParseExampleV2":
        sparse, dense, ragged = map(_strings, inputs[2:5])
        defaults = inputs[5:]
        yield from _features(ragged, attributes["ragged_value_types"].list.type)
    elif node.op == "ParseExample":
        names = [key for each in inputs[2:] for key in _strings(each)]
        sparse = names[: attributes["Nsparse"].i]
        dense = names[len(sparse) : len(sparse) + attributes["Ndense"].i]
        defaults = inputs[2 + len(sparse) + len(dense) :]
    elif node.op == "ParseSingleExample":
        sparse, dense = attributes["sparse_keys"].list.s, attributes["dense_keys"].list.s
        defaults = inputs[1:]
    else:
        return
    shapes = attributes["dense_shapes"].list.shape
    yield from _features(sparse, attributes["sparse_types"].list.type)
    for parsed, shape, default in itertools.zip_longest(
        _features(dense, attributes["Tdense"].list.type), shapes, defaults
    ):
        if parsed is not None:
            sizes = [dim.size for dim in shape.dim] if shape is not None else [-1]
            is_fixed = all(size >= 0 for size in sizes)
            yield dataclasses.replace(
                parsed,
                size=math.prod(max(size, 1) for size in sizes),
                dense_size=math.prod(sizes) if is_fixed else None,
                is_required=is_fixed and _is_empty(default),
            )


def _features(keys: Any, types: Any) -> Iterator[ParsedFeature]:
    import tensorflow as tf

    for key, dtype in zip(keys, types, strict=False):
        yield ParsedFeature(key.decode(), tf.as_dtype(dtype).name, size=1)


def _is_empty(node: Any) -> bool:
    """Returns whether a node is a constant without values, which means no default."""
    if node is None or node.op != "Const":
        return False
    return any(dim.size == 0 for dim in node.attr["value"].tensor.tensor_shape.dim)


def _strings(node: Any) -> list[bytes]:
    return list(node.attr["value"].tensor.string_val) if node is not None else []
