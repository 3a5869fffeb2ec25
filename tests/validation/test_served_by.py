"""A model is held against the TensorFlow that will serve it; the benchmark loads it there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._run.contract import not_cured_by_training
from generic_trainer.validation import ServingContract
from generic_trainer.validation._checks.graph import served_by
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._op_registries import _known_by, minor_of
from tests.validation.conftest import Check
from tests.validation.models import ROWS, edit_proto, save, serving


def fourier(x: tf.Tensor) -> tf.Tensor:
    y = tf.raw_ops.FFTND(input=tf.cast(x, tf.complex64), fft_length=[2], axes=[1])
    return tf.abs(y)


def judged(folder: Path, *servers: str) -> tuple[Any, dict[str, Any]]:
    contract = ServingContract(signatures=(), served_by=servers)
    model = ModelUnderTest(folder, contract, str(folder))
    return served_by.run(model), model.facts


def exported(folder: Path, step: Callable[[Any], Any], **tracked: Any) -> Path:
    return save(serving(lambda x: {"y": step(x)}, ROWS, **tracked), folder)


def test_the_table_agrees_with_the_tensorflow_that_is_installed() -> None:
    minor, find_op = minor_of(tf.__version__), internals.TF_FIND_OP.get()
    for fact, minors in _known_by().items():
        op, _, attribute = fact.partition(".")
        definition = None if fact[0] == "=" else find_op(op)
        if not attribute and fact[0] != "=":
            assert (definition is not None) == (minor in minors), fact
        elif definition is not None and attribute.rstrip("~").isidentifier():
            names = [each.name for each in definition.attr]
            assert (attribute.rstrip("~") in names) == (minor in minors), fact


def test_an_op_in_a_branch(check: Check, tmp_path: Path) -> None:
    folder = exported(
        tmp_path / "1", lambda x: tf.cond(tf.size(x) > 9**9, lambda: fourier(x), lambda: x)
    )
    contract = ServingContract(signatures=(), served_by=("tensorflow-serving==2.14.1",))
    report = check(folder, contract)
    assert [result.name for result in report.failures] == ["served_by"]
    message, remedy = report["served_by"].message, report["served_by"].remedy
    assert "tensorflow-serving==2.14.1 has no op 'FFTND': FFTND 'cond/FFTND' in fun" in message
    assert remedy.endswith("serve with TensorFlow 2.15 or later")
    assert not not_cured_by_training(report).passed  # so that the rehearsal refuses it
    assert "Oldest TensorFlow that can load it" in report.to_html()
    result, facts = judged(folder, "tensorflow==2.16")
    assert (result.status, facts["oldest_tensorflow"]) == ("pass", "2.15")


@pytest.mark.parametrize(
    ("step", "server", "status", "message"),
    [
        (lambda x: x, "2.8", "pass", served_by.summary),
        (lambda x: tf.raw_ops.TopKV2(input=x, k=1, index_type=tf.int64)[1], "2.12", "fail",
         "has no attribute 'index_type' of TopKV2: "),
        (lambda x: tf.raw_ops.MatMul(a=x, b=tf.eye(2), grad_b=True), "2.12", "warn",
         "has no attribute 'grad_b' of MatMul, and ignores it: "),
        (lambda x: tf.one_hot(tf.cast(x, tf.int8), 3), "2.8", "fail",
         "has no 'DT_INT8' for the attribute 'TI' of OneHot: "),
        (lambda x: tf.raw_ops.Acos(x=tf.cast(x, tf.complex64)), "2.21", "pass", ""),
    ],
)  # fmt: skip
def test_attributes(step: Any, server: str, status: str, message: str, tmp_path: Path) -> None:
    result, _ = judged(exported(tmp_path / "1", step), f"tensorflow=={server}")
    assert result.status == status
    assert message in result.message


@pytest.mark.parametrize(
    ("op", "attribute", "dtype", "status"),
    [
        ("Cast", "DstT", 33, "fail"),  # a dtype that no TensorFlow here may know
        ("TopKV2", "index_type", 3, "pass"),  # a default that an export has not left out
    ],
)
def test_edited(op: str, attribute: str, dtype: int, status: str, tmp_path: Path) -> None:
    step = {"Cast": lambda x: tf.cast(x, tf.half), "TopKV2": lambda x: tf.math.top_k(x)[0]}[op]
    folder = exported(tmp_path / "1", step)

    def edit(proto: Any) -> None:
        for function in proto.meta_graphs[0].graph_def.library.function:
            for node in function.node_def:
                if node.op == op:
                    node.attr[attribute].type = dtype

    edit_proto(folder, edit)
    result, _ = judged(folder, "tensorflow==2.12")
    assert result.status == status
    assert status == "pass" or "has no dtype DT_FLOAT4_E2M1FN: Cast 'Cast' in" in result.message


def test_a_function_that_no_signature_calls(tmp_path: Path) -> None:
    folder = exported(tmp_path / "1", tf.identity, other=tf.function(fourier, [ROWS]))
    # `tf.saved_model.load` builds it, and a session does not.
    assert judged(folder, "tensorflow==2.14")[0].status == "fail"
    assert judged(folder, "tensorflow_serving==2.14")[0].status == "warn"
