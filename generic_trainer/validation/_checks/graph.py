"""Checks of the graph: its ops, constants, devices and functions."""

import re
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

from generic_trainer._core import internals
from generic_trainer.validation._access import Assets, reaches_out
from generic_trainer.validation._check import Finding, Findings, Skip, check, fail, note, warn
from generic_trainer.validation._graph import (
    HANDS_ON,
    QUEUES,
    Node,
    Place,
    library_of,
    listed,
    node_name,
)
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._op_registries import described, facts_of, known_by, minors, span

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
# What loading a model is made of, and what else reads and writes checkpoints.
_RESTORING = ("Restore", "RestoreSlice", "RestoreV2")
_CHECKPOINTING = (*_RESTORING, "SaveV2", "MergeV2Checkpoints")
_CHECKPOINT = "/variables/variables"  # the end of the path of a SavedModel's variables
_PATH = re.compile(r"(/[^/\0\n]+){2,}/?|(gs|s3|hdfs|file|viewfs|abfss?)://.+|[A-Za-z]:[\\/].+")
_MAX_VALUES = 64  # a longer constant is data, such as a vocabulary, not a file name
_READERS = re.compile(r"(InitializeTableFromTextFile|ReadFile).*|.*(Dataset|DatasetV2|ReaderV2)")
# What takes texts as data: keys and values of a table, and words that a feature is compared with.
_TABLES = re.compile(r"(LookupTableImport|InitializeTable|LookupTableInsert)(V2)?")
_COMPARED = re.compile(r"(Not)?Equal|Regex\w+")
_COLLECTIVE = re.compile(r"Collective|Nccl|TPUReplicate|XlaAllReduce|ConfigureDistributedTPU")
_FOREIGN = re.compile(r"/job:(?!localhost\b)\w+")
_ACCELERATOR = re.compile(r"(GPU|TPU)", re.IGNORECASE)


@check(after="fingerprint", needs="parses", decided_by="code")
def serve_tag(model: ModelUnderTest) -> Findings:
    """One MetaGraph is tagged exactly {serve}, which is what every consumer asks for.

    TF Serving, BulkInferrer and `tf.saved_model.load` ask for the MetaGraph whose only tag is
    `serve`, and end with an error where there is none.

    Example: a SavedModelBuilder that was given `["serve", "gpu"]`.
    """
    tags = [set(graph.meta_info_def.tags) for graph in model.saved_model.meta_graphs]
    if {"serve"} not in tags:
        actual = ", ".join("{" + ", ".join(sorted(names)) + "}" for names in tags)
        yield fail(
            f"expected a MetaGraph tagged exactly {{serve}}, found {actual}",
            "export with tf.saved_model.save, or pass [tf.saved_model.SERVING]",
        )


@check(needs="serve_tag")
def tensorflow_version(model: ModelUnderTest) -> Findings:
    """The model was not saved by a newer TensorFlow than the one that runs here.

    An older TensorFlow may lack an op, or an attribute of one, and fails when the servers load the
    model.

    Example: exported by TensorFlow 2.21, served by 2.16.
    """
    import tensorflow as tf

    saved_by = model.meta_graph.meta_info_def.tensorflow_version
    if not saved_by:
        yield note("the model does not name the TensorFlow that saved it")
        return
    model.facts["saved_by_tensorflow"] = saved_by
    versions = [re.findall(r"\d+", version)[:2] for version in (saved_by, tf.__version__)]
    minor, installed = (list(map(int, version)) for version in versions)
    if minor > installed:
        yield warn(
            f"saved by TensorFlow {saved_by}, checked with the older {tf.__version__}",
            "serve with a TensorFlow that is at least as new as the exporting one",
        )


@check(needs="serve_tag", decided_by="code")
def served_by(model: ModelUnderTest) -> Findings:
    """Each TensorFlow that the contract names has every op, attribute and dtype of the model.

    TensorFlow loads models of older releases, not of newer ones. TF Serving follows TensorFlow by
    up to a year, so that the model of a new TensorFlow may not load there.

    Example: `tf.image.decode_image` of TensorFlow 2.20 has an op for WebP, and the contract is
    `ServingContract(served_by=("tensorflow_serving==2.19",))`.
    """
    nodes: dict[str, list[Node]] = {}
    for node in model.nodes:
        for fact in sorted(facts_of(node.proto)):
            nodes.setdefault(fact, []).append(node)
    needed = [known_by(fact) for fact in nodes if not fact.endswith("~")]
    if able := set(minors()).intersection(*needed):
        is_first = min(able) == min(minors())
        model.facts["oldest_tensorflow"] = f"2.{min(able)}{' or older' if is_first else ''}"
    for server, minor in model.contract.servers.items():
        unknown = [fact for fact in nodes if minor not in known_by(fact)]
        for fact in unknown:
            if "." in fact and fact.partition(".")[0] in unknown:
                continue  # an attribute of an op that is not there
            # A session builds the functions that its graph calls, also to save variables;
            # `tf.saved_model.load` builds all of them.
            loads_all = "serving" not in server
            built = [n for n in nodes[fact] if not n.function or n.when not in ("loaded", "never")]
            is_harmless = fact.endswith("~") or not (built or loads_all)
            yield (warn if is_harmless else fail)(
                f"{server} has no {described(fact)}: {listed(built or nodes[fact])}",
                f"export with TensorFlow 2.{minor}, use other ops, or serve with {span(fact)}",
            )


@check(after="label_inputs", needs="serve_tag", decided_by="code")
def unregistered_ops(model: ModelUnderTest) -> Findings:
    """Every op is one of TensorFlow's own, in the TensorFlow that is installed here.

    Any other op comes from a library, which every consumer has to load before the model; without it
    the model does not load.

    Example: a tokenizer of `tensorflow_text` inside the graph.
    `ServingContract(op_libraries=("tensorflow_text",))` declares that consumers have it.
    """
    find_op = internals.TF_FIND_OP.get()
    libraries = model.op_libraries
    problems = [f"; {name} is not imported: {why}" for name, why in libraries.items() if why]
    for op, nodes in sorted(model.foreign_ops.items()):
        if op in model.contract.allowed_ops:
            yield note(f"{op} is accepted by the contract")
        elif find_op(op) is not None:
            loaded = " or ".join(name for name, why in libraries.items() if not why)
            message = f"{op} is an op of {loaded}, which every consumer has to load"
            yield warn(
                f"{message}: {listed(nodes)}",
                "install it beside BulkInferrer and Evaluator, and build it into TF Serving; "
                f"if all of them have it, set ServingContract(allowed_ops=({op!r},))",
            )
        else:
            module = library_of(op) or "its_module"
            yield fail(
                f"TensorFlow has no op {op!r}: {listed(nodes)}{''.join(problems)}",
                "move the step into Transform, or install the library, if every consumer loads it, "
                f"and set ServingContract(op_libraries=({module!r},))",
            )


@check(needs="serve_tag", decided_by="code")
def denied_ops(model: ModelUnderTest) -> Findings:
    """No op is one of the contract's denied ones, not even inside a branch or a loop.

    Your servers or your rules may forbid some ops. They are looked for in branches, loops and
    functions too.

    Example: `ServingContract(denied_ops=("DecodeRaw",))`, and the graph decodes raw bytes.
    """
    if not model.contract.denied_ops:
        raise Skip("the contract denies no op")
    if denied := [node for node in model.nodes if node.op in model.contract.denied_ops]:
        yield fail(
            f"denied by the contract: {listed(denied)}",
            "replace the op, or take it out of ServingContract(denied_ops=...)",
        )


@check(needs="serve_tag", decided_by="code")
def python_ops(model: ModelUnderTest) -> Findings:
    """No op calls Python: the function stays behind in the process that exported it.

    `tf.py_function` keeps a number in the graph, by which it finds the function in the process that
    exported it. Other processes do not have the function.

    Example: `tf.numpy_function(normalise, [x], tf.float32)` in a signature.
    """
    ops = set(_PYTHON_OPS).difference(model.contract.allowed_ops)
    nodes = [node for node in model.nodes if node.op in ops]
    remedy = "write tf.py_function / tf.numpy_function in TensorFlow ops, or move it into Transform"
    yield from _forbid(nodes, "works only in the process that exported it", remedy)


def _forbid(
    nodes: list[Node], problem: str, remedy: str, judge: Callable[[str, str], Finding] = fail
) -> Findings:
    """Fails if a consumer can reach one of the nodes, and warns of others."""
    if run := [n for n in nodes if n.when in ("served", "restored", "loaded", "replacing")]:
        yield judge(f"{problem}: {listed(run)}", remedy)
        return
    # Leftovers of the training in the graph itself cannot be called at all.
    if callable_ones := [node for node in nodes if node.function]:
        yield warn(f"in a function that no signature uses: {listed(callable_ones)}", remedy)


@check(needs="serve_tag", decided_by="code")
def file_ops(model: ModelUnderTest) -> Findings:
    """No op that a consumer can reach reads or writes files or connects (assets apart).

    If this check fails, the model is not run, because it would reach files here too.

    Example: `tf.io.read_file` of a path in the request.
    `ServingContract(allowed_ops=("ReadFile",))` accepts it, and the model is run.
    """
    allowed = model.contract.allowed_ops
    assets = Assets(model.graph, model.asset_nodes)
    checkpoint = Assets(model.graph, {node_name(model.meta_graph.saver_def.filename_tensor_name)})
    nodes = [
        node
        for node in model.nodes
        if reaches_out(node.proto)
        and node.op not in allowed
        and not _is_loading(node, checkpoint)
        and not assets.are_all_that_is_read(node)
    ]
    # The author of a contract that makes it a warning knows the model, and wants it checked.
    judge = warn if model.contract.severities.get("file_ops") == "warn" else fail
    accept = f"ServingContract(allowed_ops={tuple(sorted({node.op for node in nodes}))})"
    remedy = f"feed the content, keep a file as a tf.saved_model.Asset, or accept it with {accept}"
    yield from _forbid(nodes, "reads or writes files, or connects", remedy, judge)
    prints = [node for node in model.nodes if node.op in ("Print", "PrintV2") and node.served]
    if prints and not {"Print", "PrintV2"} & set(allowed):
        yield warn(
            f"prints on every call: {listed(prints)}",
            "remove tf.print from the exported function: it fills the server's log",
        )


def why_not_run(model: ModelUnderTest) -> str:
    """Returns why a model to compare with is not run, empty if it may be.

    It is run under the same conditions as the model that is checked.
    """
    if model.contract.severities.get(file_ops.name) == "skip":
        return ""
    result = file_ops.run(model)
    return result.message if result.status == "fail" else ""


def _is_loading(node: Node, checkpoint: Assets) -> bool:
    """Returns whether a node is a part of every model's loading, or of saving it.

    A model that holds another one, such as a transform graph, has the functions that load and save
    that one, which no consumer runs.
    """
    if node.when == "restored":
        return node.op in _RESTORING and checkpoint.are_all_that_is_read(node)
    return node.when == "saved" or (node.when == "never" and node.op in _CHECKPOINTING)


@check(needs="serve_tag", decided_by="code")
def absolute_paths(model: ModelUnderTest) -> Findings:
    """No constant names a file outside the model: it would be missing where the model serves.

    A path in a constant exists on the machine that trained. The files that a model needs should be
    its assets, which are copied with it.

    Example: `tf.lookup.TextFileInitializer("/home/me/vocabulary.txt", ...)` whose file is not
    tracked as an asset.
    """
    if not (paths := list(_paths(model))):
        return  # as in nearly all models: no need to trace the graph

    def upstream_of(ops: re.Pattern[str], through: Container[str] | None = None) -> set[Place]:
        readers = [node.place for node in model.nodes if ops.fullmatch(node.op)]
        return model.graph.upstream_of(readers, through)

    read = upstream_of(_READERS)
    # Not what made the texts of a feature.
    words = upstream_of(_TABLES) | upstream_of(_COMPARED, HANDS_ON)
    for node, path in paths:
        if node.place in read or node.place not in words:
            yield from _judge_path(model, node, path, node.place in read)


def _paths(model: ModelUnderTest) -> Iterator[tuple[Node, str]]:
    """Yields the constants that look like paths, those of assets apart."""
    for node in model.nodes:
        # Of other types, it is empty.
        values = node.proto.attr["value"].tensor.string_val if node.op == "Const" else ()
        is_asset = not node.function and node.proto.name in model.asset_nodes
        if len(values) > _MAX_VALUES or is_asset:
            continue
        for path in (value.decode(errors="replace") for value in values):
            if _PATH.fullmatch(path):
                yield node, path


def _judge_path(model: ModelUnderTest, node: Node, path: str, is_read: bool) -> Findings:
    message = f"the constant {node.where} is the path {path!r}"
    inside = Path(path).is_relative_to(Path(model.exported_to).absolute())
    remedy = "keep a file that the model reads as tf.saved_model.Asset(path) on the exported object"
    if is_read or inside:
        yield fail(f"{message}, which will not exist where the model serves", remedy)
    elif not path.endswith(_CHECKPOINT):  # of a model inside this one, whose values are copied
        yield warn(message, remedy)


@check(needs="serve_tag", decided_by="code")
def devices(model: ModelUnderTest) -> Findings:
    """No op depends on a worker, an accelerator or the other replicas of the training.

    The checks that run the model need this one: a collective waits for ever.

    Example: a graph with `/job:worker/task:1` in its devices, exported inside a strategy's scope; a
    collective that waits for replicas.
    """
    # A function that nothing calls, such as a step of the training, is not even placed.
    placed = [node for node in model.nodes if node.when != "never" or not node.function]
    nodes = [node for node in placed if node.op not in model.contract.allowed_ops]
    leftovers = [node for node in nodes if _COLLECTIVE.match(node.op)]
    foreign = [node for node in nodes if _FOREIGN.search(node.proto.device)]
    pinned = [n for n in nodes if _ACCELERATOR.search(n.proto.device) and n not in foreign]
    waits = "feed the signature's inputs to the ops behind the queue of the training"
    alone = (
        "export on the chief outside strategy.run, or with "
        "generic_trainer.training.export_model, which leaves collectives out"
    )
    outside = (
        "export outside the strategy's scope, or with "
        "generic_trainer.training.export_model, which clears the devices"
    )
    portable = "export with layers that run on both, such as keras.layers.LSTM, not CuDNNLSTM"
    free = "leave tf.device out of the exported function: BulkInferrer has no soft placement"
    for judge, problem, culprits, remedy in (
        (fail, "waits for ever: nothing puts in what it takes out", _waiting(model), waits),
        (fail, "waits for other replicas", leftovers, alone),
        (fail, "placed on a worker that will not exist", foreign, outside),
        (warn, "TensorFlow has no kernel for the CPU", _without_kernel(model), portable),
        (warn, "pinned to an accelerator", pinned, free),
    ):
        if culprits:
            yield judge(f"{problem}: {listed(culprits)}", remedy)


def _waiting(model: ModelUnderTest) -> list[Node]:
    """Returns the nodes of signatures that take from a queue that no such node fills."""
    served = [node for node in model.nodes if node.served]
    waiting = []
    for fills, takes in QUEUES.items():
        if not any(re.fullmatch(fills, node.op) for node in served):
            waiting += [node for node in served if re.fullmatch(takes, node.op)]
    return waiting


def _without_kernel(model: ModelUnderTest) -> list[Node]:
    """Returns the nodes that a consumer runs and whose ops have no kernel for the CPU."""
    find_kernels = internals.TF_KERNELS_OF_OP.get()
    served = [node for node in model.nodes if node.served and node.op not in model.foreign_ops]
    lacking = set()
    for op in {node.op for node in served}:
        kinds = {kernel.device_type for kernel in find_kernels(op).kernel}
        if not kinds & {"CPU", "DEFAULT"}:
            lacking.add(op)
    return [node for node in served if node.op in lacking]


@check(needs="serve_tag", decided_by="code")
def compiled_functions(model: ModelUnderTest) -> Findings:
    """No function insists on compilation with XLA, which many servers are built without.

    TF Serving and many builds of TensorFlow have no XLA, and a function that must be compiled fails
    there with its first call.

    Example: `tf.function(jit_compile=True)` behind a signature.
    """
    functions = model.graph.functions
    compiled = sorted({f for f, _ in model.graph.when if f and _must_be_compiled(functions[f])})
    compiled += [n.where for n in model.nodes if n.when != "never" and _must_be_compiled(n.proto)]
    if compiled:
        yield warn(
            f"must be compiled with XLA: {', '.join(compiled[:5])}",
            "export without jit_compile=True (in Keras: compile(jit_compile=False))",
        )


def _must_be_compiled(proto: Any) -> bool:
    return "_XlaMustCompile" in proto.attr and bool(proto.attr["_XlaMustCompile"].b)
