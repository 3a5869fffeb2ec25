"""The nodes of a model: the graph's own, and those inside every function of its library.

`meta_info_def.stripped_op_list` misses what is inside `tf.cond` and `tf.while_loop`, and so does
`saved_model_cli scan`; only a walk over the library finds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

__all__ = ["Node", "constants", "functions_of", "walk"]


@dataclasses.dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        proto: the `NodeDef`.
        function: the library function that holds it, empty for the graph itself.
        served: whether a signature, or the initialisation, can get there. What is not served is
            reached only through the Python object that `tf.saved_model.load` returns.
    """

    proto: Any
    function: str
    served: bool

    @property
    def op(self) -> str:
        """The op's name."""
        return self.proto.op

    @property
    def where(self) -> str:
        """The node's place in words, for messages."""
        home = f"function {self.function!r}" if self.function else "the main graph"
        return f"{self.proto.name!r} in {home}"


def walk(graph_def: Any) -> list[Node]:
    """Returns every node of a `GraphDef` and its library; calls of functions are left out."""
    library = {function.signature.name: function for function in graph_def.library.function}
    served = _reachable(graph_def, library)
    nodes = [Node(proto, "", True) for proto in graph_def.node]
    for name, function in library.items():
        nodes.extend(Node(proto, name, name in served) for proto in function.node_def)
    return [node for node in nodes if node.op not in library]


def constants(nodes: list[Node]) -> Iterator[tuple[Node, list[bytes]]]:
    """Yields the string constants among the nodes with their values."""
    import tensorflow as tf

    for node in nodes:
        if node.op == "Const":
            tensor = node.proto.attr["value"].tensor
            if tensor.dtype == tf.string.as_datatype_enum:
                yield node, list(tensor.string_val)


def _reachable(graph_def: Any, library: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    waiting = [name for node in graph_def.node for name in functions_of(node)]
    while waiting:
        name = waiting.pop()
        if name in library and name not in found:
            found.add(name)
            waiting.extend(n for node in library[name].node_def for n in functions_of(node))
    return found


def functions_of(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a `NodeDef` may call, and its op's name."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        for function in value.list.func:
            yield function.name
