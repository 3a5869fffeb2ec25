"""Tensors that a signature takes and returns, and the features that it parses from examples."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from generic_trainer.validation._graph import (
    HANDS_ON,
    Graph,
    Place,
    in_main_graph,
    node_name,
    tensors_of,
)

Shape = list[int | None] | None
_PARSES = re.compile(r"Parse\w*Example\w*|DecodeProto\w*|(Eager)?PyFunc\w*")
_VARIABLE = re.compile(r"VarHandleOp|Variable(V2)?")
_READS = re.compile(r"ReadVariableOp|ResourceGather(Nd)?")
_ASSIGNS = re.compile(r"Assign(Add|Sub)?(Variable(Op)?)?$|(Resource)?(Sparse)?(Scatter|Apply)[A-Z]")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or an output of a signature.

    Attributes:
        info: its `TensorInfo`.
    """

    info: Any

    def __str__(self) -> str:
        """Returns e.g. `float32[None, 1]`."""
        dims = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.dtype.name}[{dims}]"

    @property
    def dtype(self) -> Any:
        """The `tf.DType`; a composite tensor has that of its values."""
        import tensorflow as tf

        if self.info.WhichOneof("encoding") == "composite_tensor":
            return tf.as_dtype(self.info.composite_tensor.components[0].dtype)
        return tf.as_dtype(self.info.dtype).base_dtype  # an output can be a reference variable

    @property
    def example_dtype(self) -> str:
        """The dtype of a feature of a `tf.train.Example` that holds such values."""
        if self.dtype.name == "string":
            return "string"
        return "float32" if self.dtype.is_floating else "int64"

    @property
    def shape(self) -> Shape:
        """The dimensions, None for an unknown one or an unknown rank."""
        return dims_of(self.info.tensor_shape)

    @property
    def is_dense(self) -> bool:
        """Whether the tensor is neither ragged nor sparse."""
        return self.info.WhichOneof("encoding") not in ("composite_tensor", "coo_sparse")

    @property
    def is_batched(self) -> bool:
        """Whether the tensor can have any number of rows."""
        return not self.is_dense or self.shape is None or self.shape[:1] == [None]


class Signature:
    """A signature of a model.

    Args:
        proto: the `SignatureDef`.
        graph: of the model; empty if nothing is known of it.

    Attributes:
        proto: the same.
        inputs: name → tensor, sorted.
        outputs: the same.
    """

    def __init__(self, proto: Any, graph: Graph) -> None:
        self.proto = proto
        self._graph = graph
        self.inputs = {key: Tensor(info) for key, info in sorted(proto.inputs.items())}
        self.outputs = {key: Tensor(info) for key, info in sorted(proto.outputs.items())}

    @property
    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yields "input" or "output", the name and the tensor of each."""
        yield from (("input", key, tensor) for key, tensor in self.inputs.items())
        yield from (("output", key, tensor) for key, tensor in self.outputs.items())

    @property
    def is_serialized(self) -> bool:
        """Whether it has one string input of rank 1: serialized examples, or raw text."""
        dtypes = [tensor.dtype.name for tensor in self.inputs.values()]
        return dtypes == ["string"] and all(fits(t.shape, [None]) for t in self.inputs.values())

    @functools.cached_property
    def nodes(self) -> dict[Place, Any]:
        """Every `NodeDef` that it needs, those of the functions it calls included."""
        return self._graph.needed_for(in_main_graph(tensors_of(self.proto.outputs)))

    @functools.cached_property
    def call(self) -> Any:
        """What it calls, with which values, and what it returns of it; None if that is no one call.

        Two signatures for which this is equal compute the same. Keras 3 exports every endpoint,
        and the first of them once more as `serving_default`.
        """
        outputs = {key: tensor.info.name.partition(":") for key, tensor in self.outputs.items()}
        nodes = {node for node, _, _ in outputs.values()}
        call = self._graph.placed.get(("", nodes.pop())) if len(nodes) == 1 else None
        if call is None or not call.op.endswith("PartitionedCall"):
            return None  # to ask another node for its "f" would give it one
        called = self._graph.functions.get(call.attr["f"].func.name)
        if called is None:
            return None
        body = type(called)()
        body.CopyFrom(called)
        body.signature.name = ""
        body.ClearField("arg_attr")  # numbers of this export's captures
        fed = {node_name(tensor.info.name): key for key, tensor in self.inputs.items()}
        shapes = {key: str(tensor) for key, tensor in self.inputs.items()}
        taken = [("input", fed[name]) if name in fed else ("", name) for name in call.input]
        return call.op, shapes, taken, body, {key: index for key, (_, _, index) in outputs.items()}

    @property
    def ops(self) -> set[str]:
        """The ops of its nodes."""
        return {node.op for node in self.nodes.values()}

    @property
    def parses(self) -> bool:
        """Whether it parses protos, such as serialized examples; if not, it takes raw text."""
        return any(map(_PARSES.fullmatch, self.ops))

    @property
    def assigns(self) -> bool:
        """Whether a call changes variables of the model."""
        return any(map(_ASSIGNS.match, self.ops))

    @functools.cached_property
    def assigned(self) -> list[str]:
        """The names of the variables that a call changes, sorted."""
        assigning = [place for place, node in self.nodes.items() if _ASSIGNS.match(node.op)]
        return sorted(self._variables_of(assigning))

    @functools.cached_property
    def remembered(self) -> list[str]:
        """The names of the assigned variables from which its outputs are computed, sorted."""
        if not self.assigned:
            return []
        placed = self._graph.placed
        computing = self._graph.computing(tensors_of(self.proto.outputs)) & placed.keys()
        reading = [place for place in computing if _READS.fullmatch(placed[place].op)]
        return sorted(self._variables_of(reading).intersection(self.assigned))

    def _variables_of(self, users: Sequence[Place]) -> set[str]:
        """Returns the names of the variables that some nodes read or change."""
        places = self._graph.upstream_of(users, through=HANDS_ON)
        nodes = [node for place, node in self._graph.placed.items() if place in places]
        variables = [node for node in nodes if _VARIABLE.fullmatch(node.op)]
        return {node.attr["shared_name"].s.decode() or node.name for node in variables}

    @functools.cached_property
    def features(self) -> dict[str, ParsedFeature]:
        """Name → feature for all that its functions parse from tf.Examples."""
        features: dict[str, ParsedFeature] = {}
        for (function, _), node in self.nodes.items():
            inputs = [
                self._graph.placed.get((function, node_name(source))) for source in node.input
            ]
            for feature in _features_of(node, inputs):
                features.setdefault(feature.name, feature)
        return features


def dims_of(shape: Any) -> Shape:
    """Returns the dimensions of a `TensorShapeProto`, as `Tensor.shape` has them."""
    if shape.unknown_rank:
        return None
    return [None if dim.size < 0 else dim.size for dim in shape.dim]


def described(tensors: Mapping[str, Tensor]) -> str:
    """Returns the inputs or outputs of a signature, e.g. `(x: float32[None, 1])`."""
    return f"({', '.join(f'{key}: {tensor}' for key, tensor in tensors.items())})"


def fits(shape: Sequence[int | None] | None, other: Sequence[int | None] | None) -> bool:
    """Returns whether two shapes can be those of one tensor."""
    import tensorflow as tf

    return bool(tf.TensorShape(shape).is_compatible_with(tf.TensorShape(other)))


def feature_of(key: str, features: Container[str]) -> str:
    """Returns the feature that an input takes: of its name, or of that before Keras's suffix."""
    return key if key in features else key.removesuffix("_input")


class ParsedFeature(NamedTuple):
    """One feature of a parsed tf.Example.

    Attributes:
        name: the feature's key.
        dtype: `"float32"`, `"int64"` or `"string"`.
        size: number of values that a row needs; 1 for any length.
        dense_size: number of values that a row must have; None for any number.
        is_required: whether parsing fails for a row without it.
        is_ragged: whether it becomes a ragged tensor, or a part of one.
    """

    name: str
    dtype: str
    size: int
    dense_size: int | None = None
    is_required: bool = False
    is_ragged: bool = False


def _features_of(node: Any, inputs: Sequence[Any]) -> Iterator[ParsedFeature]:
    """Yields the features that a `NodeDef` parses; `inputs`: its own, None for others' tensors."""
    attributes = node.attr
    defaults: Sequence[Any] = ()
    if node.op == "ParseExampleV2":
        sparse, dense, ragged = map(_strings, inputs[2:5])
        defaults = inputs[5:]
        for parsed in _features(ragged, attributes["ragged_value_types"].list.type):
            yield parsed._replace(is_ragged=True)
    elif node.op == "ParseExample":
        names = [key for tensor in inputs[2:] for key in _strings(tensor)]
        sparse = names[: attributes["Nsparse"].i]
        dense = names[len(sparse) : len(sparse) + attributes["Ndense"].i]
        defaults = inputs[2 + len(sparse) + len(dense) :]
    elif node.op == "ParseSingleExample":
        sparse = attributes["sparse_keys"].list.s
        dense = attributes["dense_keys"].list.s
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
            yield parsed._replace(
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
