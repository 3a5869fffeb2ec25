"""Signatures and outputs beside others, and tables that grow by them."""

import dataclasses
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer._core.texts import parse_eval_config
from generic_trainer.validation import ServingContract
from tests.examples import example
from tests.house import HAS_TFX
from tests.validation.conftest import Check
from tests.validation.models import SERIALIZED, save, serving, signatures
from tests.validation.recipes import EVALUATED

SPEC = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "x": tf.io.FixedLenFeature([], tf.float32),
}
ROWS = tuple(example(id=row, x=0.1 * row) for row in range(40))
CONFIG = 'model_specs { label_key: "x" signature_name: "evaluated" }'
CONTRACT = dataclasses.replace(EVALUATED, examples=ROWS)


def quick(rows: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.io.parse_example(rows, SPEC)["x"]}


def slow(rows: tf.Tensor) -> dict[str, tf.Tensor]:
    x = quick(rows)["y"]
    square = tf.random.stateless_normal([800, 800], [1, 2]) + x[0]  # or it were a constant
    for _ in range(5):
        square = tf.tanh(square @ square)
    return {"y": x + 1e-9 * square[0, 0]}


@pytest.mark.parametrize(("factor", "status"), [(0.0, "warn"), (1.0, "pass")])
def test_constant_scores_beside_a_key(factor: float, status: str, check: Check) -> None:
    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        row = tf.io.parse_example(rows, SPEC)
        return {"id": row["id"], "score": factor * row["x"] + 0.3}

    result = check(serving(serve, SERIALIZED), CONTRACT)["outputs_vary"]
    assert result.status == status, result
    assert ("examples: score" in result.message) == (status == "warn")


@pytest.mark.parametrize("kind", ["each", "vector", "scalar"])
@pytest.mark.parametrize(("factor", "status"), [(0.0, "warn"), (1.0, "pass")])
def test_classes_beside_a_constant(kind: str, factor: float, status: str, check: Check) -> None:
    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        x = factor * tf.io.parse_example(rows, SPEC)["x"]
        limit = {"each": tf.fill(tf.shape(x), 0.5), "vector": tf.fill([3], 0.5)}.get(kind, 0.5)
        name = tf.where(x > 2.0, "high", "low")
        return {"limit": limit, "class": name if kind == "each" else tf.cast(x > 2.0, tf.int64)}

    result = check(serving(serve, SERIALIZED), CONTRACT)["outputs_vary"]
    assert result.status == status, result


@pytest.mark.parametrize("dtype", [tf.int64, tf.string])
def test_a_table_that_grows_by_keys(dtype: tf.DType, check: Check) -> None:
    known = tf.lookup.experimental.MutableHashTable(dtype, tf.float32, 0.0)

    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        row = tf.io.parse_example(rows, SPEC | {"user": tf.io.FixedLenFeature([], dtype)})
        known.insert(row["user"], row["x"])
        return {"y": 2.0 * row["x"]}

    users = [row if dtype == tf.int64 else f"user {row}" for row in range(40)]
    rows = tuple(example(id=row, x=0.1 * row, user=user) for row, user in enumerate(users))
    contract = dataclasses.replace(CONTRACT, examples=rows)
    result = check(serving(serve, SERIALIZED, known=known), contract)["state_growth"]
    assert result.status == "warn" and "grows with new values" in result.message, result


def test_new_keys_that_are_lengths_too_fit_into_memory(check: Check) -> None:
    known = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        row = tf.io.parse_example(rows, SPEC)
        size = tf.size(rows, tf.int64) * tf.reduce_max(row["id"])
        most = tf.constant(2_000_000, tf.int64)
        with tf.control_dependencies([tf.debugging.assert_less(size, most)]):
            known.insert(row["id"], row["x"])
        return {"y": 2.0 * row["x"]}

    result = check(serving(serve, SERIALIZED, known=known), CONTRACT)["state_growth"]
    assert result.status == "warn" and "grows with new values" in result.message, result


def test_the_slowest_signature_has_to_keep_the_time(check: Check, tmp_path: Path) -> None:
    module = tf.Module()
    of = signatures(serving_default=(quick, [SERIALIZED]), rank=(slow, [SERIALIZED]))
    contract = ServingContract(
        signatures=("serving_default", "rank"), examples=ROWS, max_latency_ms=10.0, probe_s=0.0
    )
    report = check(save(module, tmp_path / "model", of), contract, only="scores latency")
    assert "'rank' takes" in report["latency"].message, report["latency"]
    assert report["latency"].status == "fail" and report.facts["latency_ms"] < 10.0


@pytest.mark.parametrize("default", ["serving_default", "score"])
def test_no_client_waits_for_a_signature_of_the_evaluator_or_the_training(
    default: str, check: Check, tmp_path: Path
) -> None:
    module = tf.Module()
    module.steps = tf.Variable(0, dtype=tf.int64)

    def step(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([module.steps.assign_add(1)]):
            return slow(rows)

    evaluated = {"evaluated": (slow, [SERIALIZED])} if default == "serving_default" else {}
    of = signatures(**{default: (quick, [SERIALIZED]), "a_step": (step, [SERIALIZED])}, **evaluated)
    contract = ServingContract(
        signatures=(), examples=ROWS, max_latency_ms=10.0, probe_s=0.0, label_keys=("x",),
        eval_config=parse_eval_config(CONFIG) if evaluated and HAS_TFX else None,
    )  # fmt: skip
    report = check(save(module, tmp_path / "model", of), contract, only="scores latency")
    assert report["latency"].status == "pass", report["latency"]
    assert repr(default) in report["latency"].message
