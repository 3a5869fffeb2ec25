"""Faults of what is computed: for a batch, for rare rows, for rows that a schema allows."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.validation import ServingContract
from tests.examples import example
from tests.validation import models, recipes
from tests.validation.broken_rows import BY_BOTH, BY_SCHEMA, MANY, MILES, SCHEMA
from tests.validation.broken_rows import LISTS as COMPANIES
from tests.validation.catalogue.rows import add, fault, scored, tensors
from tests.validation.models import after, asserted, save
from tests.validation.recipes import (
    EVALUATED,
    EVALUATED_EXAMPLES,
    Features,
    model,
    parsing,
    scoring,
)

EVALUATOR = "Evaluator, BulkInferrer"
FEW = dataclasses.replace(BY_BOTH, examples=())  # rows of the schema alone


def _state(value: Any) -> dict[str, Callable[[], Any]]:
    return {"state": lambda: tf.Variable(value)}


# Batches.

for *entry, options in (
    ("made_for_batches_of_32", "output_shape", "ultralytics#20018, automl#594", "all", EVALUATED,
     lambda x: {"y": tf.reshape(x, [32, 2])}, {}),
    ("even_numbers_of_rows_alone", "scores", "serving#276", EVALUATOR, EVALUATED,
     lambda x: {"y": tf.reduce_sum(tf.reshape(tf.repeat(x, 2, axis=0), [-1, 4, 2]), axis=1)}, {}),
    ("needs_five_rows", "scores", "tensorflow#9796", EVALUATOR, EVALUATED,
     lambda x: {"y": x + tf.math.top_k(x[:, 0], 5).values[0]}, {}),
    ("rows_in_another_order", "row_independence", "serving#689", EVALUATOR, EVALUATED,
     lambda x: {"y": tf.sort(x, axis=0, direction="DESCENDING")}, {}),
    ("duplicates_left_out", "batch_sizes", "tf.unique of a batch", EVALUATOR, EVALUATED,
     lambda x: {"y": tf.raw_ops.UniqueV2(x=x, axis=[0])[0]}, {}),
    ("softmax_over_the_batch", "row_independence", "softmax(axis=0)", EVALUATOR, EVALUATED,
     lambda x: {"y": tf.nn.softmax(x, axis=0)}, {}),
    ("normalised_by_the_statistics_of_the_batch", "row_independence",
     "tensorflow#9796, models#2776", EVALUATOR, EVALUATED,
     lambda x: {"y": tf.nn.batch_normalization(x, *tf.nn.moments(x, axes=[0]), None, None, 1e-3)},
     {}),
    ("scaled_by_the_largest_of_the_batch", "row_independence", "min-max scaling", EVALUATOR,
     EVALUATED, lambda x: {"y": x / tf.reduce_max(tf.abs(x))}, {}),
    ("difference_to_the_row_before", "row_independence", "sessions as batches", EVALUATOR,
     EVALUATED, lambda x: {"y": x - tf.roll(x, 1, axis=0)}, {}),
    ("shuffles_its_rows", "deterministic", "tf.random.shuffle", EVALUATOR, EVALUATED,
     lambda x: {"y": tf.random.shuffle(x)}, {}),
    ("adds_noise", "deterministic", "GaussianNoise(training=True)", EVALUATOR, EVALUATED,
     lambda x: {"y": x + tf.random.normal(tf.shape(x))}, {}),
    ("samples_its_answer", "deterministic", "serving#689", EVALUATOR, EVALUATED,
     lambda x: {"class": tf.random.categorical(x, 1)[:, 0]}, {}),
    ("statistics_moved_by_requests", "deterministic", "serving#1670", EVALUATOR, EVALUATED,
     lambda x, state: {"y": x - state.assign(0.9 * state + 0.1 * tf.reduce_mean(x))},
     {"named": _state(0.0)}),
    ("state_of_the_last_request", "deterministic", "stateful=True", EVALUATOR, EVALUATED,
     lambda x, state: {"y": x + _after(state, x)}, {"named": _state(0.0)}),
    ("a_step_of_training_as_serving_default", "deterministic", "export of train_step", EVALUATOR,
     EVALUATED, lambda x, state: {"loss": tf.reduce_sum(x * state.assign_sub(0.1), keepdims=True)},
     {"named": _state(1.0)}),
    ("fails_above_1000_rows", "batch_sizes", "max_batch_size", EVALUATOR, EVALUATED,
     lambda x: {"y": asserted(tf.shape(x)[0] <= 1000, x)}, {}),
    ("rows_beyond_100_cut", "batch_sizes", "transformers#8994", EVALUATOR, EVALUATED,
     lambda x: {"y": x[:100]}, {}),
    ("scalar_for_a_single_row", "batch_sizes", "squeeze()", EVALUATOR, EVALUATED,
     lambda x: {"y": tf.squeeze(x[:, :1])}, {}),
    ("keeps_every_request_in_a_queue", "state_growth", "serving#1215", "TF Serving", EVALUATED,
     lambda x: {"y": _enqueued(x)}, {"status": "warn"}),
):  # fmt: skip
    tensors(*entry, **options)


def _after(state: Any, x: tf.Tensor) -> tf.Tensor:
    before = tf.identity(state)
    state.assign(after(before, tf.reduce_sum(x)))
    return before


def _enqueued(x: tf.Tensor) -> tf.Tensor:
    queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shared_name="requests")
    return after(tf.raw_ops.QueueEnqueueV2(handle=queue, components=[x]), x) * 2.0


# Values that examples do not show, and a schema allows.


def _companies(features: Features) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_sparse(features["company"])


def _as_float(values: Any) -> tf.Tensor:
    return tf.cast(values, tf.float32)


for *entry, options in (
    ("word_without_a_row_of_the_embedding", "schema_rows", "keras#11819", "all", BY_SCHEMA,
     lambda f: tf.gather(tf.range(2.0), tf.argmax(f["payment"][:, None] == tf.constant([["card",
         "cash", "none"]]), axis=1)), {}),
    ("logarithm_of_the_lowest_value", "schema_rows", "tensorflow#38698", "Evaluator", BY_SCHEMA,
     lambda f: tf.math.log(f["miles"]), {"status": "warn"}),
    ("half_precision_overflows_in_the_domain", "schema_rows", "mixed_float16", "Evaluator",
     BY_SCHEMA, lambda f: _as_float(tf.cast(f["miles"] * 1000.0, tf.float16)), {"status": "warn"}),
    ("division_by_an_id", "schema_rows", "Integer division by zero", "all", BY_SCHEMA,
     lambda f: _as_float(tf.reduce_sum(7 // _companies(f), axis=1)), {"named": COMPANIES}),
    ("first_of_an_empty_list", "schema_rows", "serving#1269, tfx#5518", "all", BY_SCHEMA,
     lambda f: _as_float(_companies(f).to_tensor()[:, 0]), {"named": COMPANIES}),
    ("arg_max_of_an_empty_list", "schema_rows", "Reduction axis is empty", "all", BY_SCHEMA,
     lambda f: _as_float(tf.argmax(_companies(f).to_tensor(), axis=1)), {"named": COMPANIES}),
    ("list_reshaped_to_three_values", "scores", "serving#1269", "all", BY_SCHEMA,
     lambda f: tf.reduce_sum(_as_float(tf.reshape(f["company"].values, [-1, 3])), axis=1),
     {"named": COMPANIES, "status": "warn"}),
    ("middle_of_a_domain_that_fails", "schema_rows", "tensorflow#46690", "all", BY_SCHEMA,
     lambda f: tf.where(f["miles"] == 0.0, 1.0, tf.sqrt(f["miles"] - 1.0)), {}),
    ("default_that_no_embedding_has", "without_optional", "tfx#5518, keras#11819", "all", BY_SCHEMA,
     lambda f: tf.gather(tf.range(10.0), f["company"]),
     {"named": {"company": tf.io.FixedLenFeature([], tf.int64, default_value=-1)}}),
    ("needs_one_of_two_features", "without_optional", "tfx#5518", "all", BY_SCHEMA,
     lambda f: tf.gather(tf.range(9.0), tf.where((f["payment"] == "") & (f["company"] == -1), -1,
         0)), {"named": {"company": tf.io.FixedLenFeature([], tf.int64, default_value=-1)}}),
    ("missing_text_parsed_as_a_number", "without_optional", "StringToNumberOp", "all", BY_SCHEMA,
     lambda f: tf.strings.to_number(tf.strings.regex_replace(f["payment"], "card|cash|none", "1")),
     {}),
):  # fmt: skip
    scored(*entry, **options)

WITH_ENVIRONMENT = text_format.Parse(
    """default_environment: ["TRAINING", "SERVING"]
    feature { name: "miles" type: FLOAT presence { min_fraction: 1 } shape { dim { size: 1 } } }
    feature { name: "weight" type: FLOAT presence { min_fraction: 1 } shape { dim { size: 1 } }
              not_in_environment: "SERVING" }
    feature { name: "row" type: FLOAT presence { min_fraction: 1 } shape { dim { size: 3 } } }
    feature { name: "old" type: INT presence { min_fraction: 1 } shape { dim { size: 1 } }
              lifecycle_stage: DEPRECATED }
    feature { name: "image" type: BYTES presence { min_fraction: 1 } shape { dim { size: 1 } } }""",
    schema_pb2.Schema(),
)
BY_ENVIRONMENT = dataclasses.replace(EVALUATED, schema=WITH_ENVIRONMENT)


for name, check, source, recipe, status in (
    ("weight_of_training_needed_to_serve", "without_optional", "tfx#2920, tfx#2309",
     parsing("weight", tf.float32), "fail"),
    ("another_number_of_values_than_the_schema", "schema_features", "tfx#5520",
     parsing("row", tf.float32), "fail"),
    ("feature_that_is_out_of_use", "schema_features", "tfdv lifecycle_stage",
     parsing("old", tf.int64, _as_float), "warn"),
    ("feature_that_transform_makes", "schema_features", "transform#309, transform#15",
     parsing("miles_xf", tf.float32), "warn"),
    ("picture_that_must_decode", "scores", "serving#1223",
     parsing("image", tf.string, lambda v: tf.map_fn(
         lambda b: tf.reduce_mean(_as_float(tf.io.decode_image(b))), v,
         fn_output_signature=tf.float32)), "warn"),
    ("text_that_must_be_base64", "unforeseen_rows", "DecodeBase64",
     parsing("image", tf.string, lambda v: tf.strings.length(tf.io.decode_base64(v))), "warn"),
    ("text_that_must_have_three_letters", "unforeseen_rows", "Substr: pos out of range",
     parsing("image", tf.string, lambda v: tf.strings.length(tf.strings.substr(v, 3, 1))), "warn"),
    ("text_that_must_have_columns", "scores", "DecodeCSV",
     parsing("image", tf.string, lambda v: tf.io.decode_csv(v, [[0.0], [0.0]])[1]), "warn"),
):  # fmt: skip
    add(name, check, source, "all", recipe, BY_ENVIRONMENT, status=status)

for *entry, options in (
    ("exponential_that_overflows", "unforeseen_rows", "tensorflow#46690", "Evaluator", BY_BOTH,
     lambda f: tf.exp(f["miles"]), {"status": "warn"}),
    ("id_that_overflows_32_bits", "unforeseen_rows", "tensorflow#41312", "all", FEW,
     lambda f: tf.gather(tf.range(10.0),
         tf.minimum(tf.cast(tf.reduce_sum(tf.maximum(_companies(f), 0), axis=1), tf.int32), 9)),
     {"named": COMPANIES, "status": "warn"}),
    ("unknown_word_that_fails", "unforeseen_rows", "keras#11819, tfx#4390", "all", BY_BOTH,
     lambda f: tf.gather(tf.range(3.0), _position(f["payment"])), {"status": "warn"}),
):  # fmt: skip
    scored(*entry, **options)


def _position(word: tf.Tensor) -> tf.Tensor:
    known = word[:, None] == tf.constant([["", "card", "cash", "none"]])
    return tf.where(tf.reduce_any(known, 1), tf.argmax(known, 1) - 1, -1) + tf.cast(
        word == "", tf.int64
    )


# Eval examples.


def _example(row: int) -> bytes:
    """Returns an example whose list of companies has up to three values."""
    return example(miles=0.1 * row, company=list(range(1, 1 + row % 4)))


LISTS = dataclasses.replace(EVALUATED, examples=tuple(map(_example, range(40))))
for *entry, options in (
    ("padding_counts_as_values", "row_independence", "transformers#3246", EVALUATOR, LISTS,
     lambda f: tf.reduce_mean(_as_float(_companies(f).to_tensor()), axis=1),
     {"named": COMPANIES}),
    ("last_of_the_padded_list", "row_independence", "last time step", EVALUATOR, LISTS,
     lambda f: _as_float(tf.pad(_companies(f).to_tensor(), [[0, 0], [1, 0]])[:, -1]),
     {"named": COMPANIES}),
    ("longer_lists_than_the_model_has_room_for", "scores", "transformers#8994", "all", LISTS,
     lambda f: tf.reduce_sum(_as_float(tf.sparse.to_dense(tf.sparse.reset_shape(f["company"],
         [tf.shape(f["miles"])[0], 2]))), axis=1), {"named": COMPANIES}),
    ("infinity_in_row_500", "eval_rows", "serving#1670", "Evaluator", MANY,
     lambda f: 1.0 / (tf.round(f["miles"] * 10.0) - 500.0), {"status": "warn"}),
    ("classes_all_the_same", "outputs_vary", "tensorflow#23630", "clients", EVALUATED_EXAMPLES,
     lambda f: tf.sigmoid(f["miles"] + 1e4), {"status": "warn"}),
    ("vocabulary_that_was_never_adapted", "outputs_vary", "keras#18376, tensorflow#61369",
     "clients", EVALUATED_EXAMPLES, lambda f: _as_float(f["payment"] == "[UNK]"),
     {"status": "warn"}),
):  # fmt: skip
    scored(*entry, **options)


NUMBER = parsing("payment", tf.string, tf.strings.to_number)
TIPS = recipes.scored(
    lambda f: f["miles"] + tf.sparse.to_dense(f["tips"])[:, 0], tips=tf.io.VarLenFeature(tf.float32)
)
for name, check, source, breaks, recipe in (
    ("text_read_as_a_number", "scores", "tfx#3016, tfx#2920", "Evaluator", NUMBER),
    ("label_in_a_sequence", "without_label", "tfx#2920, tfx#5518", "all", TIPS),
):
    add(name, check, source, breaks, recipe, EVALUATED_EXAMPLES)


def _exchanged(good: Path) -> ServingContract:
    return dataclasses.replace(EVALUATED, transform_graph=str(good.parent / "exchanged"))


@fault("vocabularies", "transform#120", "all", _exchanged)
def vocabularies_exchanged(good: Path, folder: Path) -> None:
    assets = folder.parent / "exchanged/transform_fn/assets"
    assets.mkdir(parents=True)
    for name, words in {"colours": "red\ngreen\n", "sizes": "small\nlarge\n"}.items():
        (assets / name).write_text(words)
    models.save(models.linear(folder, "colours", ("small", "large")), folder)


BY_EXAMPLES = dataclasses.replace(EVALUATED_EXAMPLES, schema=SCHEMA)
NEVER = model(lambda miles: {"y": miles * np.nan}, MILES)  # what a diverged training leaves
add("table_of_nan", "outputs_finite", "keras#2967, DeepCTR#224", "Evaluator", NEVER, BY_EXAMPLES)
WORDS = {"status": "warn", "told": "of the model's vocabulary"}


@fault("unforeseen_rows", "keras#11819, tensorflow#23698", "all", BY_BOTH, **WORDS)
def embedding_smaller_than_its_vocabulary(good: Path, folder: Path) -> None:
    file = folder.parent / "payments_and_more.txt"
    asset = models.asset(file, "cash\ncard\nnone\nvoucher\napp\n")
    table = tf.lookup.StaticHashTable(models.lines_of(asset), 0)
    module = scoring(lambda f: tf.gather(tf.range(4.0), table.lookup(f["payment"])))
    module.table, module.asset = table, asset
    save(module, folder)
