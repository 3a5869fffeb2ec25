"""Recipes for models that only some rows break: rare ones, and those that a schema allows."""

import dataclasses
from pathlib import Path

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from generic_trainer.validation import ServingContract
from tests.validation import broken_files, broken_graphs, models
from tests.validation.models import FEATURES, SERIALIZED, asserted
from tests.validation.recipes import (
    EVALUATED,
    RECIPES,
    WITH_EXAMPLES,
    Features,
    broken,
    model,
    recipe,
    scored,
    scores,
    serves,
)

_MODULES = (broken_files, broken_graphs)  # which register what they have
__all__ = ["RECIPES"]

SCHEMA = text_format.Parse(
    """
    feature {
      name: "miles" type: FLOAT presence { min_fraction: 1 min_count: 1 } shape { dim { size: 1 } }
      float_domain { min: 0 max: 100 }
    }
    feature {
      name: "payment" type: BYTES presence { min_count: 1 } value_count { min: 1 max: 1 }
      string_domain { value: "card" value: "cash" value: "none" }
    }
    feature {
      name: "company" type: INT presence { min_count: 1 } value_count { min: 0 max: 3 }
      int_domain { min: 0 max: 9 }
    }
    feature { name: "tips" type: FLOAT presence { min_fraction: 1 min_count: 1 } }
    """,
    schema_pb2.Schema(),
)
BY_SCHEMA = dataclasses.replace(EVALUATED, schema=SCHEMA, label_keys=("tips",))
BY_BOTH = dataclasses.replace(BY_SCHEMA, examples=models.examples())
TRANSFORMED = ServingContract(
    transform_graph=str(Path(__file__).with_name("transform_graph")), signatures=()
)
MANY = dataclasses.replace(EVALUATED, examples=models.examples(700))


LISTS = {"company": tf.io.VarLenFeature(tf.int64)}


MILES = tf.TensorSpec([None, 1], tf.float32, name="miles")
FIXED = {"company": tf.io.FixedLenFeature([], tf.int64, default_value=0)}
DEFAULT = dataclasses.replace(BY_SCHEMA, signatures=("serving_default",))


@scores("unforeseen_rows", "killed by SIG", status="warn", contract=BY_BOTH)
def value_that_kills_the_process(features: Features) -> tf.Tensor:
    size = tf.where(tf.reduce_any(features["miles"] > 1e6), 2**30, 1)
    shape = tf.cast(tf.stack([size, size]), tf.int64)
    handle = tf.raw_ops.TensorListReserve(
        element_shape=shape, num_elements=size, element_dtype=tf.float32
    )
    length = tf.raw_ops.TensorListLength(input_handle=handle)
    return features["miles"] + tf.cast(length, tf.float32)


def observed(feature: str, common: str) -> ServingContract:
    """The contract of a pipeline with statistics, and a schema that declares no domain."""
    feature = f"{feature} common_stats {{ min_num_values: 1 {common} }} }}"
    text = f"datasets {{ num_examples: 9999 features {{ {feature} }} }}"
    parsed = text_format.Parse(text, statistics_pb2.DatasetFeatureStatisticsList())
    always = {"presence": {"min_fraction": 1.0}}
    schema = schema_pb2.Schema(feature=[{"name": "miles", **always}, {"name": "company"}])
    return dataclasses.replace(BY_BOTH, schema=schema, statistics=parsed)


ONE_VALUE = "num_non_missing: 9999 max_num_values: 1"
LONG = observed('name: "miles" type: FLOAT num_stats { max: 70.5', ONE_VALUE)
SEVEN = observed(
    'name: "company" num_stats {', "num_non_missing: 99 num_missing: 9900 max_num_values: 7"
)


# Names and types that differ.


@serves("schema_features", "(did you mean 'payment'?)", SERIALIZED, status="warn", contract=BY_BOTH)
def misspelt_feature_with_a_default(examples: tf.Tensor) -> dict[str, tf.Tensor]:
    payed = {"paymnet": tf.io.FixedLenFeature([], tf.string, default_value="")}
    parsed = tf.io.parse_example(examples, {"miles": FEATURES["miles"], **payed})
    length = tf.strings.length(parsed["paymnet"])
    return {"score": parsed["miles"] + tf.cast(length, tf.float32)}


broken(
    "misspelt_feature_without_a_schema",
    "schema_features",
    "(did you mean 'payment'?): it silently reads as missing",
    RECIPES["misspelt_feature_with_a_default"].make,
    WITH_EXAMPLES,
    status="warn",
)


def _column(name: str, dtype: tf.DType = tf.float32) -> tf.TensorSpec:
    return tf.TensorSpec([None, 1], dtype, name=name)


def _floats(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float32)


def _of_range(size: float, rows: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.range(size), tf.cast(rows, tf.int32))


# Of features.
for name, check, told, score, features, contract, status in (
    ("nan_in_row_40", "eval_rows", "example 40 of the sample: gives NaN", lambda f:
     tf.where(tf.abs(f["miles"] - 4.0) < 0.01, float("nan"), f["miles"]), {}, MANY, "fail"),
    ("late_row_out_of_a_range", "eval_rows", 'key: "miles"',
     lambda f: _of_range(60.0, f["miles"]), {}, MANY, "fail"),
    ("nan_without_an_optional_feature", "without_optional", "without ['company']: gives NaN",
     lambda f: f["miles"] + tf.reduce_mean(
         _floats(tf.RaggedTensor.from_sparse(f["company"])), axis=1), LISTS, BY_SCHEMA, "fail"),
    ("word_of_the_domain_that_fails", "schema_rows", "'payment' is b'none'", lambda f:
     asserted(tf.reduce_all(f["payment"] != "none"), f["miles"]), {}, BY_SCHEMA, "fail"),
    ("embedding_without_the_top_id", "schema_rows", "'company' is 9, at the limit", lambda f:
     tf.reduce_sum(_of_range(9.0, tf.sparse.to_dense(f["company"])), axis=1),
     LISTS, BY_BOTH, "fail"),
    ("room_for_one_value_of_a_list", "schema_rows", "which value_count allows",
     lambda f: f["miles"] + _floats(f["company"]), FIXED, BY_BOTH, "fail"),
    ("nan_at_the_limit_of_a_domain", "schema_rows", "'miles' is 0.0",
     lambda f: f["miles"] / f["miles"], {}, BY_SCHEMA, "fail"),
    ("nan_beyond_the_domain", "unforeseen_rows", "'miles' is -1.0",
     lambda f: tf.sqrt(f["miles"]), {}, BY_BOTH, "warn"),
    ("text_that_must_be_utf_8", "unforeseen_rows", "\\377", lambda f: _floats(tf.strings.
     unicode_decode(f["payment"], "UTF-8", errors="strict").row_lengths()), {}, BY_BOTH, "warn"),
    ("late_value_out_of_a_range", "observed_rows", "'miles' is 70.5, as in the statistics: raises",
     lambda f: _of_range(60.0, f["miles"]), {}, LONG, "fail"),
    ("room_for_six_values_of_a_list", "observed_rows",
     "'company' has 7 values, as in the statistics: raises", lambda f: f["miles"] + tf.reduce_sum(
         _floats(tf.sparse.to_dense(tf.sparse.reset_shape(f["company"],
             [tf.size(f["miles"]), 6]))), axis=1), LISTS, SEVEN, "warn"),
    ("parses_another_dtype_than_the_schema_has", "schema_features",
     "as float32, in the schema it is int64", lambda f: f["company"],
     {"company": tf.io.FixedLenFeature([], tf.float32, default_value=0.0)}, BY_SCHEMA, "fail"),
):  # fmt: skip
    broken(name, check, told, scored(score, **features), contract, status=status)

# Of tensors.
MISSPELT = (_column("mile"), _column("company", tf.int64))
for name, check, told, make, contract, status in (
    ("raw_tensor_at_the_limit_of_a_domain", "schema_rows", "'miles' is 100.0",
     model(lambda x: {"y": _of_range(100.0, x)}, MILES), DEFAULT, "fail"),
    ("fails_above_64_rows", "batch_sizes", "with 65 rows", model(lambda x: {"y":
     tf.pad(x, [[0, 64 - tf.shape(x)[0]], [0, 0]])[: tf.shape(x)[0]]}), EVALUATED, "fail"),
    ("other_scores_above_64_rows", "batch_sizes", "instead of", model(lambda x: {"y":
     x + _floats(tf.shape(x)[0] > 64)}), EVALUATED, "fail"),
    ("fails_with_an_empty_batch", "unforeseen_rows", "an empty batch", model(lambda x: {"y":
     tf.reshape(x, [-1, tf.size(x) // tf.shape(x)[0]])}), None, "warn"),
    ("misspelt_input", "schema_features", "(did you mean 'miles'?)",
     model(lambda m, c: {"y": m + _floats(c)}, *MISSPELT), BY_SCHEMA, "warn"),
    ("label_as_an_input", "label_inputs", "takes the label 'tips'",
     model(lambda m, t: {"y": m + t}, MILES, _column("tips")), BY_SCHEMA, "fail"),
):  # fmt: skip
    broken(name, check, told, make, contract, status=status)


@recipe("vocabularies", "has 2 lines (10 bytes)", contract=TRANSFORMED)
def vocabulary_of_an_earlier_run(good: Path, folder: Path) -> None:
    models.save(models.linear(folder, "payments.txt", ("cash", "card")), folder)
