"""Recipes for models whose files, tags, signatures or warm-up requests are broken."""

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.validation import (
    ServingContract,
    SignatureSpec,
    ValidationReport,
    write_manifest,
)
from tests.validation import models
from tests.validation.models import ROWS, SERIALIZED, save, serving
from tests.validation.recipes import EVALUATED, broken, damages, damaging, edits, model, recipe

SHARD = "variables/variables.data-00000-of-00001"
EMPTY_REPORT = ValidationReport("", ())
Edit = Callable[[Path], Any]


def put(name: str, content: bytes) -> Edit:
    """Writes a file of the model."""

    def edit(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return edit


def cut(name: str, share: float) -> Edit:
    """Leaves a share of a file of the model."""

    def edit(folder: Path) -> None:
        file = next(folder.glob(name))
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * share)])

    return edit


def lose(name: str) -> Edit:
    """Deletes a file or a folder of the model."""

    def edit(folder: Path) -> None:
        path = next(folder.glob(name))
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return edit


def _flip(folder: Path) -> None:
    content = bytearray((folder / SHARD).read_bytes())
    content[2] ^= 0x40
    (folder / SHARD).write_bytes(bytes(content))


# Files.

for name, check, told, edit in (
    ("truncated_pb", "parses", "does not parse", cut("saved_model.pb", 0.6)),
    ("empty_pb", "parses", "holds no graph", put("saved_model.pb", b"")),
    ("garbage_fingerprint", "fingerprint", "does not parse", put("fingerprint.pb", b"\xff\xff")),
    ("flipped_byte_in_a_shard", "variables_read", "cannot be read", _flip),
    ("truncated_shard", "variables_read", "", cut(SHARD, 0.1)),
    ("missing_shard", "variables_read", "", lose(SHARD)),
    ("missing_variables_index", "variables_read", "variables/variables.index", lose("variables")),
    ("missing_asset", "assets", "is missing", lose("assets/*")),
    ("empty_vocabulary", "loads", "tf.saved_model.load raises", cut("assets/*", 0)),
    ("garbage_manifest", "manifest_matches", "cannot be read", put("manifest.json", b"[]")),
):
    broken(name, check, told, damaging(edit))
for name, told, file in (
    ("leftover_of_an_interrupted_save", "variables_temp", "variables/variables_temp/part.data"),
    ("shards_of_two_saves", "two saves", "variables/variables.data-00000-of-00002"),
):
    broken(name, "leftovers", told, damaging(put(file, b"x")), status="warn")
broken("empty_directory", "presence", "no file", lambda good, folder: folder.mkdir())


@recipe("presence", "model.pkl", status="warn")
def pickle_instead_of_saved_model(good: Path, folder: Path) -> None:
    put("model.pkl", b"\x80\x04.")(folder)


@recipe("presence", "below it, in 1")
def model_one_folder_too_deep(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder / "1")


@damages("fingerprint", "saved_model_checksum")
def edited_pb(folder: Path) -> None:
    proto = models.read_proto(folder)
    proto.meta_graphs[0].graph_def.node[0].name += "_edited"
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())


@damages("fingerprint", "checkpoint_hash")
def variables_of_another_model(folder: Path) -> None:
    shutil.rmtree(folder / "variables")
    other = serving(lambda x: {"y": x @ w}, ROWS, w=(w := tf.Variable(tf.ones([2, 1]))))
    shutil.copytree(save(other, folder.parent / "other") / "variables", folder / "variables")


def _with_weight(folder: Path, value: float) -> None:
    module = models.linear(folder)
    module.weight.assign([[value]])
    save(module, folder)


@recipe("variables_finite", "NaN in 1 variables: 'weight'")
def nan_weights(good: Path, folder: Path) -> None:
    _with_weight(folder, np.nan)


@recipe("variables_finite", "infinite", status="warn")
def infinite_weights(good: Path, folder: Path) -> None:
    _with_weight(folder, np.inf)


@recipe("assets", "is empty", status="warn")
def empty_asset(good: Path, folder: Path) -> None:
    notes = models.asset(folder.parent / "notes.txt", "")
    save(serving(lambda x: {"y": x * 2.0}, ROWS, notes=notes), folder)


# Tags and signatures.


@edits("serve_tag", "{serve, train}")
def wrong_tags(proto: Any) -> None:
    proto.meta_graphs[0].meta_info_def.tags.append("train")


@recipe("signatures_exist", "has no signature")
def no_signature(good: Path, folder: Path) -> None:
    save(models.linear(folder), folder, signatures={})


@recipe("required_signatures", "['serving_default']", contract=ServingContract())
def misnamed_signature(good: Path, folder: Path) -> None:
    module = models.linear(folder)
    save(module, folder, signatures={"serve": module.serve})


def _declaring(**expected: Any) -> ServingContract:
    return ServingContract(signatures=(SignatureSpec("serving_default", **expected),))


BY_DTYPE = _declaring(outputs={"score": "float32[None, 1]"})
BY_INPUT = _declaring(inputs={"examples": "string[None]"})
BY_OUTPUT = _declaring(outputs={"probability": "float32"})
COLUMN = model(lambda x: {"score": x[:, :1]})
DOUBLES = model(lambda x: {"score": tf.cast(x[:, :1], tf.float64)})
for name, told, make, contract in (
    ("wrong_output_dtype", "float32[None, 1], found float64[None, 1]", DOUBLES, BY_DTYPE),
    ("wrong_inputs", "expected the inputs ['examples'], found ['x']", COLUMN, BY_INPUT),
    ("wrong_output_name", "the outputs ['probability'], found ['score']", COLUMN, BY_OUTPUT),
):
    broken(name, "signature_specs", told, make, contract)
ANY_RANK = model(lambda x: {"score": tf.compat.v1.placeholder_with_default(x, None)})
told = "output 'score' should be float32[None, 1], and does not declare its shape"
broken("output_of_any_rank", "signature_specs", told, ANY_RANK, BY_DTYPE, status="warn")
ANY = ServingContract()
DOUBLE = model(lambda x: {"y": x * 2.0})
FOUR = model(lambda x: {"y": x * 2.0}, tf.TensorSpec([4, 2], name="x"))
SCALAR = model(lambda x: {"loss": tf.reduce_mean(x)})
RAGGED = model(lambda x: {"words": tf.strings.split(x)}, SERIALIZED)
broken("fixed_batch", "batch_dimension", "found float32[4, 2]", FOUR, EVALUATED)
broken("scalar_output", "output_shape", "found float32[]", SCALAR, EVALUATED)
broken("no_serialized_input", "serialized_input", "BulkInferrer", DOUBLE, ANY, status="warn")
broken("ragged_output", "composite_tensors", "not a dense tensor", RAGGED, status="warn")


@recipe("serialized_input", "string[None, 1]", status="warn", contract=ANY)
def column_of_strings_as_input(good: Path, folder: Path) -> None:
    module = models.linear(folder)
    column = tf.TensorSpec([None, 1], tf.string, name="examples")
    serve = tf.function(lambda examples: module.serve(examples[:, 0]), input_signature=[column])
    save(module, folder, signatures={"serving_default": serve})


def _serving_default(proto: Any) -> Any:
    return proto.meta_graphs[0].signature_def["serving_default"]


def _redeclare(infos: Any, **fields: Any) -> None:
    for info in infos.values():
        for name, value in fields.items():
            setattr(info, name, value)


@edits("signature_tensors", "names no tensor")
def output_of_no_tensor(proto: Any) -> None:
    _redeclare(_serving_default(proto).outputs, name="")


@edits("signature_tensors", "'StatefulPartitionedCall:7', which is not in the graph")
def output_that_the_graph_lacks(proto: Any) -> None:
    _redeclare(_serving_default(proto).outputs, name="StatefulPartitionedCall:7")


@edits("signature_tensors", "declares int64[None], in the graph it is string")
def input_declared_as_another_dtype(proto: Any) -> None:
    _redeclare(_serving_default(proto).inputs, dtype=9)


@edits("signature_tensors", "declares float64[None, 1], in the graph it is float32", status="warn")
def output_declared_as_another_dtype(proto: Any) -> None:
    _redeclare(_serving_default(proto).outputs, dtype=2)


INFERRED = ServingContract(signatures=(), consumers=("BulkInferrer",))


@edits("signature_methods", "'classes' or 'scores'", contract=INFERRED)
def classifies_without_classes(proto: Any) -> None:
    _serving_default(proto).method_name = "tensorflow/serving/classify"


@edits("signature_methods", "expected one of", status="warn")
def unknown_method(proto: Any) -> None:
    _serving_default(proto).method_name = "infer"


# What the contract names.

NOWHERE = {"transform_graph": "/nowhere"}
for name, check, told, contract in (
    ("examples_that_do_not_exist", "inputs_read", "0 files match", {"examples": "/nowhere/*.gz"}),
    ("transform_graph_that_does_not_exist", "inputs_read", "is not a directory", NOWHERE),
    ("examples_that_are_none", "inputs_read", "serialized tf.Examples", {"examples": (b"\xff",)}),
    ("too_slow", "latency", "budget", {"max_latency_ms": 1e-6}),
    ("too_large", "memory", "budget", {"max_memory_mb": 1e-3}),
):
    broken(name, check, told, shutil.copytree, ServingContract(**contract))

# Warm-up requests.

for name, told, request in (
    ("warm_up_for_another_signature", "which is missing", {"signature": "predict"}),
    ("warm_up_with_another_input", "request 0", {"key": "x"}),
    ("warm_up_without_end", "more than 1000 requests", {"count": 1001}),
    ("warm_up_compressed", "is compressed (GZIP)", {"compression": "GZIP"}),
):
    broken(name, "warmup", told, damaging(lambda f, r=request: models.write_warmup(f, **r)))


@damages("warmup", "cannot be read")
def warm_up_file_truncated(folder: Path) -> None:
    models.write_warmup(folder)
    cut("assets.extra/*", 0.7)(folder)


@recipe("warmup", "it has int32")
def warm_up_with_another_dtype(good: Path, folder: Path) -> None:
    DOUBLE(good, folder)
    models.write_warmup(folder, key="x", value=[[1, 2]])


# After publishing.


@damages("manifest_matches", "_temp")
def truncated_vocabulary(folder: Path) -> None:
    write_manifest(str(folder), EMPTY_REPORT)
    cut("assets/*", 0.6)(folder)


@damages("manifest_matches", "missing since")
def file_lost_since_publishing(folder: Path) -> None:
    put("assets.extra/labels.txt", b"yes\nno\n")(folder)
    write_manifest(str(folder), EMPTY_REPORT)
    lose("assets.extra")(folder)


@damages("golden", "manifest.json")
def another_function_under_the_same_manifest(folder: Path) -> None:
    record = base64.b64encode(models.examples(1)[0]).decode()
    golden = {"serving_default": {"examples": [record], "outputs": {"score": [[123.0]]}}}
    write_manifest(str(folder), ValidationReport(str(folder), (), {"golden": golden}))
