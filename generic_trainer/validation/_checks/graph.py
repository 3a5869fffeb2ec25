"""Checks of the graph: its ops, constants, devices and functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from generic_trainer._core import internals
from generic_trainer.validation._access import reaches_out
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._graph import (
    Node,
    library_of,
    listed,
    string_constants,
    upstream_of,
)
from generic_trainer.validation._model import ModelUnderTest

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
# What loading a model is made of.
_RESTORING = ("Restore", "RestoreSlice", "RestoreV2")
_PATH = re.compile(r"(/[^/\0\n]+){2,}/?|(gs|s3|hdfs|file|viewfs|abfss?)://.+|[A-Za-z]:[\\/].+")
_MAX_VALUES = 64  # a longer constant is data, such as a vocabulary, not a file name
_READERS = ("InitializeTableFromTextFile", "ReadFile")
_TABLE_CONTENTS = (
    "LookupTableImport",
    "LookupTableImportV2",
    "InitializeTable",
    "InitializeTableV2",
    "LookupTableInsert",
    "LookupTableInsertV2",
)
_COLLECTIVE = re.compile(r"Collective|Nccl|TPUReplicate|XlaAllReduce|ConfigureDistributedTPU")
# What takes out of a queue or the like, and what would fill it.
_FILLED_BY = {
    r"QueueDequeue(Many|UpTo)?(V2)?": r"QueueEnqueue(Many)?(V2)?",
    r"(Ordered)?(Map)?Unstage(NoKey)?": r"(Ordered)?(Map)?Stage",
    r"BarrierTakeMany": r"BarrierInsertMany",
    r"(Resource|Sparse)?AccumulatorTakeGradient": r"(Resource|Sparse)?AccumulatorApplyGradient",
}
_FOREIGN = re.compile(r"/job:(?!localhost\b)\w+")
_ACCELERATOR = re.compile(r"(GPU|TPU)", re.IGNORECASE)


@check("serve_tag", needs=("parses",))
def serve_tag(model: ModelUnderTest) -> Iterator[Finding]:
    """One MetaGraph is tagged exactly {serve}, which is what every consumer asks for.

    TF Serving, BulkInferrer and `tf.saved_model.load` ask for the MetaGraph whose only tag is
    `serve`, and end with an error where there is none.

    Example: a SavedModelBuilder that was given `["serve", "gpu"]`.
    """
    tags = [set(graph.meta_info_def.tags) for graph in model.saved_model.meta_graphs]
    if {"serve"} not in tags:
        actual = ", ".join("{" + ", ".join(sorted(each)) + "}" for each in tags)
        yield fail(
            f"expected a MetaGraph tagged exactly {{serve}}, found {actual}",
            "export with tf.saved_model.save, or pass [tf.saved_model.SERVING] to a "
            "SavedModelBuilder",
        )


@check("tensorflow_version", needs=("serve_tag",))
def tensorflow_version(model: ModelUnderTest) -> Iterator[Finding]:
    """The model was not saved by a newer TensorFlow than the one that runs here.

    An older TensorFlow may lack an op, or an attribute of one, and says so when the model is
    loaded, on the servers.

    Example: exported by TensorFlow 2.21, served by 2.16.
    """
    import tensorflow as tf

    saved_by = model.meta_graph.meta_info_def.tensorflow_version
    if not saved_by:
        yield note("the model does not say which TensorFlow saved it")
        return
    model.facts["saved_by_tensorflow"] = saved_by
    minor, installed = (
        [int(part) for part in re.findall(r"\d+", version)[:2]]
        for version in (saved_by, tf.__version__)
    )
    if minor > installed:
        yield warn(
            f"saved by TensorFlow {saved_by}, checked with the older {tf.__version__}",
            "serve with a TensorFlow that is at least as new as the one that exports: an older "
            "one may lack ops or attributes",
        )


@check("unregistered_ops", needs=("serve_tag",))
def unregistered_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """Every op is one of TensorFlow's own, in the TensorFlow that is installed here.

    An op that TensorFlow does not bring comes from a library, which every consumer has to load
    before the model; without it nothing loads.

    Example: a tokenizer of `tensorflow_text` inside the graph.
    `ServingContract(op_libraries=("tensorflow_text",))` says that consumers have it.
    """
    find_op, unknown = internals.TF_FIND_OP.get(), model.foreign_ops
    libraries = [name for name, problem in model.op_libraries.items() if not problem]
    problems = [f"{name} ({problem})" for name, problem in model.op_libraries.items() if problem]
    unloaded = f"; not imported: {', '.join(problems)}" if problems else ""
    for op, nodes in sorted(unknown.items()):
        if op in model.contract.allowed_ops:
            yield note(f"{op} is accepted by the contract")
        elif find_op(op) is not None:
            yield warn(
                f"{op} is not TensorFlow's own, but of {' or '.join(libraries)}, which every "
                f"consumer has to load: {listed(nodes)}",
                "see that they do (BulkInferrer and Evaluator where the package is installed and "
                f"imported; TF Serving when it is built in), and say so with "
                f"ServingContract(allowed_ops=({op!r},))",
            )
        else:
            yield fail(
                f"TensorFlow has no op {op!r}: {listed(nodes)}{unloaded}",
                f"it comes from {library_of(op) or 'a library of your own'}, which is not "
                "installed here and which every consumer would have to load; if yours do, install "
                f"it and set ServingContract(op_libraries=({library_of(op) or 'its_module'!r},)), "
                "else move the step into Transform",
            )


@check("denied_ops", needs=("serve_tag",))
def denied_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op is one of the contract's denied ones, not even inside a branch or a loop.

    Your servers, or your rules, may forbid what TensorFlow can do. The ops are looked for in
    branches, loops and functions too.

    Example: `ServingContract(denied_ops=("DecodeRaw",))`, and the graph decodes raw bytes.
    """
    if not model.contract.denied_ops:
        yield skip("the contract denies no op")
        return
    denied = [node for node in model.nodes if node.op in model.contract.denied_ops]
    if denied:
        yield fail(
            f"denied by the contract: {listed(denied)}",
            "replace the op, or take it out of ServingContract(denied_ops=...)",
        )


@check("python_ops", needs=("serve_tag",))
def python_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op calls Python: the function stays behind in the process that exported it.

    `tf.py_function` keeps a number in the graph, by which it finds the function in the process that
    exported it. In every other process there is none.

    Example: `tf.numpy_function(normalise, [x], tf.float32)` in a signature.
    """
    ops = set(_PYTHON_OPS).difference(model.contract.allowed_ops)
    yield from _forbid(
        [node for node in model.nodes if node.op in ops],
        "works only in the process that exported it",
        "write tf.py_function / tf.numpy_function in TensorFlow ops, or move it into Transform or "
        "in front of the model",
    )


def _forbid(
    nodes: list[Node], problem: str, remedy: str, judge: Callable[[str, str], Finding] = fail
) -> Iterator[Finding]:
    """Fails where a consumer can get to one of the nodes, and warns of others."""
    run = [node for node in nodes if node.when in ("served", "restored", "loaded")]
    if run:
        yield judge(f"{problem}: {listed(run)}", remedy)
        return
    # What is left over in the graph itself, of the training, cannot be called at all.
    callable_ones = [node for node in nodes if node.function]
    if callable_ones:
        yield warn(f"in a function that no signature uses: {listed(callable_ones)}", remedy)


@check("file_ops", needs=("serve_tag",))
def file_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op reads or writes files or connects, as far as a consumer can get (assets apart).

    Where this check fails, the model is not run: it would do here what it is refused for.

    Example: `tf.io.read_file` of a path that the request brings.
    `ServingContract(allowed_ops=("ReadFile",))` accepts it, and the model is run.
    """
    allowed = model.contract.allowed_ops
    nodes = [
        node
        for node in model.nodes
        if reaches_out(node.proto)
        and node.op not in allowed
        and not _is_loading(node)
        and not model.asset_readers.are_all_that_is_read(node)
    ]
    # A contract that makes a warning of it knows what the model does, and wants it checked.
    judge = warn if model.contract.severities.get("file_ops") == "warn" else fail
    yield from _forbid(
        nodes,
        "reads or writes files, or connects",
        "a model with this op can read or overwrite files of the server, or reach others from it: "
        "feed the content as an input, keep a file as a tf.saved_model.Asset, or accept the op "
        f"with ServingContract(allowed_ops={tuple(sorted({node.op for node in nodes}))})",
        judge,
    )
    prints = [node for node in model.nodes if node.op in ("Print", "PrintV2") and node.served]
    if prints and not {"Print", "PrintV2"} & set(allowed):
        yield warn(
            f"prints on every call: {listed(prints)}",
            "remove tf.print from the exported function; it fills the server's log",
        )


def _is_loading(node: Node) -> bool:
    """Returns whether a node is a part of every model's loading, or of saving it."""
    return node.when == "saved" or (node.when == "restored" and node.op in _RESTORING)


@check("absolute_paths", needs=("serve_tag",))
def absolute_paths(model: ModelUnderTest) -> Iterator[Finding]:
    """No constant names a file outside the model: it would be missing where the model serves.

    A path in a constant is that of the machine that trained. Files that a model needs are its
    assets, which are copied with it.

    Example: `tf.lookup.TextFileInitializer("/home/me/vocabulary.txt", ...)` whose file is not
    tracked as an asset.
    """
    found = list(_paths(model))
    if not found:
        return  # as in nearly all models, which need not be traced then
    readers = [node for node in model.nodes if node.op.startswith(_READERS)]
    readers += [n for n in model.nodes if n.op.endswith(("Dataset", "DatasetV2", "ReaderV2"))]
    read = upstream_of(readers, model.meta_graph.graph_def)
    tables = [node for node in model.nodes if node.op in _TABLE_CONTENTS]
    words = upstream_of(tables, model.meta_graph.graph_def)
    for node, path in found:
        place = (node.function, node.proto.name)
        # Keys and values of a table are data, whatever they look like.
        if place in read or place not in words:
            yield from _judge_path(model, node, path, place in read)


def _paths(model: ModelUnderTest) -> Iterator[tuple[Node, str]]:
    """Yields the constants that look like paths, those of assets apart."""
    tracked = model.asset_nodes
    for node, values in string_constants(model.nodes):
        if len(values) > _MAX_VALUES or (not node.function and node.proto.name in tracked):
            continue
        for path in (value.decode(errors="replace") for value in values):
            if _PATH.fullmatch(path):
                yield node, path


def _judge_path(model: ModelUnderTest, node: Node, path: str, is_read: bool) -> Iterator[Finding]:
    message = f"the constant {node.where} is the path {path!r}"
    inside = Path(path).is_relative_to(Path(model.exported_to).absolute())
    if is_read or inside:
        yield fail(
            f"{message}, which will not exist where the model serves",
            "keep the file as an asset: self.vocabulary = tf.saved_model.Asset(path) on the "
            "exported object, and build the table from self.vocabulary",
        )
    else:
        yield warn(
            message,
            "if it is a file that the model reads, make it a tracked tf.saved_model.Asset",
        )


@check("devices", needs=("serve_tag",))
def devices(model: ModelUnderTest) -> Iterator[Finding]:
    """No op is tied to a worker, an accelerator or the other replicas of the training.

    The checks that run the model need this one: a collective waits for ever.

    Example: a graph with `/job:worker/task:1` in its devices, exported inside a strategy's scope; a
    collective that waits for replicas.
    """
    nodes = [node for node in model.nodes if node.op not in model.contract.allowed_ops]
    leftovers = [node for node in nodes if _COLLECTIVE.match(node.op)]
    foreign = [node for node in nodes if _FOREIGN.search(node.proto.device)]
    accelerated = [node for node in nodes if _ACCELERATOR.search(node.proto.device)]
    pinned = [node for node in accelerated if node not in foreign]
    for waits in _waits(model):
        yield fail(
            f"waits for ever: {_placed([waits])} takes out what nothing here puts in",
            "feed the signature's inputs to what comes behind the queue of the training, and "
            "export that",
        )
    if leftovers:
        yield fail(
            f"waits for other replicas: {_placed(leftovers)}",
            "export on the chief outside strategy.run, or with "
            "generic_trainer.training.export_model, which leaves collectives out",
        )
    if foreign:
        yield fail(
            f"placed on a worker that will not exist: {_placed(foreign)}",
            "export with generic_trainer.training.export_model, which clears the devices, or "
            "build the exported function outside the strategy's scope",
        )
    if bound := _without_kernel(model):
        yield warn(
            f"TensorFlow has no kernel for the CPU: {_placed(bound)}",
            "a server without the accelerator fails with the first request: export with the layer "
            "that runs on both, such as keras.layers.LSTM instead of CuDNNLSTM",
        )
    if pinned:
        yield warn(
            f"pinned to an accelerator: {_placed(pinned)}",
            "leave tf.device out of the exported function: a session without soft placement, "
            "such as BulkInferrer's, fails on machines that have none",
        )


def _waits(model: ModelUnderTest) -> Iterator[Node]:
    """Yields nodes that signatures need and that take from a queue which no such node fills."""
    served = [node for node in model.nodes if node.served]
    ops = {node.op for node in served}
    for takes, fills in _FILLED_BY.items():
        if not any(re.fullmatch(fills, op) for op in ops):
            yield from [node for node in served if re.fullmatch(takes, node.op)][:1]


def _without_kernel(model: ModelUnderTest) -> list[Node]:
    """Returns the nodes that a consumer runs and whose ops have no kernel for the CPU."""
    find_kernels = internals.TF_KERNELS_OF_OP.get()
    found = []
    kernels: dict[str, bool] = {}
    for node in model.nodes:
        if node.served and node.op not in model.foreign_ops:
            if node.op not in kernels:
                listed_kernels = find_kernels(node.op).kernel
                kernels[node.op] = any(
                    each.device_type in ("CPU", "DEFAULT") for each in listed_kernels
                )
            if not kernels[node.op]:
                found.append(node)
    return found


def _placed(nodes: list[Node]) -> str:
    shown = "; ".join(
        f"{n.op} {n.where}" + (f" on {n.proto.device}" if n.proto.device else "") for n in nodes[:3]
    )
    return shown + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


@check("compiled_functions", needs=("serve_tag",))
def compiled_functions(model: ModelUnderTest) -> Iterator[Finding]:
    """No function insists on compilation with XLA, which many servers are built without.

    TF Serving and many builds of TensorFlow have no XLA, and a function that must be compiled fails
    there with its first call.

    Example: `tf.function(jit_compile=True)` behind a signature; a model that JAX has lowered for
    TPUs alone.
    """
    functions = model.meta_graph.graph_def.library.function
    compiled = [each.signature.name for each in functions if _must_be_compiled(each)]
    compiled += [node.where for node in model.nodes if _must_be_compiled(node.proto)]
    if compiled:
        yield warn(
            f"must be compiled with XLA: {', '.join(compiled[:5])}",
            "export a function without jit_compile=True (in Keras: compile(jit_compile=False))",
        )
    for node in (node for node in model.nodes if node.op == "XlaCallModule"):
        platforms = [name.decode() for name in node.proto.attr["platforms"].list.s]
        if platforms and "CPU" not in platforms:
            yield warn(
                f"{node.where} was lowered by JAX for {', '.join(platforms)} alone: no CPU runs it",
                "jax2tf.convert(..., native_serialization_platforms=('cpu', ...)), or see that "
                "every consumer has such a device",
            )


def _must_be_compiled(proto: Any) -> bool:
    return "_XlaMustCompile" in proto.attr and bool(proto.attr["_XlaMustCompile"].b)
