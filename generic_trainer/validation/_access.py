"""Access of a model's ops to files and to the network, as far as their definitions show it.

TensorFlow's registry does not state which ops open a file or a connection. The inputs and
attributes of an op show it: a `filename`, a `logdir`, a `server_address`, the `writer` of a
summary, ... So ops of a later release are known without a list; a few that only their names
distinguish are listed here. `tests/validation/test_access.py` compares this with the documentation
of all ops.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from generic_trainer._core import internals
from generic_trainer.validation._graph import Node, functions_of, node_name, tensors_of

_PLACE = re.compile(
    r"(.+_)?(file|files|filename|filenames|dir|directory|logdir|path|uri)(_.+)?"
    r"|prefix|(checkpoint|destination|reader|writer)_prefix(es)?|(server_)?address|(debug_)?urls?"
    r"|data_source_name|memory_region_name|debug_ops_spec|descriptor_source"
)
# Ops that only their names distinguish.
_BY_NAME = re.compile(r"MatchingFiles|^FileSystem|Rpc|(Load|Retrieve)\w*TPUEmbedding\w*Parameters")
_HARMLESS = ("IdentityReader", "IdentityReaderV2")  # they read what they are fed
# It runs a graph that is data, which cannot be examined.
_HIDES_A_GRAPH = ("DatasetFromGraph",)
# Values of an attribute that stand for no file: none, a memory's, protos that are compiled in.
_NO_FILE = re.compile(rb"|(local|bytes)://.*", re.DOTALL)

# Ops that may read an asset of the model: they travel with it.
_READERS = re.compile(
    r"ReadFile|InitializeTableFromTextFile(V2)?|"
    r"(Experimental)?(TFRecord|TextLine|FixedLengthRecord|CSV|LMDB)Dataset(V2)?"
)
# They hand on the path that they get, alone or among others, and make no other of it.
_HANDS_ON = re.compile(
    r"Identity(N)?|Reshape|ExpandDims|Squeeze|Pack|ConcatV2|StridedSlice|Switch|Merge|Enter|Exit|"
    r"Tensor(Slice)?Dataset|ConcatenateDataset|OptionsDataset|PrefetchDataset|RepeatDataset"
)
_LOOKS_AT_A_VARIABLE = ("ReadVariableOp", "VarIsInitializedOp")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_COMPRESSIONS = (b"", b"GZIP", b"ZLIB")


def reaches_out(node: Any) -> bool:
    """Returns whether the op of a `NodeDef` reaches files or the network; an unknown op does not.

    An op reaches nothing whose file is an attribute that is not set.
    """
    if node.op == "PrintV2":
        return bool(node.attr["output_stream"].s.startswith(b"file:"))
    always, attributes = _reach_of(node.op)
    values = [node.attr[name] for name in attributes]
    texts = (text for value in values for text in (value.s, *value.list.s))
    return always or not all(map(_NO_FILE.fullmatch, texts))


@functools.cache  # of an op that thousands of nodes have
def _reach_of(op: str) -> tuple[bool, tuple[str, ...]]:
    """Returns whether an op always reaches out, and its attributes that name a place."""
    definition = internals.TF_FIND_OP.get()(op)
    if definition is None or op in _HARMLESS:
        return False, ()
    outputs = [arg.name for arg in definition.output_arg]
    handles = [*outputs, *(arg.name for arg in definition.input_arg)]
    always = (
        places(definition)
        or "reader_handle" in outputs
        or "writer" in handles
        or _BY_NAME.search(op)
        or op in _HIDES_A_GRAPH
    )
    return bool(always), tuple(a.name for a in definition.attr if _PLACE.fullmatch(a.name))


def places(definition: Any) -> list[str]:
    """Returns the inputs of an `OpDef` that name a file, a directory or an address."""
    import tensorflow as tf

    string = tf.string.as_datatype_enum
    names = [arg.name for arg in definition.input_arg if arg.type == string]
    return [name for name in names if _PLACE.fullmatch(name)]


def is_inside(filename: str) -> bool:
    """Returns whether the name of an asset stays inside the directory of the assets."""
    path = PurePosixPath(filename)
    return not path.is_absolute() and ".." not in path.parts


class Assets:
    """The assets of a model, and the nodes that read only assets.

    Args:
        nodes: of the graph and its functions.
        meta_graph: the `MetaGraphDef` that the nodes are from.
        tracked: nodes of the graph itself that hold the path of an asset.
    """

    def __init__(self, nodes: Iterable[Node], meta_graph: Any, tracked: set[str]) -> None:
        self._tracked = tracked
        self._objects = meta_graph.object_graph_def
        # Any tensor can be an input of a signature: a client then feeds it, whatever its node does.
        self._fed = {
            node_name(tensor)
            for signature in meta_graph.signature_def.values()
            for info in signature.inputs.values()
            for tensor in filter(None, tensors_of(info))
        }
        self._arguments = {
            function.signature.name: [arg.name for arg in function.signature.input_arg]
            for function in meta_graph.graph_def.library.function
        }
        self._graphs: dict[str, dict[str, Any]] = {"": {}}
        self._callers: dict[str, list[Node]] = {}
        self._handles: dict[str, list[Node]] = {}
        self._has_hidden_handles = False
        for node in nodes:
            self._graphs.setdefault(node.function, {})[node.proto.name] = node.proto
            if node.op == "VarHandleOp":
                self._handles.setdefault(_resource_name(node.proto), []).append(node)
            self._has_hidden_handles |= _makes_hidden_handles(node.proto)
            if node.when != "never":
                for name in functions_of(node.proto):
                    self._callers.setdefault(name, []).append(node)

    def are_all_that_is_read(self, node: Node) -> bool:
        """Returns whether every file that a node reads is an asset, or its cache is memory."""
        is_cache = node.op.startswith("CacheDataset")
        if not is_cache and not _READERS.fullmatch(node.op):
            return False
        definition = internals.TF_FIND_OP.get()(node.op)
        names = [arg.name for arg in definition.input_arg]
        tensors = [node.proto.input[names.index(name)] for name in places(definition)]
        if is_cache:
            return all(self._is_empty(node.function, tensor) for tensor in tensors)
        return self._are_assets(node.function, tensors, set())

    def _is_empty(self, graph: str, tensor: str) -> bool:
        source = self._graphs[graph].get(node_name(tensor))
        return source is not None and _texts(source) == [b""]

    def _is_asset(self, graph: str, tensor: str, seen: set[tuple[str, str]]) -> bool:
        """Returns whether all paths that a tensor can hold are those of assets."""
        name = node_name(tensor)
        if (graph, name) in seen:
            return True  # a loop: whatever else comes in decides
        seen.add((graph, name))
        if not graph and name in self._fed:
            return False
        node = self._graphs[graph].get(name)
        if node is None:
            return self._is_argument_asset(graph, name, seen)
        if not graph and name in self._tracked:
            return True
        if node.op == "Const":  # a path would be text
            return all(text in _COMPRESSIONS for text in _texts(node))
        if node.op == "ReadVariableOp":
            return not graph and self._is_asset_variable(node_name(node.input[0]), seen)
        return bool(_HANDS_ON.fullmatch(node.op)) and self._are_assets(graph, node.input, seen)

    def _are_assets(self, graph: str, tensors: Iterable[str], seen: set[tuple[str, str]]) -> bool:
        return all(self._is_asset(graph, each, seen) for each in tensors if each[0] != "^")

    def _is_asset_variable(self, name: str, seen: set[tuple[str, str]]) -> bool:
        """The same for a variable of the graph itself: TensorFlow 2 keeps the paths in some.

        All handles of one shared name are the same variable, so every assignment counts.
        """
        node = self._graphs[""].get(name)
        if node is None or node.op != "VarHandleOp" or self._has_hidden_handles:
            return False
        handles = self._handles[_resource_name(node)]
        names = {handle.proto.name for handle in handles}
        used = [
            node
            for node in self._graphs[""].values()
            if names & set(map(node_name, node.input)) and node.op not in _LOOKS_AT_A_VARIABLE
        ]
        return (
            not any(handle.function for handle in handles)
            and bool(used)
            and all(
                node.op == "AssignVariableOp" and self._is_asset("", node.input[1], seen)
                for node in used
            )
        )

    def _is_argument_asset(self, graph: str, name: str, seen: set[tuple[str, str]]) -> bool:
        """The same for an argument of a function, whose callers give it."""
        if not self._is_bound_to_asset(graph, name, seen):
            return False
        for caller in self._callers.get(graph, ()):
            tensors = [each for each in caller.proto.input if each[0] != "^"]
            if caller.op in _CALLS:
                tensors = [tensors[self._arguments[graph].index(name)]]
            # Elsewhere, as with a dataset's, an argument can be any of what the node is given.
            if not self._are_assets(caller.function, tensors, seen):
                return False
        return graph in self._callers

    def _is_bound_to_asset(self, graph: str, name: str, seen: set[tuple[str, str]]) -> bool:
        """Returns whether `tf.saved_model.load` passes an asset too, which calls by the objects."""
        if graph not in self._objects.concrete_functions:
            return True
        bound = self._objects.concrete_functions[graph].bound_inputs
        arguments = self._arguments[graph]
        index = arguments.index(name) - len(arguments) + len(bound)
        if index < 0:  # the caller passes it
            return True
        node = self._objects.nodes[bound[index]]
        if node.WhichOneof("kind") == "constant":
            return self._is_asset("", node.constant.operation, seen)
        return node.WhichOneof("kind") == "asset"


def _resource_name(handle: Any) -> str:
    """Returns the name of a variable, which all handles with this name share."""
    return handle.attr["shared_name"].s.decode(errors="replace") or handle.name


def _makes_hidden_handles(node: Any) -> bool:
    """Returns whether a node makes handles of resources that it does not name in `shared_name`."""
    import tensorflow as tf

    kinds = (node.attr[name].type for name in ("dtype", "out_type"))
    is_maker = node.op in ("Const", "HostConst", "Placeholder", "ParseTensor", "DecodeProtoV2")
    return node.op == "_VarHandlesOp" or (is_maker and tf.resource.as_datatype_enum in kinds)


def _texts(node: Any) -> list[bytes]:
    return list(node.attr["value"].tensor.string_val)
