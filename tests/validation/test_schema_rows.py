"""Rows made from a schema, without a model."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from generic_trainer._core.texts import load_statistics
from generic_trainer.errors import DataError
from generic_trainer.validation._lists import filled
from generic_trainer.validation._schema_rows import (
    SchemaRows,
    domain_limits,
    domain_words,
    is_optional,
    observed_features,
)
from generic_trainer.validation._scoring import difference
from generic_trainer.validation._signatures import ParsedFeature
from generic_trainer.validation._troubles import Budget, Trouble, troubles
from tests.validation import models
from tests.validation.broken_rows import SCHEMA

PARSED = {
    "miles": ParsedFeature("miles", "float32", 1),
    "payment": ParsedFeature("payment", "string", 1),
    "company": ParsedFeature("company", "int64", 1),
}
BASE = tf.train.Example.FromString(models.example(1.0, "cash", 0.5))
ROWS = SchemaRows(SCHEMA, PARSED, BASE, {"tips"})


def feature(text: str) -> Any:
    return text_format.Parse(text, schema_pb2.Feature())


def values(rows: Any, name: str) -> list[list[Any]]:
    """What a feature holds in those rows in which it differs from the base."""
    found = []
    for row in rows:
        held = row.example.features.feature
        if name in held and held[name] != BASE.features.feature.get(name):
            kind = held[name].WhichOneof("kind")
            found.append(list(getattr(held[name], kind).value))
    return found


def test_a_feature_is_optional_by_its_fraction() -> None:
    for text, expected in (
        ("presence { min_fraction: 1 min_count: 1 }", False),
        ("presence { min_count: 1 }", True),
        ("presence { min_fraction: 0.5 min_count: 1 }", True),
        ("", True),
        ("shape { dim { size: 1 } }", False),
        ("shape { dim { size: 1 } } presence { min_count: 1 }", True),
        ('presence { min_fraction: 1 } not_in_environment: "SERVING"', True),
    ):
        assert is_optional(feature(text)) is expected


def test_limits_that_say_something() -> None:
    for text, expected in (
        ("int_domain { min: 0 max: 9 }", [0, 9]),
        ("int_domain { is_categorical: true }", []),
        ("int_domain { min: 0 max: 9223372036854775807 }", [0]),
        ("float_domain { max: 1 }", [1.0]),
        ("float_domain { min: -3.4e38 max: 3.4e38 }", []),
        ("bool_domain { }", [0, 1]),
    ):
        assert domain_limits(feature(text)) == expected
    for text, expected in (
        ("float_domain { min: 0.5 max: 3.7 }", [1, 3]),
        ("float_domain { min: 0.2 max: 0.8 }", []),
        ("float_domain { min: 0 max: 1e25 }", [0]),
    ):
        assert domain_limits(feature(text), "int64") == expected


def test_words_of_a_domain() -> None:
    for text, expected in (
        ('string_domain { value: "red" }', [b"red"]),
        ('bool_domain { true_value: "yes" false_value: "no" }', [b"yes", b"no"]),
        ("bool_domain { }", []),
    ):
        assert domain_words(schema_pb2.Schema(), feature(text)) == expected


def test_what_the_schema_allows() -> None:
    allowed = list(ROWS.allowed())
    assert {len(each) for each in values(allowed, "company")} == {0, 1, 3}
    assert [9] in values(allowed, "company")
    assert [0.0] in values(allowed, "miles") and [100.0] in values(allowed, "miles")
    assert all(0.0 <= value <= 100.0 for (value,) in values(allowed, "miles"))
    assert values(allowed, "tips") == [] and [b"card"] in values(allowed, "payment")


def test_what_the_schema_does_not_foresee() -> None:
    unforeseen = list(ROWS.unforeseen())
    assert {10, -1} <= {value for (value,) in values(unforeseen, "company")}
    assert [b""] in values(unforeseen, "payment")
    assert not any(0.0 <= value <= 100.0 for (value,) in values(unforeseen, "miles"))


def test_numbers_that_a_domain_with_one_limit_has_or_has_not() -> None:
    schema = copy.deepcopy(SCHEMA)
    for each in schema.feature:
        if each.name == "company":
            each.int_domain.CopyFrom(schema_pb2.IntDomain(min=0))
    rows = dataclasses.replace(ROWS, schema=schema).unforeseen()
    reasons = {row.what.partition(", ")[2] for row in rows if "'company' is 2147" in row.what}
    assert reasons == {"as its domain has no such limit"}
    rows = dataclasses.replace(ROWS, schema=schema).unforeseen()
    reasons = {row.what.partition(", ")[2] for row in rows if "'company' is -1," in row.what}
    assert reasons == {"beyond its domain"}


def test_images_are_no_text() -> None:
    base = copy.deepcopy(BASE)
    base.features.feature["payment"].bytes_list.value[:] = [b"\xff\xd8\xff\xe0"]
    rows = dataclasses.replace(ROWS, base=base).unforeseen()
    assert not any("'payment'" in row.what for row in rows)


def test_features_that_are_not_in_production_are_left_alone() -> None:
    schema = copy.deepcopy(SCHEMA)
    for each in schema.feature:
        each.lifecycle_stage = schema_pb2.DEPRECATED
    rows = dataclasses.replace(ROWS, schema=schema)
    assert [*rows.allowed(), *rows.unforeseen()] == []


# As StatisticsGen writes them, of two splits; `path` and `name` are both in use.
STATISTICS = text_format.Parse(
    """
    datasets { num_examples: 90 features {
      path { step: "miles" } type: FLOAT
      num_stats {
        common_stats { num_non_missing: 90 min_num_values: 1 max_num_values: 1 }
        min: -2.5 max: 640 median: 3.5 num_zeros: 4
        histograms { type: STANDARD buckets { low_value: 123 high_value: 321 } }
        histograms { type: QUANTILES buckets { low_value: -2.5 high_value: 77 }
                     buckets { low_value: 77 high_value: inf } }
      } }
      features { name: "payment" type: STRING string_stats {
        common_stats { num_non_missing: 80 num_missing: 10 min_num_values: 1 max_num_values: 1 }
        avg_length: 20000.5 top_values { value: "voucher" } top_values { value: "__BYTES_VALUE__" }
        rank_histogram { buckets { label: "barter" } buckets { label: "voucher" } }
      } }
      features { name: "company" type: INT num_stats {
        common_stats { num_non_missing: 90 min_num_values: 1 max_num_values: 4 }
        min: 7 max: 9223372036854775807
      } }
      features { name: "mixed" type: INT num_stats { common_stats { max_num_values: 1 } } }
      features { name: "nothing" type: INT num_stats { common_stats { num_missing: 90 } } }
      features { path { step: "nested" step: "miles" } type: FLOAT }
    }
    datasets { num_examples: 10 features { name: "company" type: INT string_stats {
        common_stats { num_non_missing: 10 min_num_values: 0 max_num_values: 5 }
        top_values { value: "55" }
      } }
      features { name: "mixed" type: FLOAT num_stats { common_stats { max_num_values: 1 } } }
    }
    """,
    statistics_pb2.DatasetFeatureStatisticsList(),
)


def test_what_statistics_have_seen() -> None:
    observed = observed_features(STATISTICS)
    assert sorted(observed) == ["company", "miles", "payment"]
    assert observed["miles"].values == (-2.5, 640.0, 3.5, 77.0, 0.0)
    assert observed["payment"].values == (b"voucher", b"barter")
    # The largest integer is not known to the last digit.
    assert observed["company"].values == (7, 55)
    assert observed["company"].lengths == (0, 5)
    assert observed["payment"].is_missing and not observed["company"].is_missing


def test_statistics_say_what_the_schema_does_not() -> None:
    observed = observed_features(STATISTICS)
    rows = dataclasses.replace(ROWS, observed=observed)
    assert list(rows.in_statistics()) == []  # it has a domain for each
    open_schema = schema_pb2.Schema(feature=[{"name": "miles"}, {"name": "payment"}])
    open_rows = dataclasses.replace(rows, schema=open_schema)
    seen = list(open_rows.in_statistics())
    assert [-2.5] in values(seen, "miles") and [b"voucher"] in values(seen, "payment")
    assert [55] in values(seen, "company")
    assert {0, 5} <= {len(each) for each in values(seen, "company")}
    assert not list(dataclasses.replace(open_rows, absent=observed.keys()).in_statistics())
    # A feature that holds something else now is left alone.
    as_text = {"miles": ParsedFeature("miles", "string", 1)}
    assert not list(dataclasses.replace(open_rows, features=as_text).in_statistics())


def test_statistics_in_files(tmp_path: Path) -> None:
    for split, dataset in zip(("a", "b"), STATISTICS.datasets, strict=True):
        (tmp_path / split).mkdir()
        alone = type(STATISTICS)(datasets=[dataset])
        (tmp_path / split / "FeatureStats.pb").write_bytes(alone.SerializeToString())
    read = load_statistics(str(tmp_path / "*" / "FeatureStats.pb"))
    assert observed_features(read) == observed_features(STATISTICS)
    (tmp_path / "stats.pbtxt").write_text(str(STATISTICS))
    assert load_statistics(tmp_path / "stats.pbtxt") == STATISTICS
    (tmp_path / "broken").write_bytes(b"\xff")
    for wrong in ("broken", "nowhere", "a"):
        with pytest.raises(DataError, match=f"the statistics .*{wrong} cannot be read"):
            load_statistics(str(tmp_path / wrong))


def test_a_budget_counts_what_its_parts_take() -> None:
    budget = Budget(10.0, seconds_per_row=0.1)
    assert budget.allows(99) and not budget.allows(101)
    with budget.part(0.5):
        assert not budget.allows(51)
        budget.left_s -= 4.0
    assert budget.left_s == pytest.approx(6.0)


def test_an_empty_list_is_no_value_and_a_zero_is_one() -> None:
    text = """
    features {
      feature { key: "nothing" value { } }
      feature { key: "no words" value { bytes_list { } } }
      feature { key: "no numbers" value { float_list { } } }
      feature { key: "no integers" value { int64_list { } } }
      feature { key: "an empty word" value { bytes_list { value: "" } } }
      feature { key: "0.0" value { float_list { value: 0 } } }
      feature { key: "0" value { int64_list { value: 0 } } }
    }
    """
    example = text_format.Parse(text, tf.train.Example())
    assert filled(example) == {"an empty word", "0.0", "0"}


def test_errors_with_other_numbers_are_one_trouble() -> None:
    first = Trouble(0, "error", "InvalidArgumentError: indices[0] = 5 is not in [0, 4)")
    second = Trouble(7, "error", "InvalidArgumentError: indices[3] = -1 is not in [0, 4)")
    assert first.resembles(second) and not first.resembles(Trouble(0, "NaN", "output 'score'"))


def test_rows_that_are_almost_alike_are_not_taken_for_each_other() -> None:
    batch = np.linspace(293.0, 293.2, 8, dtype=np.float32)[:, None]
    changed, certain = difference(batch[7:], batch[:1], batch)
    assert changed and certain
    assert difference(batch[:1] * np.float32(1 + 1e-6), batch[:1], batch) == ("", False)
    assert difference(batch[7:] * np.float32(1.01), batch[:1], batch, precision=2) == ("", False)


def refuses_277(examples: tf.Tensor) -> dict[str, tf.Tensor]:
    miles = tf.io.parse_example(examples, models.FEATURES)["miles"]
    known = tf.reduce_all(miles != 277.0)
    return {"score": models.asserted(known, tf.math.sqrt(miles))}


def serialized(examples: Any) -> dict[str, Any]:
    return {"examples": np.array([each.SerializeToString() for each in examples], dtype=object)}


def test_rows_with_trouble_are_found() -> None:
    function = tf.function(refuses_277, input_signature=[models.SERIALIZED])
    signature = function.get_concrete_function()
    rows = [tf.train.Example.FromString(models.example(m, "cash", 1.0)) for m in range(300)]
    rows[5] = tf.train.Example.FromString(models.example(-1.0, "cash"))
    found = troubles(signature, serialized, rows, Budget(60.0), {})
    nan, error = sorted(found, key=lambda trouble: trouble.index)
    assert (nan.index, nan.kind, nan.reason) == (5, "NaN", "output 'score'")
    assert (error.index, error.kind) == (277, "error")
    # Outputs that are never finite trouble nobody.
    found = troubles(signature, serialized, rows, Budget(60.0), {"score": np.array([np.nan])})
    assert [each.index for each in found] == [277]
    # The first call takes more than there is: no row is found, and it is told all the same.
    (somewhere,) = troubles(signature, serialized, rows[256:], Budget(1e-6), {})
    assert "a batch of 44 such rows" in somewhere.reason
