"""Checks of files: those of the model, and those that the contract names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core import internals
from generic_trainer._core.files import sha256_of_file
from generic_trainer._core.texts import reason_of
from generic_trainer.errors import DataError
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._manifest import MANIFEST, read_manifest
from generic_trainer.validation._model import SAVED_MODEL_FILES, ModelUnderTest
from generic_trainer.validation._signatures import nodes_of

_MANIFEST_REMEDY = "copy the model again from where it was published, with all of its files"
_PROTOBUF_LIMIT = (1 << 31) - 1  # bytes; no C++ consumer reads more
_SHARD = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")
# By TensorFlow, gsutil, NFS, and rsync, which puts six letters behind the name.
_TEMPORARY = re.compile(
    r"_temp\b|\.tmp\b|tempstate|\.part$|_\.gstmp$|^\.nfs|^\.(?:saved_model|variables)\..+\.\w{6}$"
)
_POINTER_OF_GIT_LFS = b"version https://git-lfs.github.com/spec/"
# Of saved_model.pb as it is; the others are of parts of it, but for the last.
_CHECKSUM = "saved_model_checksum"
_HASHES = ("graph_def_program_hash", "signature_def_hash", "saved_object_graph_hash")
_CHECKPOINT_HASH = "checkpoint_hash"
_VARIABLES_INDEX = Path("variables/variables.index")
_VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")
_VARIABLES_REMEDY = (
    "the files of variables/ are damaged or incomplete: export again, copy whole files, and "
    "compare with the sizes at the source"
)
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VARIABLE_KEY = "/.ATTRIBUTES/VARIABLE_VALUE"


@check("presence")
def presence(model: ModelUnderTest) -> Iterator[Finding]:
    """The directory holds a SavedModel, or a model in another format that is known.

    An orchestrator takes a step for done when its process ends well, whatever lies in the
    directory: a `run_fn` that exported elsewhere, or not at all, is found by the Pusher, or by the
    server.

    Example: `run_fn` ends without a call that saves, or saves into `fn_args.serving_model_dir +
    "/1"`.
    """
    model.facts["files"] = len(model.files)
    model.facts["size_bytes"] = sum((model.directory / path).stat().st_size for path in model.files)
    if not model.files:
        yield fail(
            f"no file in {model.exported_to}",
            "save the model to fn_args.serving_model_dir at the end of run_fn",
        )
        return
    if model.contract.format == "any" or model.is_saved_model:
        return
    if model.is_other_format:
        known = ", ".join(str(each.path) for each in model.artifacts if each.contents is not None)
        yield note(f"no SavedModel, and a model in another format: {known}")
        return
    inner = [path.parent for path in model.files if path.name in SAVED_MODEL_FILES]
    broken = {each.path: each.problem for each in model.artifacts if each.problem}
    listed = ", ".join(
        f"{path}: {broken[path]}" if path in broken else str(path) for path in model.files[:5]
    )
    nested = f"; there is a SavedModel below it, in {inner[0]}" if inner else ""
    yield fail(
        f"expected one of {', '.join(SAVED_MODEL_FILES)} in {model.exported_to}, "
        f"found {listed}{nested}",
        'export a SavedModel; for a format that is not known here set format="any" in the '
        "ServingContract: then only presence and manifest are checked",
    )


@check("inputs_read")
def inputs_read(model: ModelUnderTest) -> Iterator[Finding]:
    """The contract's examples, schema, statistics, transform graph and eval config can be read.

    What the contract names is read here once, and every other check relies on it: a path that is
    wrong would otherwise leave them without examples, and silent.

    Example: `ServingContract(examples="eval/*.gz")` where the files hold serialized
    `SequenceExample`s.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    read = {
        "examples": "eval_rows", "schema": "schema", "statistics": "observed",
        "transform_graph": "transform_graph", "eval_config": "eval_config",
    }  # fmt: skip
    if all(getattr(model.contract, name) is None for name in read):
        yield skip(f"the contract names none of {', '.join(read)}")
        return
    for name in read.values():
        try:
            getattr(model, name)
        except DataError as error:
            yield fail(str(error), "correct the contract; nothing is said about the model here")
    with contextlib.suppress(DataError):  # which has been said above
        try:
            for record in model.eval_rows:
                tf.train.Example.FromString(record)
            if model.eval_rows:
                yield note(f"{len(model.eval_rows)} examples read")
        except DecodeError:
            yield fail(
                "the contract's examples are not serialized tf.Examples",
                "point the contract at the records that ExampleGen or Transform wrote",
            )


@check("manifest_matches", needs=("presence",))
def manifest_matches(model: ModelUnderTest) -> Iterator[Finding]:
    """Every file has the SHA-256 that the model's manifest.json lists.

    A truncated vocabulary loads and silently returns defaults; only this finds it.

    Example: `assets/vocabulary` of a published model has lost its second half in a copy.
    """
    if Path(MANIFEST) not in model.files:
        yield skip(f"no {MANIFEST}: the model was not published by this package")
        return
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
    for what, names in (("missing", sorted(set(listed) - present)), ("changed", changed)):
        if names:
            yield fail(
                f"{what} since the model was published: {', '.join(names[:5])}", _MANIFEST_REMEDY
            )
    if added := sorted(present - set(listed) - {MANIFEST}):
        yield warn(
            f"added since the model was published: {', '.join(added[:5])}",
            "see who did: what a consumer reads of it, such as warm-up requests, nobody checked",
        )


@check("leftovers", needs=("presence",))
def leftovers(model: ModelUnderTest) -> Iterator[Finding]:
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
                "weights ended up as constants: keep them in tf.Variable attributes",
            )
    strange = [str(path) for path in model.files if any(map(_TEMPORARY.search, path.parts))]
    totals = {match[2] for path in model.files if (match := _SHARD.fullmatch(path.name))}
    if len(totals) > 1:
        strange.append("variables/ with the shards of two saves")
    protos = [path.name for path in model.files if str(path) in SAVED_MODEL_FILES]
    if len(protos) > 1:
        yield warn(
            f"{' and '.join(protos)} lie beside each other, and not all consumers read the same",
            "delete the one of an earlier export, or export into an empty directory",
        )
    if strange:
        yield warn(
            f"left over from an interrupted or repeated save: {', '.join(strange[:5])}",
            "export into an empty directory and wait until the save has returned",
        )


@check("parses", needs=("presence",))
def parses(model: ModelUnderTest) -> Iterator[Finding]:
    """The SavedModel proto parses and holds a graph.

    A file that was cut off by a full disk or an interrupted copy is there, has a size and a name,
    and holds nothing.

    Example: `saved_model.pb` of 0 bytes.
    """
    try:
        meta_graphs = len(model.saved_model.meta_graphs)
    except Exception as error:
        yield fail(
            f"saved_model.pb does not parse: {error}",
            "the file is truncated or damaged: export again, and copy whole files",
        )
        return
    if not meta_graphs:
        yield fail(
            "saved_model.pb parses and holds no graph",
            "the file is truncated or empty: export again with tf.saved_model.save",
        )


@check("fingerprint", needs=("parses",))
def fingerprint_matches(model: ModelUnderTest) -> Iterator[Finding]:
    """The fingerprint that was written at the export still fits the files.

    It covers saved_model.pb and the index of the variables; the variables' own bytes have
    checksums of their own, and assets are covered by the manifest.

    Example: `saved_model.pb` of one export beside the `variables/` of another one.
    """
    if Path("fingerprint.pb") not in model.files:
        yield skip("no fingerprint.pb (written by TensorFlow 2.12 and later)")
        return
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
        yield skip("written by a TensorFlow whose fingerprints are computed in another way")
        return
    names = [_CHECKSUM, _CHECKPOINT_HASH]
    if stored.saved_model_checksum != computed.saved_model_checksum:
        # Told only then: TensorFlow 2.12 and 2.13 computed them in another way.
        names[1:1] = _HASHES
    changed = [name for name in names if getattr(stored, name) != getattr(computed, name)]
    if changed:
        yield fail(
            f"{', '.join(changed)} differ from fingerprint.pb: files were edited, damaged or "
            "mixed with another model's after the export",
            "publish the export as it was written; if it was edited on purpose, delete "
            "fingerprint.pb or load and save the model again",
        )


@check("assets", needs=("serve_tag",))
def assets(model: ModelUnderTest) -> Iterator[Finding]:
    """Every asset of the graph is there and holds something.

    A table without its file stops the model from loading; one whose file is empty, or a pointer of
    Git LFS, loads, and every word in it is unknown.

    Example: `assets/vocabulary` is missing, as the model was copied without its folder.
    """
    for name in sorted({asset.filename for asset in model.assets}):
        file = model.directory / "assets" / name
        if not file.is_file():
            yield fail(
                f"assets/{name} is missing",
                "copy the model with its assets/ folder; without it tables cannot be filled",
            )
        elif _starts_with(file, _POINTER_OF_GIT_LFS):
            yield fail(
                f"assets/{name} is a pointer of Git LFS and not the file itself",
                "get the file with `git lfs pull`, and export again",
            )
        elif file.stat().st_size == 0:
            yield warn(
                f"assets/{name} is empty: every lookup in it will return the default",
                "see whether the vocabulary was complete when the model was exported",
            )


def _starts_with(file: Path, start: bytes) -> bool:
    with open(file, "rb") as opened:
        return opened.read(len(start)) == start


@check("variables_read", needs=("serve_tag",))
def variables_read(model: ModelUnderTest) -> Iterator[Finding]:
    """Every variable is complete, and its checksum is right.

    Weights are in files of their own, whose bytes TensorFlow reads when it must: a damaged shard
    may be noticed by the first request. Each tensor is read here, and its checksum compared.

    Example: `variables.data-00000-of-00002` without its sibling; one bit that a disk has turned.
    """
    if _VARIABLES_INDEX not in model.files:
        if any(node.op in _VARIABLE_OPS for node in model.nodes):
            yield fail(f"the model has variables and no {_VARIABLES_INDEX}", _VARIABLES_REMEDY)
        else:
            yield skip("the model has no variables")
        return
    try:
        unreadable = model.variables.unreadable
    except Exception as error:
        yield fail(f"variables/ cannot be opened: {reason_of(error)}", _VARIABLES_REMEDY)
        return
    for name, reason in unreadable.items():
        yield fail(f"variable {name!r} cannot be read: {reason}", _VARIABLES_REMEDY)


@check("variables_finite", needs=("variables_read",))
def variables_finite(model: ModelUnderTest) -> Iterator[Finding]:
    """No weight is NaN or infinite.

    Training that diverges ends without an error, and exports NaN. What such a model scores is NaN,
    or a constant.

    Example: a learning rate of 1,000, and every weight is NaN after ten steps.
    """
    if _VARIABLES_INDEX not in model.files:
        yield skip("the model has no variables")
        return
    scan = model.variables
    unread = _unread(model) if scan.nan else set()
    if idle := [name for name in scan.nan if name in unread]:
        yield warn(
            f"NaN in {_quoted(idle)}, which no signature reads",
            "see whether training diverged; leave optimizers and metrics out of the export",
        )
    if spoilt := [name for name in scan.nan if name not in unread]:
        yield fail(
            f"NaN in {_quoted(spoilt)}",
            "training diverged: look at the loss, lower the learning rate, clip gradients, and "
            "look for NaN in the examples",
        )
    if scan.infinite:
        yield warn(
            f"infinite values in {_quoted(scan.infinite)}",
            "fine in a mask; in a weight it means that training diverged",
        )


def _unread(model: ModelUnderTest) -> set[str]:
    """Returns the keys of variables in the checkpoint that are sure to be read by no signature."""
    import tensorflow as tf
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    reader = tf.train.load_checkpoint(str(model.directory / "variables" / "variables"))
    if not reader.has_tensor(_OBJECTS):
        return set()
    objects = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor(_OBJECTS)
    )
    graph_def = model.meta_graph.graph_def

    def names(nodes: Iterable[Any]) -> set[str]:
        return {node.attr["shared_name"].s.decode() for node in nodes if node.op == "VarHandleOp"}

    read = set().union(*(names(nodes_of(graph_def, each)) for each in model.signatures.values()))
    unread = names(graph_def.node) - read
    return {
        attribute.checkpoint_key
        for node in objects.nodes
        for attribute in node.attributes
        if attribute.full_name in unread
    }


def _quoted(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name.removesuffix(_VARIABLE_KEY)) for name in names[:5])
    return f"{len(names)} variables: {shown}" + (", ..." if len(names) > 5 else "")
