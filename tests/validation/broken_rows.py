"""Recipes for models that only some rows break: rare ones, and those that a schema allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from generic_trainer.validation import ServingContract
from tests.validation import models
from tests.validation.broken import EVALUATED, RECIPES, recipe
from tests.validation.models import FEATURES, ROWS, SERIALIZED, save, serving

__all__ = ["RECIPES", "SCHEMA", "TRANSFORMED"]

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
Features = dict[str, tf.Tensor]


def scoring(score: Callable[[Features], tf.Tensor], **features: tf.io.VarLenFeature) -> tf.Module:
    """A model whose score is computed from parsed features."""
    spec = {**FEATURES, **features}
    return serving(lambda x: {"score": score(tf.io.parse_example(x, spec))}, SERIALIZED)


COMPANIES = {"company": tf.io.VarLenFeature(tf.int64)}


@recipe("eval_rows", "example 40: gives NaN", contract=MANY)
def nan_in_row_40(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        return tf.where(tf.abs(features["miles"] - 4.0) < 0.01, float("nan"), features["miles"])

    save(scoring(score), folder)


@recipe("eval_rows", 'key: "miles"', contract=MANY)
def late_row_out_of_a_range(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        return tf.gather(tf.range(60.0), tf.cast(features["miles"], tf.int32))

    save(scoring(score), folder)


@recipe("without_optional", "without ['company']: gives NaN", contract=BY_SCHEMA)
def nan_without_an_optional_feature(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        companies = tf.RaggedTensor.from_sparse(features["company"])
        return features["miles"] + tf.reduce_mean(tf.cast(companies, tf.float32), axis=1)

    save(scoring(score, **COMPANIES), folder)


@recipe("schema_rows", "'payment' is b'none'", contract=BY_SCHEMA)
def word_of_the_domain_that_fails(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        known = tf.reduce_all(features["payment"] != "none")
        with tf.control_dependencies([tf.debugging.Assert(known, ["no such payment"])]):
            return tf.identity(features["miles"])

    save(scoring(score), folder)


@recipe("schema_rows", "'company' is 9, at the limit", contract=BY_BOTH)
def embedding_without_the_top_id(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        company = tf.sparse.to_dense(features["company"])
        return tf.reduce_sum(tf.gather(tf.range(9.0), company), axis=1)

    save(scoring(score, **COMPANIES), folder)


@recipe("schema_rows", "which value_count allows", contract=BY_BOTH)
def room_for_one_value_of_a_list(good: Path, folder: Path) -> None:
    fixed = {"company": tf.io.FixedLenFeature([], tf.int64, default_value=0)}
    save(scoring(lambda f: f["miles"] + tf.cast(f["company"], tf.float32), **fixed), folder)


@recipe("schema_rows", "'miles' is 0.0", contract=BY_SCHEMA)
def nan_at_the_limit_of_a_domain(good: Path, folder: Path) -> None:
    save(scoring(lambda f: f["miles"] / f["miles"]), folder)


@recipe(
    "schema_rows",
    "'miles' is 100.0",
    contract=dataclasses.replace(BY_SCHEMA, signatures=("serving_default",)),
)
def raw_tensor_at_the_limit_of_a_domain(good: Path, folder: Path) -> None:
    miles = tf.TensorSpec([None, 1], tf.float32, name="miles")
    row = tf.range(100.0)
    save(serving(lambda miles: {"y": tf.gather(row, tf.cast(miles, tf.int32))}, miles), folder)


@recipe("unforeseen_rows", "'miles' is -1.0", status="warn", contract=BY_BOTH)
def nan_beyond_the_domain(good: Path, folder: Path) -> None:
    save(scoring(lambda f: tf.sqrt(f["miles"])), folder)


@recipe("unforeseen_rows", "\\377", status="warn", contract=BY_BOTH)
def text_that_must_be_utf_8(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        letters = tf.strings.unicode_decode(features["payment"], "UTF-8", errors="strict")
        return tf.cast(letters.row_lengths(), tf.float32)

    save(scoring(score), folder)


@recipe("unforeseen_rows", "killed by SIG", status="warn", contract=BY_BOTH)
def value_that_kills_the_process(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        size = tf.where(tf.reduce_any(features["miles"] > 1e6), 2**30, 1)
        shape = tf.cast(tf.stack([size, size]), tf.int64)
        handle = tf.raw_ops.TensorListReserve(
            element_shape=shape, num_elements=size, element_dtype=tf.float32
        )
        length = tf.raw_ops.TensorListLength(input_handle=handle)
        return features["miles"] + tf.cast(length, tf.float32)

    save(scoring(score), folder)


def observed(statistics: str) -> ServingContract:
    """The contract of a pipeline with statistics, and a schema that declares no domain."""
    parsed = text_format.Parse(
        f"datasets {{ num_examples: 9999 features {{ {statistics} }} }}",
        statistics_pb2.DatasetFeatureStatisticsList(),
    )
    always = {"presence": {"min_fraction": 1.0}}
    schema = schema_pb2.Schema(feature=[{"name": "miles", **always}, {"name": "company"}])
    return dataclasses.replace(BY_BOTH, schema=schema, statistics=parsed)


@recipe(
    "observed_rows",
    "'miles' is 70.5, as in the statistics: raises",
    contract=observed(
        'name: "miles" type: FLOAT num_stats { max: 70.5 common_stats {'
        " num_non_missing: 9999 min_num_values: 1 max_num_values: 1 } }"
    ),
)
def late_value_out_of_a_range(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        return tf.gather(tf.range(60.0), tf.cast(features["miles"], tf.int32))

    save(scoring(score), folder)


@recipe(
    "observed_rows",
    "'company' has 7 values, as in the statistics: raises",
    status="warn",
    contract=observed(
        'name: "company" num_stats { common_stats {'
        " num_non_missing: 99 num_missing: 9900 min_num_values: 1 max_num_values: 7 } }"
    ),
)
def room_for_six_values_of_a_list(good: Path, folder: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        shape = [tf.size(features["miles"]), 6]
        company = tf.sparse.to_dense(tf.sparse.reset_shape(features["company"], shape))
        return features["miles"] + tf.reduce_sum(tf.cast(company, tf.float32), axis=1)

    save(scoring(score, **COMPANIES), folder)


@recipe("batch_sizes", "with 65 rows", contract=EVALUATED)
def fails_above_64_rows(good: Path, folder: Path) -> None:
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.pad(x, [[0, 64 - tf.shape(x)[0]], [0, 0]])[: tf.shape(x)[0]]}

    save(serving(serve, ROWS), folder)


@recipe("batch_sizes", "instead of", contract=EVALUATED)
def other_scores_above_64_rows(good: Path, folder: Path) -> None:
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + tf.cast(tf.shape(x)[0] > 64, tf.float32)}

    save(serving(serve, ROWS), folder)


@recipe("unforeseen_rows", "an empty batch", status="warn")
def fails_with_an_empty_batch(good: Path, folder: Path) -> None:
    save(serving(lambda x: {"y": tf.reshape(x, [-1, tf.size(x) // tf.shape(x)[0]])}, ROWS), folder)


@recipe("schema_features", "(did you mean 'payment'?)", status="warn", contract=BY_BOTH)
def misspelt_feature_with_a_default(good: Path, folder: Path) -> None:
    payed = {"paymnet": tf.io.FixedLenFeature([], tf.string, default_value="")}
    spec = {"miles": FEATURES["miles"], **payed}

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, spec)
        length = tf.strings.length(parsed["paymnet"])
        return {"score": parsed["miles"] + tf.cast(length, tf.float32)}

    save(serving(serve, SERIALIZED), folder)


@recipe("schema_features", "as float32, in the schema it is int64", contract=BY_SCHEMA)
def parses_another_dtype_than_the_schema_has(good: Path, folder: Path) -> None:
    as_float = {"company": tf.io.FixedLenFeature([], tf.float32, default_value=0.0)}
    save(scoring(lambda features: features["company"], **as_float), folder)


@recipe("schema_features", "(did you mean 'miles'?)", status="warn", contract=BY_SCHEMA)
def misspelt_input(good: Path, folder: Path) -> None:
    specs = [tf.TensorSpec([None, 1], tf.float32, name="mile")]
    specs.append(tf.TensorSpec([None, 1], tf.int64, name="company"))
    save(serving(lambda m, c: {"y": m + tf.cast(c, tf.float32)}, *specs), folder)


@recipe("label_inputs", "takes the label 'tips'", contract=BY_SCHEMA)
def label_as_an_input(good: Path, folder: Path) -> None:
    specs = [tf.TensorSpec([None, 1], tf.float32, name=name) for name in ("miles", "tips")]
    save(serving(lambda miles, tips: {"y": miles + tips}, *specs), folder)


@recipe("vocabularies", "has 2 lines (10 bytes)", contract=TRANSFORMED)
def vocabulary_of_an_earlier_run(good: Path, folder: Path) -> None:
    models.save(models.linear(folder, "payments.txt", ("cash", "card")), folder)
