"""Which features a signature parses, as its graph tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from generic_trainer.validation._graph import functions_of

__all__ = ["ParsedFeature", "parsed_features"]


@dataclasses.dataclass(frozen=True)
class ParsedFeature:
    """One feature of a parsed tf.Example.

    Attributes:
        name: the feature's key.
        dtype: `"float32"`, `"int64"` or `"string"`.
        size: how many values a row needs; 1 for one of any length.
    """

    name: str
    dtype: str
    size: int


def parsed_features(graph_def: Any, signature: Any) -> dict[str, ParsedFeature]:
    """Returns name → feature for all that the signature's functions parse from tf.Examples."""
    found: dict[str, ParsedFeature] = {}
    for nodes in _scopes(graph_def, signature):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            for feature in _features_of(node, by_name):
                found.setdefault(feature.name, feature)
    return found


def _scopes(graph_def: Any, signature: Any) -> Iterator[list[Any]]:
    """Yields the nodes that the signature's outputs need, per graph or function."""
    library = {function.signature.name: function for function in graph_def.library.function}
    own = _upstream(graph_def.node, [info.name for info in signature.outputs.values()])
    yield own
    seen: set[str] = set()
    waiting = [name for node in own for name in functions_of(node)]
    while waiting:
        name = waiting.pop()
        if name in library and name not in seen:
            seen.add(name)
            nodes = list(library[name].node_def)
            waiting += [callee for node in nodes for callee in functions_of(node)]
            yield nodes


def _upstream(nodes: Any, tensors: list[str]) -> list[Any]:
    by_name = {node.name: node for node in nodes}
    found: dict[str, Any] = {}
    waiting = [_node_name(tensor) for tensor in tensors]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in found:
            found[name] = by_name[name]
            waiting += [_node_name(tensor) for tensor in by_name[name].input]
    return list(found.values())


def _features_of(node: Any, by_name: dict[str, Any]) -> Iterator[ParsedFeature]:
    attributes = node.attr
    dense_types = attributes["Tdense"].list.type
    dense_sizes = [_size(shape) for shape in attributes["dense_shapes"].list.shape]
    sparse_types = attributes["sparse_types"].list.type
    if node.op == "ParseExampleV2":
        sparse, dense, ragged = (_strings(by_name, name) for name in node.input[2:5])
        yield from _features(ragged, attributes["ragged_value_types"].list.type)
    elif node.op == "ParseExample":
        names = [key for name in node.input[2:] for key in _strings(by_name, name)]
        sparse = names[: attributes["Nsparse"].i]
        dense = names[len(sparse) : len(sparse) + attributes["Ndense"].i]
    elif node.op == "ParseSingleExample":
        sparse, dense = attributes["sparse_keys"].list.s, attributes["dense_keys"].list.s
    else:
        return
    yield from _features(dense, dense_types, dense_sizes)
    yield from _features(sparse, sparse_types)


def _features(keys: Any, types: Any, sizes: list[int] | None = None) -> Iterator[ParsedFeature]:
    import tensorflow as tf

    for index, (key, dtype) in enumerate(zip(keys, types, strict=False)):
        size = sizes[index] if sizes else 1
        yield ParsedFeature(key.decode(), tf.as_dtype(dtype).name, size)


def _strings(by_name: dict[str, Any], tensor: str) -> list[bytes]:
    node = by_name.get(_node_name(tensor))
    return list(node.attr["value"].tensor.string_val) if node is not None else []


def _size(shape: Any) -> int:
    size = 1
    for dim in shape.dim:
        size *= max(dim.size, 1)
    return size


def _node_name(tensor: str) -> str:
    return tensor.split(":")[0].lstrip("^")
