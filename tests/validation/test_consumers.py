"""What is said of a model depends on who reads it: nobody's concern is never a failure."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer.validation import Checker, ServingContract
from tests.validation import models
from tests.validation.catalogue.rows import export_v1
from tests.validation.models import ROWS, SERIALIZED, save, serving

UNKNOWN = ServingContract(signatures=())
SERVED = dataclasses.replace(UNKNOWN, consumers=("Pusher", "InfraValidator"))
EVALUATED = dataclasses.replace(UNKNOWN, consumers=("Evaluator.taxi", "Pusher"))


def detector(images: tf.Tensor) -> dict[str, tf.Tensor]:
    """One image of any size, as the Object Detection API exports it."""
    brightness = tf.reduce_mean(tf.cast(images, tf.float32), axis=[1, 2, 3])
    return {"scores": tf.reshape(brightness, [1, 1]), "number": tf.constant([1.0])}


MODELS: dict[str, tuple[tf.Module, set[str]]] = {
    "fixed batch": (
        serving(detector, tf.TensorSpec([1, None, None, 3], tf.uint8, name="images")),
        {"batch_dimension", "output_shape"},
    ),
    "output for each list": (
        serving(lambda x: {"share": tf.nn.softmax(x, axis=0)}, ROWS),
        {"row_independence"},
    ),
    "one output for all": (
        serving(lambda x: {"total": tf.reduce_sum(x)}, ROWS),
        {"output_shape", "output_per_row"},
    ),
    "samples": (
        serving(lambda x: {"y": x + tf.random.normal(tf.shape(x))}, ROWS),
        {"deterministic"},
    ),
    "a switch beside the rows": (
        serving(
            lambda x, double: {"y": tf.cond(double, lambda: x * 2.0, lambda: x)},
            ROWS,
            tf.TensorSpec([], tf.bool, name="double"),
        ),
        {"batch_dimension"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_what_only_some_consumers_mind(name: str, checker: Checker, tmp_path: Path) -> None:
    module, minded = MODELS[name]
    folder = str(save(module, tmp_path / "model"))
    served = checker.validate(folder, SERVED)
    assert served.passed, served.summary()
    assert not {result.name for result in served.warnings} & {"scores", "session"}
    unknown = checker.validate(folder, UNKNOWN)
    assert unknown.passed, unknown.summary()
    assert minded <= {result.name for result in unknown.warnings}
    evaluated = checker.validate(folder, EVALUATED)
    assert {result.name for result in evaluated.failures} == minded, evaluated.summary()
    for result in evaluated.failures:
        line = result.remedy.splitlines()[-1].partition("contract=")[2]
        accepted = eval(line, {"ServingContract": ServingContract})  # as a user would paste it
        assert accepted.severities == {result.name: "skip"}


@pytest.mark.parametrize(
    "name, contract, status",
    [
        ("predict", dataclasses.replace(UNKNOWN, consumers=("BulkInferrer", "Pusher")), "fail"),
        ("predict", SERVED, "warn"),
        ("predict", dataclasses.replace(UNKNOWN, consumers=("Evaluator",)), "pass"),
        ("score", dataclasses.replace(UNKNOWN, consumers=("Evaluator",)), "warn"),
        ("predict", dataclasses.replace(EVALUATED, signatures=("predict",)), "pass"),
    ],
)
def test_a_model_without_the_signature_that_consumers_call_by_default(
    name: str, contract: ServingContract, status: str, checker: Checker, tmp_path: Path
) -> None:
    module = models.linear(tmp_path / "model")
    folder = save(module, tmp_path / "model", {name: module.serve})
    report = checker.validate(str(folder), contract)
    assert report["required_signatures"].status == status, report["required_signatures"]
    assert report.passed == (status != "fail"), report.summary()


def _counts(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A graph of TensorFlow 1 that returns a reference, as TF Serving's own counter does."""
    x = v1.placeholder(tf.float32, [None, 2], name="x")
    weight = v1.Variable([[1.0], [2.0]], use_resource=False)
    return {"x": x}, {"y": x @ weight, "weight": v1.assign(weight, weight)}


@pytest.mark.parametrize(
    "consumers, status",
    [
        (("Pusher",), "pass"),
        (("BulkInferrer", "Pusher"), "pass"),
        ((), "warn"),
        (("Evaluator", "Pusher"), "fail"),
    ],
)
def test_a_model_that_only_a_session_can_load(
    consumers: tuple[str, ...], status: str, checker: Checker, tmp_path: Path
) -> None:
    export_v1(tmp_path / "model", _counts)
    contract = dataclasses.replace(UNKNOWN, consumers=consumers)
    report = checker.validate(str(tmp_path / "model"), contract)
    assert report["loads"].status == status, report["loads"]
    assert "float_ref" in report["loads"].message
    if consumers == ("Pusher",):  # a BulkInferrer would want serialized examples
        assert report.passed, report.summary()
    if status != "fail":
        assert report["session"].status == "pass"
        assert "scored" in report["scores"].message


def test_a_model_that_a_session_loads_and_cannot_run_is_refused(
    checker: Checker, tmp_path: Path
) -> None:
    def flagged(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        return {"x": x}, {"y": v1.where(v1.placeholder(tf.bool, []), x, -x)}

    export_v1(tmp_path / "model", flagged)
    report = checker.validate(str(tmp_path / "model"), SERVED)
    assert [failure.name for failure in report.failures] == ["loads"], report.summary()


def test_outputs_that_rest_cannot_write(checker: Checker, tmp_path: Path) -> None:
    dtypes = (tf.float16, tf.bfloat16, tf.uint16)
    module = serving(lambda x: {d.name: tf.cast(tf.abs(x), d) for d in dtypes}, ROWS)
    folder = str(save(module, tmp_path / "model"))
    for consumers, status in ((("Pusher",), "warn"), (("BulkInferrer",), "pass"), ((), "warn")):
        contract = dataclasses.replace(UNKNOWN, consumers=consumers)
        report = checker.validate(folder, contract)
        assert report["composite_tensors"].status == status, report["composite_tensors"]
        named = [dtype.name in report["composite_tensors"].message for dtype in dtypes]
        assert all(named) or status == "pass"


def test_nan_on_purpose(checker: Checker, tmp_path: Path) -> None:
    def score(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        miles = tf.io.parse_example(examples, models.FEATURES)["miles"]
        return {"score": tf.math.log(miles - 1.0)}

    folder = str(save(serving(score, SERIALIZED), tmp_path / "model"))
    for contract, status in ((SERVED, "warn"), (UNKNOWN, "warn"), (EVALUATED, "fail")):
        contract = dataclasses.replace(contract, examples=models.examples())
        assert checker.validate(folder, contract)["outputs_finite"].status == status


def test_side_signatures_may_be_anything(checker: Checker, tmp_path: Path) -> None:
    module = models.linear(tmp_path / "model")
    vector = tf.TensorSpec([4, 1], tf.float32, name="target")

    def train(target: tf.Tensor) -> dict[str, tf.Tensor]:
        module.weight.assign_add([[1.0]])
        return {"loss": tf.reduce_mean(target)}

    functions: dict[str, tuple[Callable[..., Any], list[tf.TensorSpec]]] = {
        "a_step_of_training": (train, [vector]),
        "labels": (lambda: {"labels": tf.constant(["cash", "card"])}, []),
        "name": (lambda x: {"name": tf.constant("taxi")}, [ROWS]),
        "sample": (lambda x: {"y": tf.random.normal(tf.shape(x))}, [ROWS]),
        "total": (lambda x: {"total": tf.reduce_sum(x)}, [ROWS]),
    }
    signatures: dict[str, Any] = {
        name: tf.function(function, input_signature=specs)
        for name, (function, specs) in functions.items()
    }
    folder = str(save(module, tmp_path / "model", {**signatures, "serving_default": module.serve}))
    contract = dataclasses.replace(EVALUATED, examples=models.examples())
    report = checker.validate(folder, contract)
    assert report.passed, report.summary()
    assert "changes the model's variables" in report["scores"].message


def test_words_of_a_table_are_no_paths(checker: Checker, tmp_path: Path) -> None:
    words = ["/etc/passwd", "/usr/bin", "gs://bucket/word"]
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(words, tf.range(3, dtype=tf.int64)), 0
    )
    word = tf.TensorSpec([None], tf.string, name="word")
    module = serving(lambda word: {"index": table.lookup(word)}, word, table=table)
    report = checker.validate(str(save(module, tmp_path / "model")), EVALUATED)
    assert report["absolute_paths"].status == "pass", report["absolute_paths"]


def test_a_path_that_reaches_a_table_through_functions_is_found(
    checker: Checker, tmp_path: Path
) -> None:
    file = tmp_path / "words.txt"
    file.write_text("a\nb\n")

    @tf.function
    def read(path: tf.Tensor) -> tf.Tensor:
        return tf.io.read_file(path)

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tf.cond(tf.size(x) > 0, lambda: read(tf.constant(str(file))), lambda: "")
        return {"y": x + tf.cast(tf.strings.length(text), tf.float32)}

    report = checker.validate(str(save(serving(serve, ROWS), tmp_path / "model")), UNKNOWN)
    assert report["absolute_paths"].status == "fail"
    assert str(file) in report["absolute_paths"].message


def test_made_up_words_are_not_held_against_a_model(checker: Checker, tmp_path: Path) -> None:
    """An unknown word has the index -1, which no embedding has."""
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["cash", "card"], tf.range(2, dtype=tf.int64)), -1
    )
    word = tf.TensorSpec([None], tf.string, name="word")
    module = serving(lambda word: {"y": tf.gather([0.5], table.lookup(word))}, word, table=table)
    folder = str(save(module, tmp_path / "model"))
    report = checker.validate(folder, SERVED)
    assert report["scores"].status == "pass" and "made-up words" in report["scores"].message


@pytest.mark.parametrize("is_used", [False, True])
def test_checkpoints_of_a_model_inside(is_used: bool, checker: Checker, tmp_path: Path) -> None:
    """A transform graph brings the functions that restore and save it, which nothing calls."""

    @tf.function(input_signature=[])
    def restore() -> tf.Tensor:
        prefix = "/pipelines/taxi/transform_fn/variables/variables"
        return tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.float32]
        )[0]

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + (restore() if is_used else 0.0)}

    module = serving(serve, ROWS, inside=tf.Module())
    module.inside.restore = restore
    report = checker.validate(str(save(module, tmp_path / "model")), SERVED)
    assert report["file_ops"].status == ("fail" if is_used else "pass"), report["file_ops"]
    assert report["absolute_paths"].status == "pass", report["absolute_paths"]


def test_transformed_examples_are_not_fed_as_raw_ones(checker: Checker, tmp_path: Path) -> None:
    """A signature that takes raw features by the names that Transform gives its own."""
    payment = tf.TensorSpec([None, 1], tf.int64, name="payment")
    module = serving(lambda payment: {"y": tf.one_hot(payment[:, 0], 3)}, payment)
    folder = str(save(module, tmp_path / "model"))
    transformed = dataclasses.replace(
        EVALUATED, examples=models.examples(), examples_transformed=True
    )
    report = checker.validate(folder, transformed)
    assert "made-up tensors" in report["scores"].message
    assert report.passed, report.summary()
    # The examples at hand have words there: they do not fit.
    raw = dataclasses.replace(EVALUATED, examples=models.examples())
    assert "made-up tensors" in checker.validate(folder, raw)["scores"].message


@pytest.mark.parametrize("field", ["signature_def_hash", "graph_def_program_hash"])
def test_hashes_that_another_tensorflow_computes_otherwise(
    field: str, checker: Checker, good_model: Path, tmp_path: Path
) -> None:
    from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef

    def edit(copied: Path) -> None:
        file = copied / "fingerprint.pb"
        fingerprint = FingerprintDef.FromString(file.read_bytes())
        setattr(fingerprint, field, getattr(fingerprint, field) ^ 1)
        file.write_bytes(fingerprint.SerializeToString())

    folder = models.broken_copy(good_model, tmp_path / "model", edit)
    assert checker.validate(str(folder))["fingerprint"].status == "pass"


def test_a_pinned_graph_runs_in_a_session(checker: Checker, tmp_path: Path) -> None:
    def pinned(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device("/GPU:0"):
            return {"y": x * 2.0}

    report = checker.validate(str(save(serving(pinned, ROWS), tmp_path / "model")), EVALUATED)
    assert report.passed, report.summary()
    assert report["session"].status == "pass"
    assert report["devices"].status == "warn"


OPS = """
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
using namespace tensorflow;
REGISTER_OP("TripledForTests").Input("x: float").Output("y: float").SetShapeFn(
    [](shape_inference::InferenceContext* c) { c->set_output(0, c->input(0)); return OkStatus(); });
struct Tripled : public OpKernel {
  explicit Tripled(OpKernelConstruction* c) : OpKernel(c) {}
  void Compute(OpKernelContext* c) override {
    Tensor* y = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, c->input(0).shape(), &y));
    auto from = c->input(0).flat<float>();
    for (int i = 0; i < from.size(); ++i) y->flat<float>()(i) = 3 * from(i);
  }
};
REGISTER_KERNEL_BUILDER(Name("TripledForTests").Device(DEVICE_CPU), Tripled);
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_ops_of_a_library_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    source = tmp_path / "tripled.cc"
    source.write_text(OPS)
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    library = installed / "tripled.so"
    command = ["g++", "-shared", "-fPIC", "-O0", str(source), "-o", str(library), *flags]
    subprocess.run(command, check=True)
    (installed / "tripled_ops.py").write_text(
        f"import tensorflow as tf\nlibrary = tf.load_op_library({str(library)!r})\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    ops = tf.load_op_library(str(library))
    module = serving(lambda x: {"y": ops.tripled_for_tests(x)}, ROWS)
    folder = str(save(module, tmp_path / "model"))
    with Checker() as checker:
        unknown = checker.validate(folder, EVALUATED)
        assert {result.name for result in unknown.failures} >= {"unregistered_ops"}
        assert "op_libraries=" in unknown["unregistered_ops"].remedy
        named = dataclasses.replace(EVALUATED, op_libraries=("tripled_ops",))
        report = checker.validate(folder, named)
        assert report.passed, report.summary()
        assert report["unregistered_ops"].status == "warn"
        assert "tripled_ops" in report["unregistered_ops"].message
        assert "scored" in report["scores"].message
        accepted = dataclasses.replace(named, allowed_ops=("TripledForTests",))
        assert checker.validate(folder, accepted)["unregistered_ops"].status == "pass"
