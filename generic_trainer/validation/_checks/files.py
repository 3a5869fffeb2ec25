"""Checks of files: those of the model, and those that the contract names."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from generic_trainer._core import internals
from generic_trainer._core.files import sha256_of_file
from generic_trainer._core.texts import reason_of
from generic_trainer.errors import DataError
from generic_trainer.validation._check import (
    ANY,
    FORMATS,
    Findings,
    Skip,
    check,
    fail,
    note,
    warn,
)
from generic_trainer.validation._contract import SOURCES
from generic_trainer.validation._graph import HANDS_ON, Node, listed
from generic_trainer.validation._manifest import MANIFEST, read_manifest
from generic_trainer.validation._model import SAVED_MODEL_FILES, ModelUnderTest
from generic_trainer.validation._signature import SIGNATURE

_MANIFEST_REMEDY = "copy the model again from where it was published, with its files alone"
_PROTOBUF_LIMIT = (1 << 31) - 1  # bytes; no C++ consumer reads more
_SHARD = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")
# By TensorFlow, gsutil, NFS, and rsync, which puts six letters behind the name.
_TEMPORARY = re.compile(
    r"^variables_temp$|\.tmp\b|tempstate|\.part$|_\.gstmp$|^\.nfs|"
    r"^\.(?:saved_model|variables)\..+\.\w{6}$"
)
_POINTER_OF_GIT_LFS = b"version https://git-lfs.github.com/spec/"
# Of parts of saved_model.pb.
_HASHES = ("graph_def_program_hash", "signature_def_hash", "saved_object_graph_hash")
_VARIABLES_INDEX = Path("variables/variables.index")
_VARIABLES_REMEDY = "the files of variables/ are damaged or incomplete: copy whole files"
# Ops that spoil every output by a NaN in a weight, and ops that constants of any kind go to.
_WEIGHED = re.compile(
    r"\w*MatMul(V\d)?|(_Fused|Depthwise)?Conv(2D|3D|2d)\w*|Conv|BiasAdd(V1)?|Einsum"
    r"|_?FusedBatchNorm\w*"
)
_COMBINED = re.compile(r"Gather(V2|Nd)?|Add(V2)?|Sub|Mul|RealDiv|SquaredDifference|Prelu")
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VARIABLE_KEY = "/.ATTRIBUTES/VARIABLE_VALUE"
_TABLE_KEY = re.compile(r"/\.ATTRIBUTES/table-(keys|values)$")


@check(after="", formats=ANY, decided_by="code")
def presence(model: ModelUnderTest) -> Findings:
    """The directory holds a SavedModel, or a model in another format.

    To an orchestrator, a step is done if its process succeeds, even if the directory is empty. Only
    the Pusher or the server would notice a `run_fn` that exports elsewhere, or not at all.

    Example: `run_fn` ends without a call that saves, or saves into `fn_args.serving_model_dir +
    "/1"`.
    """
    model.facts["files"] = len(model.files)
    model.facts["size_bytes"] = sum((model.directory / path).stat().st_size for path in model.files)
    if links := model.facts.get("links_not_followed"):
        yield warn(
            f"links that lead out of the model are not followed: {', '.join(links[:5])}",
            "copy the files into the model",
        )
    if not model.files:
        yield fail(
            f"no file in {model.exported_to}",
            "save the model to fn_args.serving_model_dir at the end of run_fn",
        )
        return
    if model.contract.format == "any" or model.is_saved_model:
        return
    if model.other_format:
        tflite = {lite.path for lite in model.tflite_models}
        paths = ", ".join(map(str, model.other_format))
        if tflite.issuperset(model.other_format):
            yield note(f"a TFLite model without a SavedModel: {paths}")
        else:
            yield warn(
                f"no SavedModel: the contents of {paths} are not checked",
                "check the file with modelscan, fickling or onnx",
            )
        return
    inner = [path.parent for path in model.files if path.name in SAVED_MODEL_FILES]
    more = [f"there is a SavedModel below it, in {folder}" for folder in inner[:1]]
    more += [f"{lite.path}: {lite.problem}" for lite in model.tflite_models if lite.problem]
    yield fail(
        f"expected one of {', '.join(SAVED_MODEL_FILES)} in {model.exported_to}, found "
        + "; ".join([", ".join(map(str, model.files[:5])), *more]),
        'export a SavedModel; for a model in another format set ServingContract(format="any"), '
        "which checks presence and manifest alone",
    )


@check(formats=FORMATS, decided_by="code")
def inputs_read(model: ModelUnderTest) -> Findings:
    """The contract's examples, schema, statistics, transform graph and eval config can be read.

    All other checks rely on these inputs: a wrong path would leave them without examples, and
    silent.

    Example: `ServingContract(examples="eval/*.gz")` where the files hold serialized
    `SequenceExample`s.
    """
    if all(getattr(model.contract, name) is None for name in SOURCES):
        raise Skip(f"the contract names none of {', '.join(SOURCES)}")
    for name in ("eval_rows", "schema", "observed", "transform_graph", "eval_config"):
        try:
            getattr(model.evidence, name)
        except DataError as error:
            yield fail(str(error), "correct the contract; this is not a fault of the model")
    with contextlib.suppress(DataError):  # which is reported above
        yield note(f"{len(model.evidence.eval_rows)} examples read")


@check(needs="presence", formats=ANY, decided_by="code")
def manifest_matches(model: ModelUnderTest) -> Findings:
    """Every file has the SHA-256 that the model's manifest.json lists.

    A truncated vocabulary loads and silently returns defaults; only this finds it.

    Example: `assets/vocabulary` of a published model has lost its second half in a copy.
    """
    if Path(MANIFEST) not in model.files:
        raise Skip(f"no {MANIFEST}: the model was not published by this package")
    try:
        listed = read_manifest(model.directory)["files"]
    except ValueError as error:
        yield fail(f"{MANIFEST} cannot be read: {error}", _MANIFEST_REMEDY)
        return
    present = {path.as_posix() for path in model.files}
    changed = [
        name
        for name in sorted(set(listed) & present)
        if sha256_of_file(model.directory / name) != listed[name].get("sha256")
    ]
    for judge, what, names in (
        (fail, "missing", sorted(set(listed) - present)),
        (fail, "changed", changed),
        (warn, "added", sorted(present - set(listed) - {MANIFEST, SIGNATURE})),
    ):
        if names:
            yield judge(
                f"{what} since the model was published: {', '.join(names[:5])}", _MANIFEST_REMEDY
            )


@check(after="format_consumers", needs="presence")
def leftovers(model: ModelUnderTest) -> Findings:
    """saved_model.pb is below protobuf's 2 GB, and no file is left over from a broken save.

    protobuf reads at most 2 GB, in every language, so that a larger `saved_model.pb` is written and
    never read again. Temporary files are the sign of a save that did not end.

    Example: an embedding of 3 GB as a constant of the graph;
    `variables/variables.data-00000-of-00001.tempstate123`.
    """
    if Path("saved_model.pb") in model.files:
        size = (model.directory / "saved_model.pb").stat().st_size
        if size > _PROTOBUF_LIMIT:
            yield fail(
                f"saved_model.pb has {size} bytes, protobuf reads at most {_PROTOBUF_LIMIT}",
                "keep weights in tf.Variable attributes, not in constants",
            )
    strange = [str(path) for path in model.files if any(map(_TEMPORARY.search, path.parts))]
    ours = [path for path in model.files if path.parent == Path("variables")]
    totals = {match[2] for path in ours if (match := _SHARD.fullmatch(path.name))}
    if len(totals) > 1:
        strange.append("variables/ with the shards of two saves")
    protos = [path.name for path in model.files if str(path) in SAVED_MODEL_FILES]
    strange += protos if len(protos) > 1 else []
    if strange:
        yield warn(
            f"left over from an interrupted or repeated save: {', '.join(strange[:5])}",
            "export into an empty directory and wait for the end of the save",
        )


@check(needs="presence", decided_by="code")
def parses(model: ModelUnderTest) -> Findings:
    """The SavedModel proto parses and holds a graph.

    A full disk or an interrupted copy leaves a file with the right name that cannot be parsed.

    Example: `saved_model.pb` of 0 bytes.
    """
    remedy = "the file is truncated or damaged: export again, and copy whole files"
    try:
        if not model.saved_model.meta_graphs:
            yield fail("saved_model.pb parses and holds no graph", remedy)
    except Exception as error:
        yield fail(f"saved_model.pb does not parse: {error}", remedy)


@check(needs="parses", decided_by="code")
def fingerprint(model: ModelUnderTest) -> Findings:
    """The fingerprint that was written at the export still fits the files.

    It covers saved_model.pb and the index of the variables; the variables have separate checksums,
    and the manifest covers assets.

    Example: `saved_model.pb` of one export beside the `variables/` of another one.
    """
    if Path("fingerprint.pb") not in model.files:
        raise Skip("no fingerprint.pb (written by TensorFlow 2.12 and later)")
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef

    try:
        stored = FingerprintDef.FromString((model.directory / "fingerprint.pb").read_bytes())
    except DecodeError as error:
        yield fail(f"fingerprint.pb does not parse: {error}", "export again, copy whole files")
        return
    computed = FingerprintDef.FromString(
        internals.TF_CREATE_FINGERPRINT.get()(str(model.directory))
    )
    if stored.version.producer != computed.version.producer:
        raise Skip("written by a TensorFlow whose fingerprints are computed in another way")
    names = ["saved_model_checksum", "checkpoint_hash"]
    if stored.saved_model_checksum != computed.saved_model_checksum:
        # Told only then: TensorFlow 2.12 and 2.13 computed them in another way.
        names[1:1] = _HASHES
    if changed := [name for name in names if getattr(stored, name) != getattr(computed, name)]:
        yield fail(
            f"{', '.join(changed)} differ from fingerprint.pb: files were edited, damaged or "
            "mixed with those of another model after the export",
            "publish the export as it was written; if it was edited on purpose, delete "
            "fingerprint.pb",
        )


@check(after="compiled_functions", needs="serve_tag", decided_by="code")
def assets(model: ModelUnderTest) -> Findings:
    """Every asset of the graph is there and not empty.

    A model whose table lacks its file does not load. A table with an empty file, or with a pointer
    of Git LFS, loads, and every word is unknown to it.

    Example: `assets/vocabulary` is missing, as the model was copied without its folder.
    """
    if not model.assets:
        raise Skip("nothing to test: the graph has no asset")
    for name, file in model.asset_files.items():
        if not file.is_file():
            yield fail(
                f"assets/{name} is missing",
                "copy the model with its assets/ folder: its tables cannot be filled without",
            )
            continue
        with open(file, "rb") as opened:
            start = opened.read(len(_POINTER_OF_GIT_LFS))
        if start == _POINTER_OF_GIT_LFS:
            yield fail(
                f"assets/{name} is a pointer of Git LFS and not the file itself",
                "get the file with `git lfs pull`, and export again",
            )
        elif not start:
            yield warn(
                f"assets/{name} is empty: every lookup in it will return the default",
                "see whether the vocabulary was complete at the export",
            )


@check(after="vocabularies", needs="serve_tag", decided_by="code")
def variables_read(model: ModelUnderTest) -> Findings:
    """Every variable is complete, and its checksum is right.

    TensorFlow reads the files of the weights as late as possible: a damaged shard may be noticed by
    the first request. This check reads each tensor and compares its checksum.

    Example: `variables.data-00000-of-00002` without its sibling; one bit that a disk has flipped.
    """
    if _VARIABLES_INDEX not in model.files:
        # A graph of TensorFlow 1 may set all of its variables when it is loaded.
        if not model.meta_graph.saver_def.restore_op_name:
            raise Skip("the model restores no variables")
        yield fail(f"the model restores variables and has no {_VARIABLES_INDEX}", _VARIABLES_REMEDY)
        return
    try:
        unreadable = model.variables.unreadable
    except Exception as error:
        yield fail(f"variables/ cannot be opened: {reason_of(error)}", _VARIABLES_REMEDY)
        return
    for name, reason in unreadable.items():
        yield fail(f"variable {name!r} cannot be read: {reason}", _VARIABLES_REMEDY)


@check(needs="variables_read")
def variables_finite(model: ModelUnderTest) -> Findings:
    """No weight is NaN or infinite.

    Diverged training ends without an error and exports NaN. The scores of such a model are NaN or
    constant.

    Weights of a frozen graph are constants. A constant NaN that stands for a missing value is fine;
    NaN in a lookup table is a warning.

    Example: a learning rate of 1,000, and every weight is NaN after ten steps.
    """
    remedy = (
        "if training diverged: look at the loss, lower the learning rate, clip gradients, and "
        "look for NaN in the examples"
    )
    yield from _nan_constants(model, remedy)
    if _VARIABLES_INDEX not in model.files:
        raise Skip("the model has no variables")
    scan = model.variables
    unread = _unread(model) if scan.nan else set()
    if spoilt := [name for name in scan.nan if name not in unread]:
        # A table may say by NaN that it knows no value.
        judge = warn if all(map(_TABLE_KEY.search, spoilt)) else fail
        yield judge(f"NaN in {_quoted(spoilt)}", remedy, may_be_meant=judge is warn)
    if idle := [name for name in scan.nan if name in unread]:
        yield warn(
            f"NaN in {_quoted(idle)}, which no signature reads",
            f"leave optimizers and metrics out of the export; {remedy}",
        )
    if scan.infinite:
        yield warn(
            f"infinite values in {_quoted(scan.infinite)}", f"fine in a mask; in a weight, {remedy}"
        )


def _nan_constants(model: ModelUnderTest, remedy: str) -> Findings:
    """Yields constants with a NaN that a signature computes with.

    NaN is often meant where it is chosen by `tf.where`, is a default value, or fills a tensor.
    """
    constants = [
        node for node in model.nodes if node.op == "Const" and node.served and _has_nan(node)
    ]
    for judge, ops, size in ((fail, _WEIGHED, 0), (warn, _COMBINED, 1)):
        readers = [node.place for node in model.nodes if node.served and ops.fullmatch(node.op)]
        read = model.graph.upstream_of(readers, HANDS_ON | {"Cast"}) if constants else set()
        if spoilt := [n for n in constants if n.place in read and n.size > size]:
            yield judge(f"NaN in a constant: {listed(spoilt)}", remedy, may_be_meant=judge is warn)
        constants = [node for node in constants if node not in spoilt]


def _has_nan(node: Node) -> bool:
    """Whether a constant has a NaN; equal values are stored once, so it is not made an array."""
    import tensorflow as tf

    tensor = node.proto.attr["value"].tensor
    dtype = tf.as_dtype(tensor.dtype)
    if not dtype.is_floating:
        return False
    listed_values = [*tensor.float_val, *tensor.double_val]
    bits = tensor.tensor_content or np.array(tensor.half_val, np.uint16).tobytes()
    stored = np.frombuffer(bits, dtype.as_numpy_dtype)
    return bool(np.isnan(stored).any() or np.isnan(listed_values).any())


def _unread(model: ModelUnderTest) -> set[str]:
    """Returns the keys of variables in the checkpoint that certainly no signature reads."""
    import tensorflow as tf
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    reader = tf.train.load_checkpoint(str(model.directory / "variables" / "variables"))
    if not reader.has_tensor(_OBJECTS):
        return set()
    objects = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor(_OBJECTS)
    )
    saved = model.meta_graph.object_graph_def
    children = [{child.local_name: child.node_id for child in n.children} for n in saved.nodes]
    read: set[int] = set()
    signatures = children[0].get("signatures") if children else None
    for place in children[signatures].values() if signatures else ():
        function = saved.nodes[place].bare_concrete_function.concrete_function_name
        read.update(saved.concrete_functions[function].bound_inputs)
    # Both graphs have the same names of objects; those of variables may be alike.
    places = {0: 0} if read else {}
    waiting = list(places)
    for here in waiting:
        for child in objects.nodes[here].children:
            there = children[places[here]].get(child.local_name)
            if there is not None and child.node_id not in places:
                places[child.node_id] = there
                waiting.append(child.node_id)
    return {
        attribute.checkpoint_key
        for here, there in places.items()
        if there not in read and saved.nodes[there].WhichOneof("kind") == "variable"
        for attribute in objects.nodes[here].attributes
    }


def _quoted(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name.removesuffix(_VARIABLE_KEY)) for name in names[:5])
    return f"{len(names)} variables: {shown}" + (", ..." if len(names) > 5 else "")
