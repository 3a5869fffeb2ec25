"""Recipes for models whose graphs are broken: their ops, where they run, what they compute."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.validation import ServingContract
from tests.validation.models import ROWS, SERIALIZED, aborted, after, save, serving
from tests.validation.recipes import (
    EVALUATED,
    EVALUATED_EXAMPLES,
    WITH_EXAMPLES,
    broken,
    edits,
    model,
    parsing,
    recipe,
    scored,
    serves,
)

Outputs = dict[str, Any]
SCHEMA = schema_pb2.Schema(
    feature=[
        {"name": "miles", "presence": {"min_fraction": 1.0}},
        {"name": "payment", "presence": {"min_count": 0}},
        {"name": "tips"},
    ]
)
WITH_SCHEMA = ServingContract(examples=WITH_EXAMPLES.examples, label_keys=("tips",), schema=SCHEMA)

# Functions of tensors, and of features.

for name, check, told, make, options in (
    ("python_function", "python_ops", "EagerPyFunc", model(lambda x: {"y":
        tf.ensure_shape(tf.py_function(lambda v: v * 2, [x], tf.float32), [None, 2])}), {}),
    ("reads_files_named_by_the_client", "file_ops", "ReadFile",
     model(lambda x: {"y": tf.map_fn(tf.io.read_file, x)}, SERIALIZED), {}),
    ("reads_records", "file_ops", "TFRecordDataset", model(lambda x: {"n":
        x + tf.data.TFRecordDataset("records").reduce(0.0, lambda n, _: n + 1.0)}), {}),
    ("path_of_another_machine", "absolute_paths", "models/words.txt",
     model(lambda x: {"y": x + "/models/words.txt"}, SERIALIZED), {"status": "warn"}),
    ("path_of_another_machine_before_a_mask", "absolute_paths", "models/words.txt", model(lambda x:
        {"y": tf.not_equal(x + "/models/words.txt", "")}, SERIALIZED), {"status": "warn"}),
    ("batch_leakage", "row_independence", "row 0 alone",
     model(lambda x: {"y": x - tf.reduce_mean(x, axis=0)}), {"contract": EVALUATED}),
    ("leakage_from_large_batches_only", "row_independence", "a batch of 7",
     model(lambda x: {"y": x + tf.cast(tf.shape(x)[0] == 7, tf.float32)}),
     {"contract": EVALUATED}),
    ("live_dropout", "deterministic", "second call", model(lambda x: {"y": tf.nn.dropout(x, 0.5)}),
     {"contract": EVALUATED}),
    ("rows_of_unknown_number", "output_per_row", "rows give output", model(lambda x: {"y":
        tf.boolean_mask(x, tf.range(tf.shape(x)[0]) % 2 == 0)}), {"contract": EVALUATED}),
    ("works_only_at_batch_one", "scores", "single rows are scored",
     model(lambda x: {"y": tf.squeeze(x, axis=0)[None]}), {}),
    ("stage_that_is_never_emptied", "state_growth", "Stage keeps values", model(lambda x: {"y":
        after(tf.raw_ops.Stage(values=[x], shared_name="seen"), x) * 2.0}), {"status": "warn"}),
    ("nan_outputs", "outputs_finite", "NaN", scored(lambda f: tf.math.log(f["miles"] - 1.0)),
     {"contract": EVALUATED_EXAMPLES}),
    ("infinite_outputs", "outputs_finite", "infinite", scored(lambda f: 1.0 / f["miles"]),
     {"status": "warn", "contract": WITH_EXAMPLES}),
    ("constant_outputs", "outputs_vary", "the same outputs",
     scored(lambda f: tf.zeros_like(f["miles"])), {"status": "warn", "contract": WITH_EXAMPLES}),
):  # fmt: skip
    broken(name, check, told, make, **options)


# Ops.


@serves("python_ops", "PyFunc")
def numpy_function_in_a_branch(x: tf.Tensor) -> Outputs:
    def slow() -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), [None, 2])

    return {"y": tf.cond(tf.reduce_sum(x) > 1e9, slow, lambda: x)}


@serves("denied_ops", "Cosh", contract=ServingContract(denied_ops=("Cosh",)))
def denied_op_inside_a_loop(x: tf.Tensor) -> Outputs:
    step = (lambda v: tf.reduce_max(v) < 9.0, lambda v: (tf.cosh(v) + 1.0,), (x,))
    return {"y": tf.while_loop(*step, maximum_iterations=9)[0]}


@serves("file_ops", "WriteFile", SERIALIZED)
def writes_files_in_a_branch(x: tf.Tensor) -> Outputs:
    def leak() -> tf.Tensor:
        return after(tf.io.write_file("leak", x[0]), x)

    return {"y": tf.cond(tf.size(x) > 10**6, leak, lambda: x)}


@serves("file_ops", "prints", status="warn")
def prints(x: tf.Tensor) -> Outputs:
    tf.print("rows", tf.shape(x)[0])
    return {"y": x * 2.0}


def _matrix_products(proto: Any) -> list[Any]:
    functions = proto.meta_graphs[0].graph_def.library.function
    return [node for function in functions for node in function.node_def if node.op == "MatMul"]


@edits("unregistered_ops", "Addons>Gelu")
def custom_op(proto: Any) -> None:
    assert op_def_registry.get("Addons>Gelu") is None
    for node in _matrix_products(proto):
        node.op = "Addons>Gelu"


@recipe("absolute_paths", "vocabulary.txt")
def absolute_asset_path(good: Path, folder: Path) -> None:
    vocabulary = folder.parent / "vocabulary.txt"
    vocabulary.write_text("a\nb\n")

    def lookup(x: tf.Tensor) -> Outputs:
        words = tf.strings.split(tf.io.read_file(str(vocabulary)), "\n")
        return {"known": tf.reduce_any(x[:, None] == words[None], axis=1)}

    save(serving(lookup, SERIALIZED), folder)


@edits("devices", "/job:worker")
def worker_device(proto: Any) -> None:
    for node in _matrix_products(proto):
        node.device = "/job:worker/replica:0/task:1/device:CPU:0"


@serves("devices", "pinned", status="warn")
def gpu_device(x: tf.Tensor) -> Outputs:
    with tf.device("/GPU:0"):
        return {"y": tf.exp(x)}


@serves("devices", "CollectiveReduce")
def collective(x: tf.Tensor) -> Outputs:
    keys = {"group_size": 2, "group_key": 1, "instance_key": 1, "subdiv_offsets": [0]}
    return {"y": tf.raw_ops.CollectiveReduce(input=x, merge_op="Add", final_op="Id", **keys)}


@recipe("compiled_functions", "XLA", status="warn")
def compiled_with_xla(good: Path, folder: Path) -> None:
    fast = tf.function(lambda x: x * 2.0 + 1.0, jit_compile=True)
    save(serving(lambda x: {"y": fast(x)}, ROWS, fast=fast), folder)


@edits("tensorflow_version", "99.0", status="warn")
def saved_by_a_newer_tensorflow(proto: Any) -> None:
    proto.meta_graphs[0].meta_info_def.tensorflow_version = "99.0.0"


OLDER = ServingContract(served_by=("tensorflow_serving==2.13",))


@serves("served_by", "tensorflow_serving==2.13 has no op 'Conv'", contract=OLDER)
def op_that_the_server_does_not_have(x: tf.Tensor) -> Outputs:
    kernel, options = tf.ones([1, 1, 1, 1]), {"strides": [1] * 4, "padding": "SAME"}
    return {"y": tf.raw_ops.Conv(input=x[..., None, None], filter=kernel, **options)[:, :, 0, 0]}


# Behaviour.


@serves("session", "a session gives the shape [32, 2]", status="warn")
def output_declared_with_another_shape(x: tf.Tensor) -> Outputs:
    y = tf.reshape(x, tf.shape(x) + 0)
    y.set_shape([None, 3])
    return {"y": y}


@recipe("session", "dense/bias")
def keras_3_saved_as_a_module(good: Path, folder: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="dense")])
    serve = tf.function(lambda x: {"y": model(x)}, input_signature=[ROWS])
    tf.saved_model.save(model, str(folder), signatures={"serving_default": serve})


@serves("scores", "killed by SIG")
def crashes_the_process(x: tf.Tensor) -> Outputs:
    return {"y": aborted(tf.size(x) > 0, x)}


LACKED, LEAKED = parsing("kilometers", tf.float32), parsing("tips", tf.float32, default_value=0.0)
NEEDED = scored(lambda f: f["miles"], tips=tf.io.FixedLenFeature([], tf.float32))
for name, check, told, make in (
    ("parses_another_dtype", "scores", "miles", parsing("miles", tf.int64)),
    ("requires_a_feature_that_examples_lack", "scores", "kilometers", LACKED),
    ("label_in_the_feature_spec", "without_label", "needs the label ['tips']", NEEDED),
    ("label_leaks_into_the_prediction", "without_label", "depends on the label", LEAKED),
):
    broken(name, check, told, make, WITH_EXAMPLES)
PAYMENT = parsing("payment", tf.string)
broken("optional_feature_required", "without_optional", "['payment']", PAYMENT, WITH_SCHEMA)

# State.

COUNTER = model(lambda x, n: {"y": x + n.assign_add(1.0)}, n=lambda: tf.Variable(0.0))
broken("counts_its_calls", "deterministic", "second call", COUNTER, EVALUATED)


@recipe("state_growth", "grows with every call", status="warn")
def variable_that_grows(good: Path, folder: Path) -> None:
    seen = tf.Variable([0.0], shape=[None])

    def serve(x: tf.Tensor) -> Outputs:
        seen.assign(tf.concat([seen, x[:, 0]], axis=0))
        return {"y": x * 2.0}

    save(serving(serve, ROWS, seen=seen), folder)


@recipe("state_growth", "grows with new values", status="warn")
def table_that_grows(good: Path, folder: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def serve(word: tf.Tensor) -> Outputs:
        table.insert(word, tf.ones_like(word, tf.int64))
        return {"length": tf.strings.length(word)}

    word = tf.TensorSpec([None], tf.string, name="word")
    save(serving(serve, word, table=table), folder)
