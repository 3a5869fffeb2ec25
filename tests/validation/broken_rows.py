"""Recipes for models that only some rows break: rare ones, and those that a schema allows."""

from __future__ import annotations

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


@scores("eval_rows", "example 40: gives NaN", contract=MANY)
def nan_in_row_40(features: Features) -> tf.Tensor:
    return tf.where(tf.abs(features["miles"] - 4.0) < 0.01, float("nan"), features["miles"])


@scores("eval_rows", 'key: "miles"', contract=MANY)
def late_row_out_of_a_range(features: Features) -> tf.Tensor:
    return tf.gather(tf.range(60.0), tf.cast(features["miles"], tf.int32))


@scores("without_optional", "without ['company']: gives NaN", contract=BY_SCHEMA, features=LISTS)
def nan_without_an_optional_feature(features: Features) -> tf.Tensor:
    companies = tf.RaggedTensor.from_sparse(features["company"])
    return features["miles"] + tf.reduce_mean(tf.cast(companies, tf.float32), axis=1)


@scores("schema_rows", "'payment' is b'none'", contract=BY_SCHEMA)
def word_of_the_domain_that_fails(features: Features) -> tf.Tensor:
    return asserted(tf.reduce_all(features["payment"] != "none"), features["miles"])


@scores("schema_rows", "'company' is 9, at the limit", contract=BY_BOTH, features=LISTS)
def embedding_without_the_top_id(features: Features) -> tf.Tensor:
    company = tf.sparse.to_dense(features["company"])
    return tf.reduce_sum(tf.gather(tf.range(9.0), company), axis=1)


MILES = tf.TensorSpec([None, 1], tf.float32, name="miles")
FIXED = {"company": tf.io.FixedLenFeature([], tf.int64, default_value=0)}
ONE = scored(lambda f: f["miles"] + tf.cast(f["company"], tf.float32), **FIXED)
ZERO = scored(lambda f: f["miles"] / f["miles"])
RAW = model(lambda x: {"y": tf.gather(tf.range(100.0), tf.cast(x, tf.int32))}, MILES)
DEFAULT = dataclasses.replace(BY_SCHEMA, signatures=("serving_default",))
ROOT = scored(lambda f: tf.sqrt(f["miles"]))
broken("room_for_one_value_of_a_list", "schema_rows", "which value_count allows", ONE, BY_BOTH)
broken("nan_at_the_limit_of_a_domain", "schema_rows", "'miles' is 0.0", ZERO, BY_SCHEMA)
broken("raw_tensor_at_the_limit_of_a_domain", "schema_rows", "'miles' is 100.0", RAW, DEFAULT)
broken("nan_beyond_the_domain", "unforeseen_rows", "'miles' is -1.0", ROOT, BY_BOTH, status="warn")


@scores("unforeseen_rows", "\\377", status="warn", contract=BY_BOTH)
def text_that_must_be_utf_8(features: Features) -> tf.Tensor:
    letters = tf.strings.unicode_decode(features["payment"], "UTF-8", errors="strict")
    return tf.cast(letters.row_lengths(), tf.float32)


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


@scores("observed_rows", "'miles' is 70.5, as in the statistics: raises", contract=LONG)
def late_value_out_of_a_range(features: Features) -> tf.Tensor:
    return tf.gather(tf.range(60.0), tf.cast(features["miles"], tf.int32))


@scores(
    "observed_rows",
    "'company' has 7 values, as in the statistics: raises",
    status="warn",
    contract=SEVEN,
    features=LISTS,
)
def room_for_six_values_of_a_list(features: Features) -> tf.Tensor:
    shape = [tf.size(features["miles"]), 6]
    company = tf.sparse.to_dense(tf.sparse.reset_shape(features["company"], shape))
    return features["miles"] + tf.reduce_sum(tf.cast(company, tf.float32), axis=1)


@serves("batch_sizes", "with 65 rows", contract=EVALUATED)
def fails_above_64_rows(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.pad(x, [[0, 64 - tf.shape(x)[0]], [0, 0]])[: tf.shape(x)[0]]}


@serves("batch_sizes", "instead of", contract=EVALUATED)
def other_scores_above_64_rows(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x + tf.cast(tf.shape(x)[0] > 64, tf.float32)}


@serves("unforeseen_rows", "an empty batch", status="warn")
def fails_with_an_empty_batch(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.reshape(x, [-1, tf.size(x) // tf.shape(x)[0]])}


# Names and types that differ.


@serves("schema_features", "(did you mean 'payment'?)", SERIALIZED, status="warn", contract=BY_BOTH)
def misspelt_feature_with_a_default(examples: tf.Tensor) -> dict[str, tf.Tensor]:
    payed = {"paymnet": tf.io.FixedLenFeature([], tf.string, default_value="")}
    parsed = tf.io.parse_example(examples, {"miles": FEATURES["miles"], **payed})
    length = tf.strings.length(parsed["paymnet"])
    return {"score": parsed["miles"] + tf.cast(length, tf.float32)}


@scores(
    "schema_features",
    "as float32, in the schema it is int64",
    contract=BY_SCHEMA,
    features={"company": tf.io.FixedLenFeature([], tf.float32, default_value=0.0)},
)
def parses_another_dtype_than_the_schema_has(features: Features) -> tf.Tensor:
    return features["company"]


def _column(name: str, dtype: tf.DType = tf.float32) -> tf.TensorSpec:
    return tf.TensorSpec([None, 1], dtype, name=name)


MISSPELT = (_column("mile"), _column("company", tf.int64))


@serves("schema_features", "(did you mean 'miles'?)", *MISSPELT, status="warn", contract=BY_SCHEMA)
def misspelt_input(miles: tf.Tensor, company: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": miles + tf.cast(company, tf.float32)}


@serves("label_inputs", "takes the label 'tips'", MILES, _column("tips"), contract=BY_SCHEMA)
def label_as_an_input(miles: tf.Tensor, tips: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": miles + tips}


@recipe("vocabularies", "has 2 lines (10 bytes)", contract=TRANSFORMED)
def vocabulary_of_an_earlier_run(good: Path, folder: Path) -> None:
    models.save(models.linear(folder, "payments.txt", ("cash", "card")), folder)
