"""Faults of signatures: of what goes in and comes out, by whom it is read."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from generic_trainer.validation import ServingContract
from tests.validation import models
from tests.validation.broken_rows import BY_SCHEMA, MILES
from tests.validation.catalogue.rows import add, edited, export_of_miles, fault, tensors
from tests.validation.models import ROWS, SERIALIZED, save, serving
from tests.validation.recipes import EVALUATED, EVALUATED_EXAMPLES

INFERRED = ServingContract(signatures=(), consumers=("BulkInferrer",))
INFERRED_EXAMPLES = dataclasses.replace(INFERRED, examples=models.examples())
SERVED = ServingContract(signatures=(), consumers=("Pusher",))
PAYMENT = tf.TensorSpec([None, 1], tf.string, name="payment")
BULK = "BulkInferrer"
SERVING = "TF Serving"


# What BulkInferrer and the Evaluator feed.

for *entry, options in (
    ("two_inputs_before_a_bulk_inferrer", "serialized_input", "tfx-bsl#29, tfx#3927", BULK,
     INFERRED, lambda a, b: {"y": a + tf.cast(tf.strings.length(b), tf.float32)}, MILES, PAYMENT,
     {}),
    ("tensor_of_numbers_before_a_bulk_inferrer", "serialized_input", "tfx-bsl run_inference", BULK,
     INFERRED, lambda x: {"y": x * 2.0}, {}),
    ("matrix_of_strings_before_a_bulk_inferrer", "serialized_input", "tfx-bsl run_inference", BULK,
     INFERRED, lambda p: {"y": tf.strings.length(p)}, PAYMENT, {}),
    ("inputs_lost_their_names", "schema_features", "tensorflow#34070, kserve#811", "Evaluator",
     BY_SCHEMA, lambda a, b: {"y": a + tf.cast(b, tf.float32)},
     tf.TensorSpec([None, 1], tf.float32, name="args_0"),
     tf.TensorSpec([None, 1], tf.int64, name="args_0_1"), {"status": "warn"}),
    ("sparse_input_in_parts", "batch_dimension", "tensorflow#42018, tensorflow#52605", "Evaluator",
     EVALUATED, lambda i, v, s: {"y": tf.sparse.reduce_sum(tf.SparseTensor(i, v, s), axis=1)},
     tf.TensorSpec([None, 2], tf.int64, name="args_0"),
     tf.TensorSpec([None], tf.float32, name="args_0_1"),
     tf.TensorSpec([2], tf.int64, name="args_0_2"), {}),
    ("ragged_input_in_parts", "scores", "tensorflow#37226, tensorflow#45797", "Evaluator",
     EVALUATED, lambda v, s: {"y": tf.reduce_sum(tf.RaggedTensor.from_row_splits(v, s), axis=1)},
     tf.TensorSpec([None], tf.float32, name="args_0"),
     tf.TensorSpec([None], tf.int64, name="args_0_1"), {"status": "warn"}),
    ("rate_of_dropout_as_an_input", "batch_dimension", "serving#1581, serving#689", "Evaluator",
     EVALUATED, lambda x, keep: {"y": x * keep}, ROWS,
     tf.TensorSpec([], tf.float32, name="dropout_keep_prob"), {}),
    ("side_output_without_a_batch", "output_shape", "serving#276, serving#450",
     "Evaluator, TF Serving (REST)", EVALUATED,
     lambda x: {"y": x, "labels": tf.constant(["a", "b"])}, {}),
):  # fmt: skip
    tensors(*entry, **options)


for *entry, options in (
    ("sparse_output", "composite_tensors", "serving#2222, tensorflow#34603", SERVING, None,
     lambda x: {"y": tf.sparse.from_dense(x)}, {"status": "warn"}),
    ("complex_output", "composite_tensors", "json_tensor.cc of TF Serving", SERVING, SERVED,
     lambda x: {"y": tf.complex(x, x)}, {"status": "warn"}),
    ("handle_as_output", "composite_tensors", "TensorProto of a variant", "all", SERVED,
     lambda x: {"y": x, "list": tf.raw_ops.TensorListFromTensor(tensor=x,
         element_shape=tf.constant([2]))}, {}),
):  # fmt: skip
    tensors(*entry, **options)


# What the signature declares and the graph has.


def _signature(proto: Any) -> Any:
    return proto.meta_graphs[0].signature_def["serving_default"]


def _shaped(proto: Any) -> None:
    for info in _signature(proto).inputs.values():
        info.tensor_shape.dim.add(size=1)


def _second_input(proto: Any) -> None:
    inputs = _signature(proto).inputs
    inputs["serialized"].CopyFrom(inputs["examples"])


def _fetched_input(proto: Any) -> None:
    signature = _signature(proto)
    signature.outputs["echo"].CopyFrom(signature.inputs["examples"])


for *entry, options in (
    ("input_declared_with_another_rank", "signature_tensors", "serving#1269", SERVING,
     None, _shaped, {}),
    ("two_inputs_of_one_tensor", "signature_tensors", "Endpoint fed more than once", SERVING,
     None, _second_input, {}),
    ("output_that_is_an_input", "signature_tensors", "tensorflow#2422", SERVING, None,
     _fetched_input, {}),
    ("signature_without_outputs", "signature_methods", "serving#1512", SERVING,
     INFERRED, lambda proto: _signature(proto).outputs.clear(), {}),
    ("signature_without_a_method", "signature_methods", "tensorflow#34968", SERVING, None,
     lambda proto: _signature(proto).ClearField("method_name"), {"status": "warn"}),
    ("only_the_signature_of_the_initialisation", "signatures_exist",
     "tensorflow#69307, model_zoo#3", "all", None,
     lambda proto: proto.meta_graphs[0].signature_def.pop("serving_default"), {}),
):  # fmt: skip
    edited(*entry, **options)


# Signatures to classify and regress.


def _two(miles: tf.Tensor) -> tf.Tensor:
    return tf.stack([miles, -miles], axis=1)


def _words(miles: tf.Tensor) -> tf.Tensor:
    return tf.strings.as_string(_two(miles))


for name, method, outputs in (
    ("classes_that_are_numbers", "classify",
     lambda m: {"classes": tf.cast(_two(m), tf.int64), "scores": _two(m)}),
    ("scores_of_double_precision", "classify",
     lambda m: {"classes": _words(m), "scores": tf.cast(_two(m), tf.float64)}),
    ("scores_of_one_dimension", "classify",
     lambda m: {"classes": tf.strings.as_string(m), "scores": m}),
    ("more_scores_than_classes", "classify",
     lambda m: {"classes": _words(m), "scores": tf.stack([m, m, m], axis=1)}),
    ("regression_of_double_precision", "regress", lambda m: {"outputs": tf.cast(m, tf.float64)}),
    ("regression_of_two_values", "regress", lambda m: {"outputs": _two(m)}),
):  # fmt: skip
    kind = {"classify": "classifier.cc", "regress": "regressor.cc"}[method]
    source = f"{kind} of TF Serving, serving#1512, models#9264"
    add(name, "signature_methods", source, f"{SERVING}, {BULK}",
        lambda good, folder, method=method, outputs=outputs:
            export_of_miles(folder, lambda v1, miles: outputs(miles), method=method),
        INFERRED_EXAMPLES)  # fmt: skip


# Signatures beside the one that is called, and those of the model that was served so far.


@fault("scores", "transform#303", "who calls it", EVALUATED_EXAMPLES, status="warn")
def side_signature_that_fails(good: Path, folder: Path) -> None:
    module = models.linear(folder)
    spec = {"kilometers": tf.io.FixedLenFeature([], tf.float32)}
    other = serving(lambda x: {"y": tf.io.parse_example(x, spec)["kilometers"]}, SERIALIZED)
    save(module, folder, {"serving_default": module.serve, "other": other.serve})


def _compared(good: Path) -> ServingContract:
    return ServingContract(examples=models.examples(), base_model=str(good))


def _serve_as(name: str, change: Callable[[tf.Tensor], tf.Tensor], key: str = "score") -> Any:
    def make(good: Path, folder: Path) -> None:
        module = models.linear(folder)

        serve = module.serving(lambda score: {key: change(score)})
        save(module, folder, {name: serve, "serving_default": serve})

    return make


for name, make in {
    "output_renamed_since_the_last_model": _serve_as("predict", lambda y: y, "scores"),
    "dtype_changed_since_the_last_model": _serve_as("predict", lambda y: tf.cast(y, tf.float64)),
    "unit_changed_since_the_last_model": _serve_as("predict", lambda y: y * 1000.0),
}.items():
    add(name, "base_model", "tfx#4390", "clients", make, _compared, status="warn")


def _beside(good: Path) -> ServingContract:
    return _compared(good.parent / "signature_gone/base")


@fault("base_model", "tfx#4390", "clients", _beside, status="warn")
def signature_gone(good: Path, folder: Path) -> None:
    _serve_as("rank", lambda y: y)(good, folder / "base")
    models.good(folder / "model")
    for file in (folder / "model").iterdir():
        file.rename(folder / file.name)


@fault("serialized_input", "tfx#4505", "Evaluator, BulkInferrer", INFERRED)
def no_input(good: Path, folder: Path) -> None:
    save(serving(lambda: {"y": tf.zeros([1])}), folder)
