"""Recipes for broken models, each with the check that must find it.

A recipe gets a good model and a folder that does not exist yet, and puts a broken model there.
"""

from __future__ import annotations

import base64
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.validation import (
    ServingContract,
    SignatureSpec,
    ValidationReport,
    write_manifest,
)
from tests.validation import models
from tests.validation.models import ROWS, SERIALIZED, broken_copy, edit_proto, save, serving

Make = Callable[[Path, Path], Any]

WITH_EXAMPLES = ServingContract(examples=models.examples(), label_keys=("tips",))
EVALUATED = ServingContract(signatures=(), consumers=("Evaluator", "Pusher"))
EVALUATED_EXAMPLES = dataclasses.replace(WITH_EXAMPLES, consumers=("Evaluator", "Pusher"))
WITH_SCHEMA = dataclasses.replace(
    WITH_EXAMPLES,
    schema=schema_pb2.Schema(
        feature=[
            {"name": "miles", "presence": {"min_fraction": 1.0}},
            {"name": "payment", "presence": {"min_count": 0}},
            {"name": "tips"},
        ]
    ),
)
EMPTY_REPORT = ValidationReport("", ())


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A way to break a model.

    Attributes:
        make: puts the model into the second path.
        check: the check that must find it.
        status: what that check must say.
        told: a part of its message.
        contract: what the model is checked against; a function makes it of the good model.
        source: where the idea comes from: an issue, or the part of a library that breaks.
        breaks: whom the model breaks.
        missed: why no check can find it; empty for those that one finds.
    """

    make: Make
    check: str
    status: str
    told: str
    contract: ServingContract | Callable[[Path], ServingContract] | None
    source: str = ""
    breaks: str = ""
    missed: str = ""

    def contract_for(self, good: Path) -> ServingContract | None:
        """Returns the contract, where `good` is the good model."""
        return self.contract(good) if callable(self.contract) else self.contract


RECIPES: dict[str, Recipe] = {}


def recipe(
    check: str, told: str = "", *, status: str = "fail", contract: ServingContract | None = None
) -> Callable[[Make], Make]:
    """Registers a recipe under its function's name."""

    def register(make: Make) -> Make:
        RECIPES[make.__name__] = Recipe(make, check, status, told, contract)
        return make

    return register


# Files.


@recipe("presence", "no file")
def empty_directory(good: Path, folder: Path) -> None:
    folder.mkdir()


@recipe("presence", "model.pkl", status="warn")
def pickle_instead_of_saved_model(good: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "model.pkl").write_bytes(b"\x80\x04.")


@recipe("presence", "below it, in 1")
def model_one_folder_too_deep(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder / "1")


@recipe("parses", "does not parse")
def truncated_pb(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: _truncate(f / "saved_model.pb", 0.6))


@recipe("parses", "holds no graph")
def empty_pb(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: (f / "saved_model.pb").write_bytes(b""))


@recipe("fingerprint", "saved_model_checksum")
def edited_pb(good: Path, folder: Path) -> None:
    def edit(proto: Any) -> None:
        proto.meta_graphs[0].graph_def.node[0].name += "_edited"

    broken_copy(good, folder, lambda f: edit_proto(f, edit, keep_fingerprint=True))


@recipe("fingerprint", "checkpoint_hash")
def variables_of_another_model(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    other = serving(lambda x: {"y": x @ w}, ROWS, w=(w := tf.Variable(tf.ones([2, 1]))))
    save(other, folder.parent / "other")
    shutil.rmtree(folder / "variables")
    shutil.copytree(folder.parent / "other" / "variables", folder / "variables")


@recipe("fingerprint", "does not parse")
def garbage_fingerprint(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: (f / "fingerprint.pb").write_bytes(b"\xff\xff\xff"))


@recipe("variables_read", "cannot be read")
def flipped_byte_in_a_shard(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: _flip(f / "variables/variables.data-00000-of-00001", 2))


@recipe("variables_read")
def truncated_shard(good: Path, folder: Path) -> None:
    name = "variables/variables.data-00000-of-00001"
    broken_copy(good, folder, lambda f: _truncate(f / name, 0.1))


@recipe("variables_read")
def missing_shard(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: (f / "variables/variables.data-00000-of-00001").unlink())


@recipe("variables_read", "no variables/variables.index")
def missing_variables_index(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: shutil.rmtree(f / "variables"))


@recipe("variables_finite", "NaN in 1 variables: 'weight'")
def nan_weights(good: Path, folder: Path) -> None:
    _with_weight(folder, np.nan)


@recipe("variables_finite", "infinite", status="warn")
def infinite_weights(good: Path, folder: Path) -> None:
    _with_weight(folder, np.inf)


@recipe("assets", "is missing")
def missing_asset(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: next((f / "assets").iterdir()).unlink())


@recipe("assets", "is empty", status="warn")
def empty_asset(good: Path, folder: Path) -> None:
    (folder.parent / "notes.txt").touch()
    asset = tf.saved_model.Asset(str(folder.parent / "notes.txt"))
    save(serving(lambda x: {"y": x * 2.0}, ROWS, notes=asset), folder)


@recipe("loads", "tf.saved_model.load raises")
def empty_vocabulary(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: next((f / "assets").iterdir()).write_bytes(b""))


@recipe("leftovers", "variables_temp", status="warn")
def leftover_of_an_interrupted_save(good: Path, folder: Path) -> None:
    def leave(copied: Path) -> None:
        (copied / "variables/variables_temp").mkdir()
        (copied / "variables/variables_temp/part-00000-of-00001.data").write_bytes(b"x")

    broken_copy(good, folder, leave)


@recipe("leftovers", "two saves", status="warn")
def shards_of_two_saves(good: Path, folder: Path) -> None:
    shard = "variables/variables.data-00000-of-00002"
    broken_copy(good, folder, lambda f: (f / shard).write_bytes(b"x"))


# Tags and signatures.


@recipe("serve_tag", "{serve, train}")
def wrong_tags(good: Path, folder: Path) -> None:
    def edit(proto: Any) -> None:
        proto.meta_graphs[0].meta_info_def.tags.append("train")

    broken_copy(good, folder, lambda f: edit_proto(f, edit))


@recipe("signatures_exist", "has no signature")
def no_signature(good: Path, folder: Path) -> None:
    save(models.linear(folder), folder, signatures={})


@recipe("required_signatures", "['serving_default']", contract=ServingContract())
def misnamed_signature(good: Path, folder: Path) -> None:
    module = models.linear(folder)
    save(module, folder, signatures={"serve": module.serve})


@recipe(
    "signature_specs",
    "expected float32[None, 1], found float64[None, 1]",
    contract=ServingContract(
        signatures=(SignatureSpec("serving_default", outputs={"score": "float32[None, 1]"}),)
    ),
)
def wrong_output_dtype(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"score": tf.cast(x[:, :1], tf.float64)}, ROWS), folder)


@recipe(
    "signature_specs",
    "expected the inputs ['examples'], found ['x']",
    contract=ServingContract(
        signatures=(SignatureSpec("serving_default", inputs={"examples": "string[None]"}),)
    ),
)
def wrong_inputs(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"score": x[:, :1]}, ROWS), folder)


@recipe(
    "signature_specs",
    "expected the outputs ['probability'], found ['score']",
    contract=ServingContract(
        signatures=(SignatureSpec("serving_default", outputs={"probability": "float32"}),)
    ),
)
def wrong_output_name(good: Path, folder: Path) -> None:
    save(models.linear(folder), folder)


@recipe("batch_dimension", "found float32[4, 2]", contract=EVALUATED)
def fixed_batch(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": x * 2.0}, tf.TensorSpec([4, 2], name="x")), folder)


@recipe("output_shape", "found float32[]", contract=EVALUATED)
def scalar_output(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"loss": tf.reduce_mean(x)}, ROWS), folder)


@recipe("serialized_input", "BulkInferrer", status="warn", contract=ServingContract())
def no_serialized_input(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": x * 2.0}, ROWS), folder)


@recipe("serialized_input", "string[None, 1]", status="warn", contract=ServingContract())
def column_of_strings_as_input(good: Path, folder: Path) -> None:
    module = models.linear(folder)
    column = tf.TensorSpec([None, 1], tf.string, name="examples")
    serve = tf.function(lambda examples: module.serve(examples[:, 0]), input_signature=[column])
    save(module, folder, signatures={"serving_default": serve})


@recipe("composite_tensors", "not a dense tensor", status="warn")
def ragged_output(good: Path, folder: Path) -> None:
    def split(examples: tf.Tensor) -> dict[str, Any]:
        return {"words": tf.strings.split(examples)}

    save(serving(split, SERIALIZED), folder)


@recipe("signature_tensors", "names no tensor")
def output_of_no_tensor(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: edit_proto(f, _edit_info("outputs", name="")))


@recipe("signature_tensors", "'StatefulPartitionedCall:7', which is not in the graph")
def output_that_the_graph_lacks(good: Path, folder: Path) -> None:
    edit = _edit_info("outputs", name="StatefulPartitionedCall:7")
    broken_copy(good, folder, lambda f: edit_proto(f, edit))


@recipe("signature_tensors", "declares int64[None], in the graph it is string")
def input_declared_as_another_dtype(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: edit_proto(f, _edit_info("inputs", dtype=9)))


@recipe("signature_tensors", "declares float64[None, 1], in the graph it is float32", status="warn")
def output_declared_as_another_dtype(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: edit_proto(f, _edit_info("outputs", dtype=2)))


@recipe("session", "a session gives the shape [32, 2]", status="warn")
def output_declared_with_another_shape(good: Path, folder: Path) -> None:
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        y = tf.reshape(x, tf.shape(x) + 0)
        y.set_shape([None, 3])
        return {"y": y}

    save(serving(serve, ROWS), folder)


@recipe(
    "signature_methods",
    "'classes' or 'scores'",
    contract=ServingContract(signatures=(), consumers=("BulkInferrer",)),
)
def classifies_without_classes(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: edit_proto(f, _edit_method("tensorflow/serving/classify")))


@recipe("signature_methods", "expected one of", status="warn")
def unknown_method(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: edit_proto(f, _edit_method("infer")))


def _edit_info(kind: str, **fields: Any) -> Callable[[Any], None]:
    def edit(proto: Any) -> None:
        infos = getattr(proto.meta_graphs[0].signature_def["serving_default"], kind)
        for info in infos.values():
            for name, value in fields.items():
                setattr(info, name, value)

    return edit


def _edit_method(method: str) -> Callable[[Any], None]:
    def edit(proto: Any) -> None:
        proto.meta_graphs[0].signature_def["serving_default"].method_name = method

    return edit


# Ops.


@recipe("python_ops", "EagerPyFunc")
def python_function(good: Path, folder: Path) -> None:
    def double(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.ensure_shape(tf.py_function(lambda v: v * 2, [x], tf.float32), [None, 2])}

    save(serving(double, ROWS), folder)


@recipe("python_ops", "PyFunc")
def numpy_function_in_a_branch(good: Path, folder: Path) -> None:
    def hidden(x: tf.Tensor) -> dict[str, tf.Tensor]:
        def slow() -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), [None, 2])

        return {"y": tf.cond(tf.reduce_sum(x) > 1e9, slow, lambda: x)}

    save(serving(hidden, ROWS), folder)


@recipe("denied_ops", "Cosh", contract=ServingContract(denied_ops=("Cosh",)))
def denied_op_inside_a_loop(good: Path, folder: Path) -> None:
    def loop(x: tf.Tensor) -> dict[str, tf.Tensor]:
        step = (lambda v: tf.reduce_max(v) < 9.0, lambda v: (tf.cosh(v) + 1.0,), (x,))
        return {"y": tf.while_loop(*step, maximum_iterations=9)[0]}

    save(serving(loop, ROWS), folder)


@recipe("file_ops", "ReadFile")
def reads_files_named_by_the_client(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": tf.map_fn(tf.io.read_file, x)}, SERIALIZED), folder)


@recipe("file_ops", "WriteFile")
def writes_files_in_a_branch(good: Path, folder: Path) -> None:
    def write(x: tf.Tensor) -> dict[str, tf.Tensor]:
        def leak() -> tf.Tensor:
            with tf.control_dependencies([tf.io.write_file("leak", x[0])]):
                return tf.identity(x)

        return {"y": tf.cond(tf.size(x) > 10**6, leak, lambda: x)}

    save(serving(write, SERIALIZED), folder)


@recipe("file_ops", "prints", status="warn")
def prints(good: Path, folder: Path) -> None:
    def chatty(x: tf.Tensor) -> dict[str, tf.Tensor]:
        tf.print("rows", tf.shape(x)[0])
        return {"y": x * 2.0}

    save(serving(chatty, ROWS), folder)


@recipe("file_ops", "PrintV2")
def prints_into_a_file(good: Path, folder: Path) -> None:
    def leak(x: tf.Tensor) -> dict[str, tf.Tensor]:
        tf.print(x, output_stream=f"file://{folder.parent}/leak")
        return {"y": x * 2.0}

    save(serving(leak, ROWS), folder)


@recipe("file_ops", "TFRecordDataset")
def reads_records(good: Path, folder: Path) -> None:
    def count(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"n": x + tf.data.TFRecordDataset("records").reduce(0.0, lambda n, _: n + 1.0)}

    save(serving(count, ROWS), folder)


@recipe("unregistered_ops", "Addons>Gelu")
def custom_op(good: Path, folder: Path) -> None:
    def edit(proto: Any) -> None:
        for function in proto.meta_graphs[0].graph_def.library.function:
            for node in function.node_def:
                if node.op == "MatMul":
                    node.op = "Addons>Gelu"

    assert op_def_registry.get("Addons>Gelu") is None
    broken_copy(good, folder, lambda f: edit_proto(f, edit))


@recipe("absolute_paths", "vocabulary.txt")
def absolute_asset_path(good: Path, folder: Path) -> None:
    vocabulary = folder.parent / "vocabulary.txt"
    vocabulary.write_text("a\nb\n")

    def lookup(x: tf.Tensor) -> dict[str, tf.Tensor]:
        words = tf.strings.split(tf.io.read_file(str(vocabulary)), "\n")
        return {"known": tf.reduce_any(x[:, None] == words[None], axis=1)}

    save(serving(lookup, SERIALIZED), folder)


@recipe("absolute_paths", "models/words.txt", status="warn")
def path_of_another_machine(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": x + "/models/words.txt"}, SERIALIZED), folder)


@recipe("devices", "/job:worker")
def worker_device(good: Path, folder: Path) -> None:
    def edit(proto: Any) -> None:
        for function in proto.meta_graphs[0].graph_def.library.function:
            for node in function.node_def:
                if node.op == "MatMul":
                    node.device = "/job:worker/replica:0/task:1/device:CPU:0"

    broken_copy(good, folder, lambda f: edit_proto(f, edit))


@recipe("devices", "pinned", status="warn")
def gpu_device(good: Path, folder: Path) -> None:
    def pinned(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device("/GPU:0"):
            return {"y": tf.exp(x)}

    save(serving(pinned, ROWS), folder)


@recipe("devices", "CollectiveReduce")
def collective(good: Path, folder: Path) -> None:
    def reduced(x: tf.Tensor) -> dict[str, tf.Tensor]:
        y = tf.raw_ops.CollectiveReduce(
            input=x, group_size=2, group_key=1, instance_key=1, merge_op="Add", final_op="Id",
            subdiv_offsets=[0],
        )  # fmt: skip
        return {"y": y}

    save(serving(reduced, ROWS), folder)


@recipe("compiled_functions", "XLA", status="warn")
def compiled_with_xla(good: Path, folder: Path) -> None:
    fast = tf.function(lambda x: x * 2.0 + 1.0, jit_compile=True)
    save(serving(lambda x: {"y": fast(x)}, ROWS, fast=fast), folder)


@recipe("tensorflow_version", "99.0", status="warn")
def saved_by_a_newer_tensorflow(good: Path, folder: Path) -> None:
    def edit(proto: Any) -> None:
        proto.meta_graphs[0].meta_info_def.tensorflow_version = "99.0.0"

    broken_copy(good, folder, lambda f: edit_proto(f, edit))


# Behaviour.


@recipe("scores", "single rows are scored")
def works_only_at_batch_one(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": tf.squeeze(x, axis=0)[None]}, ROWS), folder)


@recipe("scores", "miles", contract=WITH_EXAMPLES)
def parses_another_dtype(good: Path, folder: Path) -> None:
    spec = {"miles": tf.io.FixedLenFeature([], tf.int64)}
    save(serving(lambda x: {"y": tf.io.parse_example(x, spec)["miles"]}, SERIALIZED), folder)


@recipe("scores", "kilometers", contract=WITH_EXAMPLES)
def requires_a_feature_that_examples_lack(good: Path, folder: Path) -> None:
    spec = {"kilometers": tf.io.FixedLenFeature([], tf.float32)}
    save(serving(lambda x: {"y": tf.io.parse_example(x, spec)["kilometers"]}, SERIALIZED), folder)


@recipe("session", "dense/bias")
def keras_3_saved_as_a_module(good: Path, folder: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="dense")])
    serve = tf.function(lambda x: {"y": model(x)}, input_signature=[ROWS])
    tf.saved_model.save(model, str(folder), signatures={"serving_default": serve})


@recipe("scores", "killed by SIG")
def crashes_the_process(good: Path, folder: Path) -> None:
    def crash(x: tf.Tensor) -> dict[str, tf.Tensor]:
        size = tf.shape(x, tf.int64)[0] * 2**25
        handle = tf.raw_ops.TensorListReserve(
            element_shape=tf.stack([size, size]), num_elements=2**30, element_dtype=tf.float32
        )
        return {"y": x + tf.cast(tf.raw_ops.TensorListLength(input_handle=handle), tf.float32)}

    save(serving(crash, ROWS), folder)


@recipe("row_independence", "row 0 alone", contract=EVALUATED)
def batch_leakage(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": x - tf.reduce_mean(x, axis=0)}, ROWS), folder)


@recipe("row_independence", "a batch of 7", contract=EVALUATED)
def leakage_from_large_batches_only(good: Path, folder: Path) -> None:
    def leak(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + tf.cast(tf.shape(x)[0] == 7, tf.float32)}

    save(serving(leak, ROWS), folder)


@recipe("deterministic", "second call", contract=EVALUATED)
def live_dropout(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": tf.nn.dropout(x, 0.5)}, ROWS), folder)


@recipe("deterministic", "second call", contract=EVALUATED)
def counts_its_calls(good: Path, folder: Path) -> None:
    calls = tf.Variable(0.0)
    save(serving(lambda x: {"y": x + calls.assign_add(1.0)}, ROWS, calls=calls), folder)


@recipe("output_per_row", "rows give output", contract=EVALUATED)
def rows_of_unknown_number(good: Path, folder: Path) -> None:
    def halve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.boolean_mask(x, tf.range(tf.shape(x)[0]) % 2 == 0)}

    save(serving(halve, ROWS), folder)


@recipe("outputs_finite", "NaN", contract=EVALUATED_EXAMPLES)
def nan_outputs(good: Path, folder: Path) -> None:
    save(_scoring(lambda miles: tf.math.log(miles - 1.0)), folder)


@recipe("outputs_finite", "infinite", status="warn", contract=WITH_EXAMPLES)
def infinite_outputs(good: Path, folder: Path) -> None:
    save(_scoring(lambda miles: 1.0 / miles), folder)


@recipe("outputs_vary", "the same outputs", status="warn", contract=WITH_EXAMPLES)
def constant_outputs(good: Path, folder: Path) -> None:
    save(_scoring(tf.zeros_like), folder)


@recipe("without_label", "needs the label ['tips']", contract=WITH_EXAMPLES)
def label_in_the_feature_spec(good: Path, folder: Path) -> None:
    spec = {
        "miles": tf.io.FixedLenFeature([], tf.float32),
        "tips": tf.io.FixedLenFeature([], tf.float32),
    }
    save(serving(lambda x: {"y": tf.io.parse_example(x, spec)["miles"]}, SERIALIZED), folder)


@recipe("without_label", "depends on the label", contract=WITH_EXAMPLES)
def label_leaks_into_the_prediction(good: Path, folder: Path) -> None:
    spec = {"tips": tf.io.FixedLenFeature([], tf.float32, default_value=0.0)}
    save(serving(lambda x: {"y": tf.io.parse_example(x, spec)["tips"]}, SERIALIZED), folder)


@recipe("without_optional", "['payment']", contract=WITH_SCHEMA)
def optional_feature_required(good: Path, folder: Path) -> None:
    spec = {"payment": tf.io.FixedLenFeature([], tf.string)}
    save(serving(lambda x: {"y": tf.io.parse_example(x, spec)["payment"]}, SERIALIZED), folder)


@recipe("inputs_read", "0 files match", contract=ServingContract(examples="/nowhere/*.gz"))
def examples_that_do_not_exist(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)


@recipe("inputs_read", "is not a directory", contract=ServingContract(transform_graph="/nowhere"))
def transform_graph_that_does_not_exist(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)


@recipe("inputs_read", "not serialized tf.Examples", contract=ServingContract(examples=(b"\xff",)))
def examples_that_are_none(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)


@recipe("latency", "budget", contract=ServingContract(max_latency_ms=1e-6))
def too_slow(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)


@recipe("memory", "budget", contract=ServingContract(max_memory_mb=1e-3))
def too_large(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)


@recipe("warmup", "which is missing")
def warm_up_for_another_signature(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    models.write_warmup(folder, signature="predict")


@recipe("warmup", "request 0")
def warm_up_with_another_input(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    models.write_warmup(folder, key="x")


@recipe("warmup", "cannot be read")
def warm_up_file_truncated(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    _truncate(models.write_warmup(folder), 0.7)


@recipe("warmup", "more than 1000 requests")
def warm_up_without_end(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    models.write_warmup(folder, count=1001)


@recipe("warmup", "is compressed (GZIP)")
def warm_up_compressed(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    models.write_warmup(folder, compression="GZIP")


@recipe("warmup", "it has int32")
def warm_up_with_another_dtype(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": x * 2.0}, ROWS), folder)
    models.write_warmup(folder, key="x", value=[[1, 2]])


@recipe("state_growth", "grows with every call", status="warn")
def variable_that_grows(good: Path, folder: Path) -> None:
    seen = tf.Variable([0.0], shape=[None])

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        seen.assign(tf.concat([seen, x[:, 0]], axis=0))
        return {"y": x * 2.0}

    save(serving(serve, ROWS, seen=seen), folder)


@recipe("state_growth", "grows with new values", status="warn")
def table_that_grows(good: Path, folder: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def serve(word: tf.Tensor) -> dict[str, tf.Tensor]:
        table.insert(word, tf.ones_like(word, tf.int64))
        return {"length": tf.strings.length(word)}

    word = tf.TensorSpec([None], tf.string, name="word")
    save(serving(serve, word, table=table), folder)


@recipe("state_growth", "Stage keeps values", status="warn")
def stage_that_is_never_emptied(good: Path, folder: Path) -> None:
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.raw_ops.Stage(values=[x], shared_name="seen")]):
            return {"y": x * 2.0}

    save(serving(serve, ROWS), folder)


# After publishing.


@recipe("manifest_matches", "vocabulary.txt")
def truncated_vocabulary(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    write_manifest(str(folder), EMPTY_REPORT)
    _truncate(next((folder / "assets").iterdir()), 0.6)


@recipe("manifest_matches", "missing since")
def file_lost_since_publishing(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra/labels.txt").write_text("yes\nno\n")
    write_manifest(str(folder), EMPTY_REPORT)
    shutil.rmtree(folder / "assets.extra")


@recipe("manifest_matches", "cannot be read")
def garbage_manifest(good: Path, folder: Path) -> None:
    broken_copy(good, folder, lambda f: (f / "manifest.json").write_text("[]"))


@recipe("golden", "manifest.json")
def another_function_under_the_same_manifest(good: Path, folder: Path) -> None:
    record = base64.b64encode(models.examples(1)[0]).decode()
    golden = {"serving_default": {"examples": [record], "outputs": {"score": [[123.0]]}}}
    shutil.copytree(good, folder)
    write_manifest(str(folder), ValidationReport(str(folder), (), {"golden": golden}))


def _scoring(function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Module:
    """A model whose score is a function of the miles."""
    spec = {"miles": tf.io.FixedLenFeature([], tf.float32)}
    return serving(lambda x: {"score": function(tf.io.parse_example(x, spec)["miles"])}, SERIALIZED)


def _truncate(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def _flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 0x40
    file.write_bytes(bytes(content))


def _with_weight(folder: Path, value: float) -> None:
    module = models.linear(folder)
    module.weight.assign([[value]])
    save(module, folder)
