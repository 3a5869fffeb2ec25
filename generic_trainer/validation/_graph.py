"""Nodes of a model: the graph's own, and those inside every function of its library.

`meta_info_def.stripped_op_list` misses nodes inside `tf.cond` and `tf.while_loop`, and so does
`saved_model_cli scan`; only a walk over the library finds these nodes. Not all nodes run: a session
runs the nodes that the signatures and the initialisation depend on, and, while it loads, the nodes
that restore the variables.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from generic_trainer._core import internals, texts

_T = TypeVar("_T")
Place = tuple[str, str]  # function (empty for the graph itself) and name of a node in it
When = Literal["served", "restored", "loaded", "replacing", "saved", "never"]
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
# Methods of a table or another resource that `tf.saved_model.load` calls, and its destructor.
_RESOURCE_METHODS = ("_create_resource", "_initialize", "_destroy_resource")

# Ops that hand values on and compute nothing.
HANDS_ON = frozenset({
    "ConcatV2", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Merge", "NextIteration",
    "Pack", "Reshape", "Slice", "Snapshot", "Split", "SplitV", "Squeeze", "StopGradient",
    "StridedSlice", "Switch", "Tile", "Transpose", "Unpack",
})  # fmt: skip
# Calls whose outputs are those of each function that they may call.
_CALLS = re.compile(r"(Stateful)?PartitionedCall|(Stateless)?(If|Case)")
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


class Node(NamedTuple):
    """One node.

    Attributes:
        proto: the `NodeDef`.
        function: the library function that holds it, empty for the graph itself.
        when: it can run: `"served"`, for a signature or the initialisation; `"restored"`, when a
            session restores the variables; `"loaded"`, only in `tf.saved_model.load`;
            `"replacing"`, where TensorFlow replaces a function with it; `"saved"`, when a
            checkpoint is written, which no consumer does; `"never"`, unless a program calls it
            through the object that `tf.saved_model.load` returns.
    """

    proto: Any
    function: str
    when: When

    @property
    def op(self) -> str:
        """The op's name."""
        return self.proto.op

    @property
    def place(self) -> Place:
        """The function and the node's name."""
        return self.function, self.proto.name

    @property
    def served(self) -> bool:
        """Whether a signature or the initialisation can reach it."""
        return self.when == "served"

    @property
    def size(self) -> int:
        """How many values a constant has; 1 for other ops."""
        return math.prod(dim.size for dim in self.proto.attr["value"].tensor.tensor_shape.dim)

    @property
    def where(self) -> str:
        """The node, the graph that holds it and its device, for messages."""
        home = f"function {self.function!r}" if self.function else "the main graph"
        device = f" on {self.proto.device}" if self.proto.device else ""
        return f"{self.proto.name!r} in {home}{device}"


class Graph:
    """The graph of a model and those of its functions.

    Attributes:
        meta_graph: the `MetaGraphDef`.
        functions: name → `FunctionDef`.
        placed: place → `NodeDef`.
        arguments: function → the names of its arguments.
        callers: function → the places of the nodes that may call it.
    """

    def __init__(self, meta_graph: Any) -> None:
        self.meta_graph = meta_graph
        graph_def = meta_graph.graph_def
        self.functions = {
            function.signature.name: function for function in graph_def.library.function
        }
        graphs = {
            "": graph_def.node,
            **{n: function.node_def for n, function in self.functions.items()},
        }
        self.placed = {(f, node.name): node for f, nodes in graphs.items() for node in nodes}
        self.arguments = {
            name: [argument.name for argument in function.signature.input_arg]
            for name, function in self.functions.items()
        }
        self.callers: dict[str, list[Place]] = {}
        for place, node in self.placed.items():
            for name in self.functions.keys() & functions_of(node):
                self.callers.setdefault(name, []).append(place)

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """Every node of the graph and its functions; calls of functions are left out."""
        return [
            Node(node, function, self.when.get((function, name), "never"))
            for (function, name), node in self.placed.items()
            if node.op not in self.functions
        ]

    @functools.cached_property
    def when(self) -> dict[Place, When]:
        """When a node runs, of those that do; the earlier of several reasons counts."""
        meta_graph = self.meta_graph
        saver = meta_graph.saver_def
        served: list[str] = []
        for signature in meta_graph.signature_def.values():
            served += tensors_of(signature.outputs)
        for key in _INIT_COLLECTIONS:
            served.extend(meta_graph.collection_def[key].node_list.value)
        starts: dict[When, Iterable[Place]] = {
            "served": in_main_graph(served),
            "restored": in_main_graph([saver.restore_op_name]),
            "loaded": self._inside(_called_by_load(meta_graph)),
            "replacing": self._inside(_replacements(meta_graph.graph_def.library)),
            "saved": in_main_graph([saver.save_tensor_name]),
        }
        when: dict[Place, When] = {}
        for reason, start in starts.items():
            for place in self.needed_for(start):
                when.setdefault(place, reason)
        return when

    def needed_for(self, places: Iterable[Place], fed: Container[str] = ()) -> dict[Place, Any]:
        """Returns the nodes from which some are computed, and all nodes of functions they call.

        Args:
            places: of the nodes that are computed.
            fed: nodes of the graph itself that are given and not computed.
        """

        def onward(place: Place) -> Iterator[Place]:
            if place in self.placed and not (place[0] == "" and place[1] in fed):
                node = self.placed[place]
                yield from ((place[0], node_name(source)) for source in node.input)
                yield from self._inside(functions_of(node))

        return {
            place: self.placed[place] for place in reached(places, onward) if place in self.placed
        }

    def computing(
        self, tensors: Iterable[str], through: Container[str] | None = None
    ) -> set[Place]:
        """Returns the places that give tensors of the graph itself their values.

        Of a function, only the nodes count from which the needed outputs are computed.

        Args:
            tensors: of the graph itself.
            through: the ops whose inputs are followed, beside calls of functions; None for all.
        """

        def sources(tensor: tuple[str, str]) -> Iterator[tuple[str, str]]:
            function, text = tensor
            if (node := self.placed.get((function, node_name(text)))) is None:
                return  # an argument; the inputs of the call are followed
            called_by_it = self.functions.keys() & functions_of(node)
            if through is None or called_by_it or node.op in through:
                yield from ((function, source) for source in node.input if source[0] != "^")
            for name in called_by_it:
                called = self.functions[name]
                outputs = [called.ret[output.name] for output in called.signature.output_arg]
                if _CALLS.fullmatch(node.op):
                    number = int(text.rpartition(":")[2]) if ":" in text else 0
                    outputs = outputs[number : number + 1]
                yield from ((name, output) for output in outputs)

        tensors_read = reached((("", tensor) for tensor in tensors), sources)
        return {(function, node_name(tensor)) for function, tensor in tensors_read}

    def upstream_of(
        self, readers: Iterable[Place], through: Container[str] | None = None
    ) -> set[Place]:
        """Returns the places from which some nodes are computed, through calls of functions.

        Args:
            readers: places of the nodes.
            through: the ops whose inputs are followed; None for all.
        """

        def inputs_of(place: Place) -> Iterator[Place]:
            yield from ((place[0], node_name(source)) for source in self.placed[place].input)

        def sources(place: Place) -> Iterator[Place]:
            function, name = place
            if place in self.placed:
                if through is None or self.placed[place].op in through:
                    yield from inputs_of(place)
            elif name in self.arguments.get(function, ()):
                # Inputs of a call are the function's arguments, behind a condition or the like.
                from_end = self.arguments[function].index(name) - len(self.arguments[function])
                for caller in self.callers.get(function, ()):
                    inputs = [source for source in self.placed[caller].input if source[0] != "^"]
                    if len(inputs) >= -from_end:
                        yield caller[0], node_name(inputs[from_end])

        return set(reached(itertools.chain.from_iterable(map(inputs_of, readers)), sources))

    def dtype_of(self, tensor: str) -> Any:
        """Returns the `tf.DType` of a tensor of the graph itself, None where its op is not known.

        Args:
            tensor: `"node:output"`, as a `TensorInfo` has it.

        Raises:
            LookupError: there is no such tensor.
        """
        import tensorflow as tf

        name, _, number = tensor.partition(":")
        node = self.placed["", name]
        function = self.functions.get(node.op)
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

    def _inside(self, functions: Iterable[str]) -> Iterator[Place]:
        """Yields the places of all nodes of some functions; other names have none."""
        for name in functions:
            if name in self.functions:
                yield from ((name, node.name) for node in self.functions[name].node_def)


def in_main_graph(tensors: Iterable[str]) -> Iterator[Place]:
    """Yields the places of the nodes of the graph itself that give some tensors."""
    yield from (("", node_name(tensor)) for tensor in tensors)


def tensors_of(infos: Mapping[str, Any]) -> list[str]:
    """Returns the names of the tensors of inputs or outputs, name → `TensorInfo`."""
    names = []
    for info in infos.values():
        sparse = info.coo_sparse
        names += [info.name, sparse.values_tensor_name, sparse.indices_tensor_name]
        names += [sparse.dense_shape_tensor_name]
        names += [part.name for part in info.composite_tensor.components]
    return list(filter(None, names))  # those not in use are ""


def _called_by_load(meta_graph: Any) -> set[str]:
    """Returns the functions that `tf.saved_model.load` calls while it loads, by name."""
    objects = meta_graph.object_graph_def.nodes
    called = [
        child.node_id
        for node in objects
        for child in node.children
        if child.local_name in _RESOURCE_METHODS
    ]
    called += [
        saveable.restore_function for node in objects for saveable in node.saveable_objects.values()
    ]
    names = [name for number in called for name in objects[number].function.concrete_functions]
    bare = [objects[number].bare_concrete_function.concrete_function_name for number in called]
    return {*names, *bare}


def reached(start: Iterable[_T], onward: Callable[[_T], Iterable[_T]]) -> dict[_T, None]:
    """Returns all that can be reached, each once: the start, what follows on it, and so on."""
    seen: dict[_T, None] = {}
    waiting = list(start)
    while waiting:
        item = waiting.pop()
        if item not in seen:
            seen[item] = None
            waiting += onward(item)
    return seen


def _replacements(library: Any) -> Iterator[str]:
    """Yields the functions that compute gradients or implement an interface, by name.

    TensorFlow runs them in place of others: of a function whose gradient is computed, and of an
    implementation that is meant for another device.
    """
    yield from (gradient.gradient_func for gradient in library.gradient)
    yield from (f.signature.name for f in library.function if "api_implements" in f.attr)


def listed(nodes: list[Node]) -> str:
    """Returns the nodes in words, the first few with the graphs that hold them."""
    return texts.listed([f"{node.op} {node.where}" for node in nodes], "; ", most=4)


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
