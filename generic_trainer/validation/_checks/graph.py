"""Checks of the graph: its ops, constants, devices and functions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from generic_trainer._core import internals
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._graph import Node, library_of, listed, string_constants, using
from generic_trainer.validation._model import ModelUnderTest

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_FILE_OPS = re.compile(
    r"(Read|Write|Matching)Files?"
    r"|(WholeFile|TextLine|TFRecord|FixedLengthRecord|LMDB)Reader(V2)?"
    r"|(TFRecord|TextLine|FixedLengthRecord|CSV|Sql|LMDB|Save|Load|Snapshot|MatchingFiles)"
    r"Dataset(V2)?"
    r"|DebugIdentityV[23]"
)
_FILE_REMEDY = (
    "a model with this op can read or overwrite files of the server: feed the content as an "
    "input, or accept the op with ServingContract(allowed_ops=...)"
)
_PATH = re.compile(r"(/[^/\0\n]+){2,}/?|(gs|s3|hdfs|file|viewfs|abfss?)://.+|[A-Za-z]:[\\/].+")
_MAX_VALUES = 64  # a longer constant is data, such as a vocabulary, not a file name
_READERS = ("InitializeTableFromTextFileV2", "InitializeTableFromTextFile", "ReadFile")
_COLLECTIVE = re.compile(r"Collective|Nccl|TPUReplicate|XlaAllReduce|ConfigureDistributedTPU")
_FOREIGN = re.compile(r"/job:(?!localhost\b)\w+")
_ACCELERATOR = re.compile(r"(GPU|TPU)", re.IGNORECASE)


@check("serve_tag", needs=("parses",))
def serve_tag(model: ModelUnderTest) -> Iterator[Finding]:
    """One MetaGraph is tagged exactly {serve}, which is what every consumer asks for."""
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
    """The model was not saved by a newer TensorFlow than the one that runs here."""
    import tensorflow as tf

    saved_by = model.meta_graph.meta_info_def.tensorflow_version
    if not saved_by:
        yield note("the model does not say which TensorFlow saved it")
        return
    model.facts["saved_by_tensorflow"] = saved_by
    if _minor(saved_by) > _minor(tf.__version__):
        yield warn(
            f"saved by TensorFlow {saved_by}, checked with the older {tf.__version__}",
            "serve with a TensorFlow that is at least as new as the one that exports: an older "
            "one may lack ops or attributes",
        )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@check("unregistered_ops", needs=("serve_tag",))
def unregistered_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """Every op is one of TensorFlow's own, in the TensorFlow that is installed here."""
    find_op = internals.TF_FIND_OP.get()
    unknown: dict[str, list[Node]] = {}
    for node in model.nodes:
        if find_op(node.op) is None:
            unknown.setdefault(node.op, []).append(node)
    for op, nodes in sorted(unknown.items()):
        if op in model.contract.allowed_ops:
            yield note(f"{op} is accepted by the contract")
        else:
            yield fail(f"TensorFlow has no op {op!r}: {listed(nodes)}", _unregistered_remedy(op))


def _unregistered_remedy(op: str) -> str:
    module = library_of(op)
    source = f"it comes from {module}" if module else "it comes from a library of your own"
    return (
        f"{source}, which every consumer would have to load; if yours do, set "
        f"ServingContract(allowed_ops=({op!r},)), else move the step into Transform"
    )


@check("denied_ops", needs=("serve_tag",))
def denied_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op is one of the contract's denied ones, not even inside a branch or a loop."""
    if not model.contract.denied_ops:
        yield skip("the contract denies no op")
        return
    denied = using(model.nodes, model.contract.denied_ops, ())
    if denied:
        yield fail(
            f"denied by the contract: {listed(denied)}",
            "replace the op, or take it out of ServingContract(denied_ops=...)",
        )


@check("python_ops", needs=("serve_tag",))
def python_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op calls Python: the function stays behind in the process that exported it."""
    calling = using(model.nodes, _PYTHON_OPS, model.contract.allowed_ops)
    served = [node for node in calling if node.served]
    remedy = (
        "write tf.py_function / tf.numpy_function in TensorFlow ops, or move it into Transform or "
        "in front of the model"
    )
    if served:
        yield fail(f"works only in the process that exported it: {listed(served)}", remedy)
    elif calling:
        yield warn(f"in a function that no signature uses: {listed(calling)}", remedy)


@check("file_ops", needs=("serve_tag",))
def file_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op reads or writes files, as far as a signature can get (saving and restoring apart)."""
    allowed = model.contract.allowed_ops
    touching = [n for n in model.nodes if _touches_files(n) and n.op not in allowed]
    served = [node for node in touching if node.served]
    if served:
        yield fail(f"reads or writes files: {listed(served)}", _FILE_REMEDY)
    elif touching:
        yield warn(f"in a function that no signature uses: {listed(touching)}", _FILE_REMEDY)
    prints = [node for node in model.nodes if node.op in ("Print", "PrintV2") and node.served]
    if prints and not {"Print", "PrintV2"} & set(allowed):
        yield warn(
            f"prints on every call: {listed(prints)}",
            "remove tf.print from the exported function; it fills the server's log",
        )


def _touches_files(node: Node) -> bool:
    if node.op == "PrintV2":
        return node.proto.attr["output_stream"].s.startswith(b"file:")
    return bool(_FILE_OPS.fullmatch(node.op))


@check("absolute_paths", needs=("serve_tag",))
def absolute_paths(model: ModelUnderTest) -> Iterator[Finding]:
    """No constant names a file outside the model: it would be missing where the model serves."""
    tracked = {asset.tensor_info.name.split(":")[0] for asset in model.assets}
    read = _inputs_of_readers(model.nodes)
    for node, values in string_constants(model.nodes):
        if len(values) > _MAX_VALUES or (not node.function and node.proto.name in tracked):
            continue
        for path in (v.decode(errors="replace") for v in values):
            if _PATH.fullmatch(path):
                yield from _judge_path(model, node, path, (node.function, node.proto.name) in read)


def _judge_path(model: ModelUnderTest, node: Node, path: str, is_read: bool) -> Iterator[Finding]:
    message = f"the constant {node.where} is the path {path!r}"
    if is_read or _inside(path, model.exported_to) or os.path.exists(path):
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


def _inside(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(Path(folder).absolute())


def _inputs_of_readers(nodes: list[Node]) -> set[tuple[str, str]]:
    """Returns (function, node) of everything that directly feeds an op that opens files."""
    return {
        (node.function, name.split(":")[0].lstrip("^"))
        for node in nodes
        if node.op in _READERS or node.op.endswith(("Dataset", "DatasetV2", "ReaderV2"))
        for name in node.proto.input
    }


@check("devices", needs=("serve_tag",))
def devices(model: ModelUnderTest) -> Iterator[Finding]:
    """No op is tied to a worker, an accelerator or the other replicas of the training.

    The checks that run the model need this one: a collective waits for ever.
    """
    nodes = [node for node in model.nodes if node.op not in model.contract.allowed_ops]
    leftovers = [node for node in nodes if _COLLECTIVE.match(node.op)]
    foreign = [node for node in nodes if _FOREIGN.search(node.proto.device)]
    pinned = [node for node in nodes if node not in foreign and _on_accelerator(node)]
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
    if pinned:
        yield warn(
            f"pinned to an accelerator: {_placed(pinned)}",
            "leave tf.device out of the exported function: a session without soft placement, "
            "such as BulkInferrer's, fails on machines that have none",
        )


def _on_accelerator(node: Node) -> bool:
    return bool(_ACCELERATOR.search(node.proto.device))


def _placed(nodes: list[Node]) -> str:
    shown = "; ".join(
        f"{n.op} {n.where}" + (f" on {n.proto.device}" if n.proto.device else "") for n in nodes[:3]
    )
    return shown + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


@check("compiled_functions", needs=("serve_tag",))
def compiled_functions(model: ModelUnderTest) -> Iterator[Finding]:
    """No function insists on compilation with XLA, which many servers are built without."""
    compiled = [
        function.signature.name
        for function in model.meta_graph.graph_def.library.function
        if function.attr["_XlaMustCompile"].b
    ]
    compiled += [node.where for node in model.nodes if node.proto.attr["_XlaMustCompile"].b]
    if compiled:
        yield warn(
            f"must be compiled with XLA: {', '.join(compiled[:5])}",
            "export a function without jit_compile=True (in Keras: compile(jit_compile=False))",
        )
