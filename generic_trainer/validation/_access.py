"""Access of a model's ops to files and to the network, as far as their definitions show it.

TensorFlow's registry does not state which ops open a file or a connection. The inputs and
attributes of an op show it: a `filename`, a `logdir`, a `server_address`, the `writer` of a
summary, ... So ops of a later release are known without a list; a few that only their names
distinguish are listed here. `tests/validation/test_file_ops.py` compares this with the
documentation of all ops.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from generic_trainer._core import internals
from generic_trainer.validation._graph import Graph, Node, Place, node_name, reached, tensors_of

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
    r"ReadFile|InitializeTableFromTextFile(V2)?|Restore(V2|Slice)?|"
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

    An op reaches nothing whose file is an attribute that is not set. In a function, its caller may
    set it.
    """
    if node.op == "PrintV2":
        stream = node.attr["output_stream"]
        return bool(stream.placeholder or stream.s.startswith(b"file:"))
    always, attributes = _reach_of(node.op)
    values = [node.attr[name] for name in attributes]
    texts = (text for value in values for text in (value.s, *value.list.s))
    is_set = any(value.placeholder for value in values)
    return always or is_set or not all(map(_NO_FILE.fullmatch, texts))


def may_reach_out(op: str, has_file: bool) -> bool:
    """Returns whether an op whose attributes are not known can reach files or the network.

    Args:
        op: its name.
        has_file: whether the model has the address of a file, which `PrintV2` needs.
    """
    return any(_reach_of(op)) or (op == "PrintV2" and has_file)


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
        graph: of the model.
        tracked: nodes of the graph itself that hold the path of an asset.
    """

    def __init__(self, graph: Graph, tracked: set[str]) -> None:
        self._graph = graph
        self._placed = graph.placed
        self._tracked = tracked
        # Any tensor can be an input of a signature: a client then feeds it, whatever its node does.
        self._fed = {
            node_name(tensor)
            for signature in graph.meta_graph.signature_def.values()
            for tensor in tensors_of(signature.inputs)
        }
        self._handles: dict[str, list[Place]] = {}
        for place, node in graph.placed.items():
            if node.op == "VarHandleOp":
                self._handles.setdefault(_resource_name(node), []).append(place)
        self._has_hidden_handles = any(map(_makes_hidden_handles, graph.placed.values()))

    def are_all_that_is_read(self, node: Node) -> bool:
        """Returns whether every file that a node reads is an asset, or its cache is memory."""
        is_cache = node.op.startswith("CacheDataset")
        if not is_cache and not _READERS.fullmatch(node.op):
            return False
        definition = internals.TF_FIND_OP.get()(node.op)
        names = [arg.name for arg in definition.input_arg]
        tensors = [node.proto.input[names.index(name)] for name in places(definition)]
        read: list[Place | None] = [(node.function, node_name(tensor)) for tensor in tensors]
        if is_cache:
            sources = [self._placed.get(place) for place in filter(None, read)]
            return all(source is not None and _texts(source) == [b""] for source in sources)
        return None not in reached(read, self._origins)

    def _origins(self, place: Place | None) -> Iterator[Place | None]:
        """Yields the nodes whose paths a node hands on, and None if it can give any other path."""
        if place is None:
            return
        graph, name = place
        node = self._placed.get(place)
        if not graph and name in self._fed:
            yield None
        elif node is None:
            yield from self._origins_of_argument(graph, name)
        elif not graph and name in self._tracked:
            return
        elif node.op == "Const":  # a path would be text
            if not all(text in _COMPRESSIONS for text in _texts(node)):
                yield None
        elif node.op == "ReadVariableOp" and not graph:
            yield from self._origins_of_variable(node_name(node.input[0]))
        elif _HANDS_ON.fullmatch(node.op):
            yield from ((graph, node_name(source)) for source in node.input if source[0] != "^")
        else:
            yield None

    def _origins_of_variable(self, name: str) -> Iterator[Place | None]:
        """The same for a variable of the graph itself: TensorFlow 2 keeps the paths in some.

        All handles of one shared name are the same variable, so every assignment counts.
        """
        handle = self._placed.get(("", name))
        if handle is None or handle.op != "VarHandleOp" or self._has_hidden_handles:
            yield None
            return
        handles = self._handles[_resource_name(handle)]
        names = {name for _, name in handles}
        used = [
            node
            for (graph, _), node in self._placed.items()
            if not graph
            and names & set(map(node_name, node.input))
            and node.op not in _LOOKS_AT_A_VARIABLE
        ]
        if not used or any(graph for graph, _ in handles):
            yield None
        for node in used:
            yield ("", node_name(node.input[1])) if node.op == "AssignVariableOp" else None

    def _origins_of_argument(self, graph: str, name: str) -> Iterator[Place | None]:
        """The same for an argument of a function, which its callers give."""
        callers = [
            caller for caller in self._graph.callers.get(graph, ()) if caller in self._graph.when
        ]
        if not callers:
            yield None
            return
        objects = self._graph.meta_graph.object_graph_def
        arguments = self._graph.arguments[graph]
        functions = objects.concrete_functions
        bound = functions[graph].bound_inputs if graph in functions else ()
        index = arguments.index(name) - len(arguments) + len(bound)
        if index >= 0:  # tf.saved_model.load, which calls by the objects, gives it too
            node = objects.nodes[bound[index]]
            if node.WhichOneof("kind") != "asset":
                is_constant = node.WhichOneof("kind") == "constant"
                yield ("", node.constant.operation) if is_constant else None
        for place in callers:
            tensors = [tensor for tensor in self._placed[place].input if tensor[0] != "^"]
            if self._placed[place].op in _CALLS:
                tensors = [tensors[arguments.index(name)]]
            # Elsewhere, as with a dataset's, an argument can be any of what the node is given.
            yield from ((place[0], node_name(tensor)) for tensor in tensors)


def _resource_name(handle: Any) -> str:
    """Returns the name of a variable, which all handles with this name share."""
    return handle.attr["shared_name"].s.decode(errors="replace") or handle.name


def _makes_hidden_handles(node: Any) -> bool:
    """Returns whether a node makes handles of resources that it does not name in `shared_name`."""
    import tensorflow as tf

    kinds = (node.attr[name].type for name in ("dtype", "out_type"))
    is_maker = node.op in ("Const", "HostConst", "Placeholder", "ParseTensor", "DecodeProtoV2")
    is_named = node.op != "_VarHandlesOp" and not node.attr["shared_name"].placeholder
    return not is_named or (is_maker and tf.resource.as_datatype_enum in kinds)


def _texts(node: Any) -> list[bytes]:
    """Returns the strings of a constant: stored, packed, or passed by the caller of its function.

    Packed strings are returned as one, without the first byte, the length of a short string.
    """
    value = node.attr["value"]
    packed = [value.tensor.tensor_content[1:]] if value.tensor.tensor_content else []
    passed = [b"$" + value.placeholder.encode()] if value.placeholder else []
    return [*value.tensor.string_val, *packed, *passed]
