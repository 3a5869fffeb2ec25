"""Nodes of a model: the graph's own, and those inside every function of its library.

`meta_info_def.stripped_op_list` misses nodes inside `tf.cond` and `tf.while_loop`, and so does
`saved_model_cli scan`; only a walk over the library finds these nodes. Not all nodes run: a session
runs the nodes that the signatures and the initialisation depend on, and, while it loads, the nodes
that restore the variables.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

_T = TypeVar("_T")
Place = tuple[str, str]  # function (empty for the graph itself) and name of a node in it
When = Literal["served", "restored", "loaded", "saved", "never"]
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
# Methods of a table or another resource that `tf.saved_model.load` calls, and its destructor.
_RESOURCE_METHODS = ("_create_resource", "_initialize", "_destroy_resource")

# Ops that fill a queue or the like, and ops that take out of it.
QUEUES = {
    r"QueueEnqueue(Many)?(V2)?": r"QueueDequeue(Many|UpTo)?(V2)?",
    r"(Ordered)?(Map)?Stage": r"(Ordered)?(Map)?Unstage(NoKey)?",
    r"BarrierInsertMany": r"BarrierTakeMany",
    r"(Resource|Sparse)?AccumulatorApplyGradient": r"(Resource|Sparse)?AccumulatorTakeGradient",
}
# Ops of the add-on libraries, by the start of their names, and the module that registers them.
_LIBRARIES = (
    (r"Addons>", "tensorflow_addons"),
    (r"SimpleML", "tensorflow_decision_forests"),
    (r"IO>", "tensorflow_io"),
    (r"(DecodeProtoSparse|EquiJoin|RunLengthBefore|Struct2Tensor)", "struct2tensor"),
    (r"TFText>|Sentencepiece|Wordpiece|Unicode(Regex|Script)|RegexSplit|WhitespaceTokenize"
     r"|FastWordpiece|FastBert|NormalizeUTF8|CaseFoldUTF8|ConstrainedSeq|SplitMerge|ByteSplit",
     "tensorflow_text"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        proto: the `NodeDef`.
        function: the library function that holds it, empty for the graph itself.
        when: it can run: `"served"`, for a signature or the initialisation; `"restored"`, when a
            session restores the variables; `"loaded"`, only in `tf.saved_model.load`; `"saved"`,
            when a checkpoint is written, which no consumer does; `"never"`, unless a program calls
            it through the object that `tf.saved_model.load` returns.
    """

    proto: Any
    function: str
    when: When

    @property
    def op(self) -> str:
        """The op's name."""
        return self.proto.op

    @property
    def served(self) -> bool:
        """Whether a signature or the initialisation can reach it."""
        return self.when == "served"

    @property
    def where(self) -> str:
        """The node, the graph that holds it and its device, for messages."""
        home = f"function {self.function!r}" if self.function else "the main graph"
        device = f" on {self.proto.device}" if self.proto.device else ""
        return f"{self.proto.name!r} in {home}{device}"


class Graphs:
    """The graph of a model and those of its functions.

    Attributes:
        nodes: function (empty for the graph itself) → its `NodeDef`s.
        placed: place → `NodeDef`.
    """

    def __init__(self, graph_def: Any) -> None:
        functions = graph_def.library.function
        self.nodes = {"": graph_def.node, **{f.signature.name: f.node_def for f in functions}}
        self.placed = {(f, node.name): node for f, nodes in self.nodes.items() for node in nodes}

    def needed_for(self, places: Iterable[Place]) -> dict[Place, Any]:
        """Returns the nodes from which some are computed, and all nodes of functions they call."""

        def onward(place: Place) -> Iterator[Place]:
            if place in self.placed:
                node = self.placed[place]
                yield from ((place[0], node_name(each)) for each in node.input)
                yield from self.inside(functions_of(node))

        return {each: self.placed[each] for each in reached(places, onward) if each in self.placed}

    def inside(self, functions: Iterable[str]) -> Iterator[Place]:
        """Yields the places of all nodes of some functions; other names have none."""
        for function in filter(None, functions):
            yield from ((function, node.name) for node in self.nodes.get(function, ()))


def walk(meta_graph: Any) -> list[Node]:
    """Returns every node of a `MetaGraphDef` and its library; calls of functions are left out."""
    graphs = Graphs(meta_graph.graph_def)
    when: dict[Place, When] = {}
    for reason, roots in _roots(meta_graph).items():
        start = graphs.inside(roots) if reason == "loaded" else (("", node_name(n)) for n in roots)
        for place in graphs.needed_for(start):
            when.setdefault(place, reason)
    return [
        Node(node, function, when.get((function, name), "never"))
        for (function, name), node in graphs.placed.items()
        if node.op not in graphs.nodes
    ]


def _roots(meta_graph: Any) -> dict[When, Iterable[str]]:
    """Returns what is asked for, nodes of the graph or functions; the earlier reason counts."""
    served = [
        name
        for signature in meta_graph.signature_def.values()
        for info in signature.outputs.values()
        for name in tensors_of(info)
    ]
    for key in _INIT_COLLECTIONS:
        served.extend(meta_graph.collection_def[key].node_list.value)
    saver = meta_graph.saver_def
    return {
        "served": served,
        "restored": [saver.restore_op_name],
        "loaded": _called_by_load(meta_graph),
        "saved": [saver.save_tensor_name],
    }


def tensors_of(info: Any) -> list[str]:
    """Returns the names of the tensors of a `TensorInfo`; those not in use are ""."""
    sparse = info.coo_sparse
    parts = [info.name, sparse.values_tensor_name, sparse.indices_tensor_name]
    parts.append(sparse.dense_shape_tensor_name)
    return parts + [part.name for part in info.composite_tensor.components]


def _called_by_load(meta_graph: Any) -> set[str]:
    """Returns the functions that `tf.saved_model.load` calls while it loads, by name."""
    objects = meta_graph.object_graph_def.nodes
    called = [
        child.node_id
        for each in objects
        for child in each.children
        if child.local_name in _RESOURCE_METHODS
    ]
    called += [
        saveable.restore_function for each in objects for saveable in each.saveable_objects.values()
    ]
    names = [name for number in called for name in objects[number].function.concrete_functions]
    bare = [objects[number].bare_concrete_function.concrete_function_name for number in called]
    return {*names, *bare}


def upstream_of(readers: Iterable[Node], graph_def: Any) -> set[Place]:
    """Returns the nodes from which some nodes are computed, through calls of functions.

    Returns:
        Function (empty for the graph itself) and name of every node.
    """
    nodes = Graphs(graph_def).placed
    arguments = {
        function.signature.name: [argument.name for argument in function.signature.input_arg]
        for function in graph_def.library.function
    }
    callers: dict[str, list[tuple[str, Any]]] = {}
    for (name, _), node in nodes.items():
        for called in set(functions_of(node)) & arguments.keys():
            callers.setdefault(called, []).append((name, node))

    def sources(place: Place) -> Iterator[Place]:
        function, name = place
        if place in nodes:
            yield from ((function, node_name(each)) for each in nodes[place].input)
        elif name in arguments.get(function, ()):
            # Inputs of a call are the function's arguments, behind a condition or the like.
            from_end = arguments[function].index(name) - len(arguments[function])
            for caller, node in callers.get(function, ()):
                inputs = [each for each in node.input if not each.startswith("^")]
                if len(inputs) >= -from_end:
                    yield caller, node_name(inputs[from_end])

    read = [(node.function, node_name(each)) for node in readers for each in node.proto.input]
    return set(reached(read, sources))


def reached(start: Iterable[_T], onward: Callable[[_T], Iterable[_T]]) -> dict[_T, None]:
    """Returns all that can be reached, each once: the start, what follows on it, and so on."""
    found: dict[_T, None] = {}
    waiting = list(start)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = None
            waiting += onward(each)
    return found


def listed(nodes: list[Node], shown: int = 4) -> str:
    """Returns the nodes in words, the first few with the graphs that hold them."""
    words = "; ".join(f"{node.op} {node.where}" for node in nodes[:shown])
    return words + (f" and {len(nodes) - shown} more" if len(nodes) > shown else "")


def library_of(op: str) -> str | None:
    """Returns the module that registers an op of a known add-on library, else None."""
    return next((module for start, module in _LIBRARIES if re.match(start, op)), None)


def node_name(tensor: str) -> str:
    """Returns the name of the node that gives a tensor, or that a control input (`^`) waits for."""
    return tensor.split(":")[0].lstrip("^")


def functions_of(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a `NodeDef` may call, and its op's name."""
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        for function in value.list.func:
            yield function.name
