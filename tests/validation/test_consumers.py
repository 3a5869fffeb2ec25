"""What is said of a model depends on who reads it: nobody's concern is never a failure."""

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow_model_analysis.proto import config_pb2

from generic_trainer.validation import Checker, ServingContract
from tests.validation import models
from tests.validation.catalogue.good_graphs import GOOD
from tests.validation.catalogue.rows import export_of_miles, export_v1
from tests.validation.conftest import Check
from tests.validation.models import FEATURES, ROWS, SERIALIZED, save, serving
from tests.validation.recipes import scoring

UNKNOWN = ServingContract(signatures=())
SERVED = dataclasses.replace(UNKNOWN, consumers=("Pusher", "InfraValidator"))
EVALUATED = dataclasses.replace(UNKNOWN, consumers=("Evaluator.taxi", "Pusher"))


# Good models of the catalogue, and the checks by which an Evaluator refuses each.
MINDED = {
    "fixed_batch_of_images": {"batch_dimension", "output_shape"},
    "shares_of_a_list": {"row_independence"},
    "scalar_for_a_batch": {"output_shape", "output_per_row"},
    "sampled_answers": {"deterministic"},
    "switch_beside_the_rows": {"batch_dimension"},
}


@pytest.mark.parametrize("name", MINDED)
def test_what_only_some_consumers_mind(name: str, check: Check, tmp_path: Path) -> None:
    folder, minded = tmp_path / "model", MINDED[name]
    GOOD[name][0](folder)
    served = check(folder, SERVED)
    assert served.passed, served.summary()
    assert not {result.name for result in served.warnings} & {"scores", "session"}
    unknown = check(folder, UNKNOWN)
    assert unknown.passed, unknown.summary()
    assert minded <= {result.name for result in unknown.warnings}
    evaluated = check(folder, EVALUATED)
    assert {result.name for result in evaluated.failures} == minded, evaluated.summary()
    for result in evaluated.failures:
        line = result.remedy.splitlines()[-1].partition("contract=")[2]
        accepted = eval(line, {"ServingContract": ServingContract})  # as a user would paste it
        assert accepted.severities == {result.name: "skip"}


def _table(words: list[str], default: int, function: Callable[[tf.Tensor], Any]) -> tf.Module:
    values = tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words), dtype=tf.int64))
    table = tf.lookup.StaticHashTable(values, default)
    word = tf.TensorSpec([None], tf.string, name="word")
    return serving(lambda word: {"y": function(table.lookup(word))}, word, table=table)


def words_like_paths() -> tf.Module:
    return _table(["/etc/passwd", "/usr/bin", "gs://bucket/word"], 0, tf.identity)


def page_compared_with_a_path() -> tf.Module:
    page = tf.TensorSpec([None], tf.string, name="page")
    return serving(lambda page: {"y": tf.cast(page == "/checkout/cart", tf.float32)}, page)


def unknown_words_fail() -> tf.Module:
    return _table(["cash", "card"], -1, lambda row: tf.gather([0.5], row))


def input_of_any_rank() -> tf.Module:
    x = tf.TensorSpec(None, tf.float32, name="x")  # a scalar, or rows of three
    return serving(lambda x: {"y": tf.ones([2, 3]) + x}, x)


def path_behind_functions() -> tf.Module:
    read = tf.function(tf.io.read_file)

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tf.cond(tf.size(x) > 0, lambda: read(tf.constant("/data/words.txt")), lambda: "")
        return {"y": x + tf.cast(tf.strings.length(text), tf.float32)}

    return serving(serve, ROWS)


def nan_on_purpose() -> tf.Module:
    return scoring(lambda features: tf.math.log(features["miles"] - 1.0))


def nan_always(key: str = "score", **others: float) -> tf.Module:
    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        miles = tf.io.parse_example(rows, FEATURES)["miles"]
        return {key: miles * float("nan"), **{name: 0 * miles + x for name, x in others.items()}}

    return serving(serve, SERIALIZED)


def nan_for_the_label() -> tf.Module:
    return nan_always("label", bound=1.0)


def nan_for_a_bound() -> tf.Module:
    return nan_always("bound", label=1.0)


def outputs_not_for_rest() -> tf.Module:
    dtypes = (tf.float16, tf.bfloat16, tf.uint16)
    return serving(lambda x: {d.name: tf.cast(tf.abs(x), d) for d in dtypes}, ROWS)


def checkpoint_inside(*, is_restored: bool = False) -> tf.Module:
    """A transform graph brings the functions that restore and save it, which nothing calls."""

    @tf.function(input_signature=[])
    def restore() -> tf.Tensor:
        prefix = "/pipelines/taxi/transform_fn/variables/variables"
        return tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.float32]
        )[0]

    inside = tf.Module()
    inside.restore = restore
    return serving(lambda x: {"y": x + (restore() if is_restored else 0.0)}, ROWS, inside=inside)


def checkpoint_restored() -> tf.Module:
    return checkpoint_inside(is_restored=True)


def numbers_for_words() -> tf.Module:
    """Takes raw features by the names that Transform gives its own."""
    payment = tf.TensorSpec([None, 1], tf.int64, name="payment")
    return serving(lambda payment: {"y": tf.one_hot(payment[:, 0], 3)}, payment)


def with_examples(contract: ServingContract) -> ServingContract:
    return dataclasses.replace(contract, examples=models.examples())


LABELLED = dataclasses.replace(UNKNOWN, examples=models.examples(), label_keys=("label",))


def consumed_by(*consumers: str) -> ServingContract:
    return dataclasses.replace(UNKNOWN, consumers=consumers)


def numbered_alike() -> tf.Module:
    """The graph numbers variables of one name, as all kernels of Keras 3 have; one is read."""
    read, unread = (tf.Variable([[x], [1.0]], name="kernel") for x in (float("nan"), 1.0))
    return serving(lambda x: {"y": x @ read}, ROWS, a=read, b=unread)


def trained_by_workers() -> tf.Module:
    @tf.function(input_signature=[ROWS], jit_compile=True)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/job:worker/task:0"):
            return x + 1.0

    return serving(lambda x: {"y": x}, ROWS, step=step)


def string_per_row() -> tf.Module:
    return scoring(lambda features: features["payment"])


def list_per_row() -> tf.Module:
    return scoring(lambda features: tf.strings.split(features["payment"]))


def text_of_any_shape() -> tf.Module:
    return serving(lambda x: {"y": tf.strings.length(x)}, tf.TensorSpec(None, tf.string))


def bytes_that_end_with_zero() -> tf.Module:
    return serving(lambda x: {"y": tf.constant(b"a\0")}, ROWS)


INFERRED = consumed_by("BulkInferrer")
RAW = with_examples(EVALUATED)
TRANSFORMED = dataclasses.replace(RAW, examples_transformed=True)


FINDINGS = [
    (outputs_not_for_rest, consumed_by("Pusher"), "composite_tensors", "warn", "bfloat16"),
    (outputs_not_for_rest, INFERRED, "composite_tensors", "pass", ""),
    (string_per_row, INFERRED, "composite_tensors", "fail", "strings of one dimension"),
    (list_per_row, INFERRED, "composite_tensors", "fail", "not a dense tensor"),
    (text_of_any_shape, INFERRED, "serialized_input", "pass", "string[None]; InfraValidator"),
    (bytes_that_end_with_zero, SERVED, "session", "pass", ""),
    (numbered_alike, SERVED, "variables_finite", "fail", "NaN in 1 variables: 'a'"),
    (trained_by_workers, SERVED, "devices", "pass", ""),
    (outputs_not_for_rest, UNKNOWN, "composite_tensors", "warn", "uint16"),
    (nan_on_purpose, with_examples(SERVED), "outputs_finite", "warn", ""),
    (nan_on_purpose, with_examples(UNKNOWN), "outputs_finite", "warn", ""),
    (nan_always, with_examples(SERVED), "outputs_finite", "fail", "examples, each of them"),
    (nan_for_the_label, LABELLED, "outputs_finite", "fail", "'label' is NaN"),
    (nan_for_a_bound, LABELLED, "outputs_finite", "warn", "'bound' is NaN"),
    (words_like_paths, EVALUATED, "absolute_paths", "pass", ""),
    (page_compared_with_a_path, EVALUATED, "absolute_paths", "pass", ""),
    (path_behind_functions, UNKNOWN, "absolute_paths", "fail", "/data/words.txt"),
    (unknown_words_fail, SERVED, "scores", "skip", "made-up words"),
    (input_of_any_rank, SERVED, "scores", "warn", "Incompatible shapes"),
    (checkpoint_inside, SERVED, "file_ops", "pass", ""),
    (checkpoint_inside, SERVED, "absolute_paths", "pass", ""),
    (checkpoint_restored, SERVED, "file_ops", "fail", ""),
    (numbers_for_words, TRANSFORMED, "scores", "pass", "made-up tensors"),
    (numbers_for_words, RAW, "scores", "warn", "made-up rows"),
]


@pytest.mark.parametrize("finding", FINDINGS)
def test_what_is_found_depends_on_the_consumers(finding: Any, check: Check) -> None:
    make, contract, name, status, told = finding
    report = check(make(), contract)
    assert report[name].status == status, report[name]
    assert told in report[name].message
    if contract != INFERRED:  # it would want serialized examples
        assert report.passed == (status != "fail"), report.summary()


BY_DEFAULT = [
    ("predict", consumed_by("BulkInferrer", "Pusher"), "fail"),
    ("predict", SERVED, "warn"),
    ("predict", consumed_by("Evaluator"), "pass"),
    ("score", consumed_by("Evaluator"), "warn"),
    ("predict", dataclasses.replace(EVALUATED, signatures=("predict",)), "pass"),
]


@pytest.mark.parametrize("name, contract, status", BY_DEFAULT)
def test_a_model_without_the_signature_that_consumers_call_by_default(
    name: str, contract: ServingContract, status: str, check: Check, tmp_path: Path
) -> None:
    module = models.linear(tmp_path / "model")
    report = check(save(module, tmp_path / "model", {name: module.serve}), contract)
    assert report["required_signatures"].status == status, report["required_signatures"]
    assert report.passed == (status != "fail"), report.summary()


def _lengths(texts: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(texts), tf.float32)


def _sizes(images: tf.Tensor) -> tf.Tensor:
    size = lambda image: tf.cast(tf.size(tf.io.decode_jpeg(image)), tf.float32)  # noqa: E731
    return tf.map_fn(size, images, fn_output_signature=tf.float32)


def _numbers_of_words(words: tf.Tensor) -> tf.Tensor:
    """Gives no number for a word that is not in the vocabulary."""
    places = tf.where(words[:, None] == tf.constant(models.VOCABULARY))
    return tf.reshape(tf.cast(places[:, 1], tf.float32), tf.shape(words))


def _miles_of_protos(examples: tf.Tensor) -> tf.Tensor:
    """Parses without an op that states the features."""
    _, (features,) = tf.io.decode_proto(examples, "tensorflow.Example", ["features"], [tf.string])
    return _lengths(features[:, 0])


def _miles(examples: tf.Tensor) -> tf.Tensor:
    return tf.io.parse_example(examples, FEATURES)["miles"]


# How a number is made of the only string → what is said of it before a BulkInferrer.
OF_STRINGS: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], str]] = {
    "base64_jpeg": (lambda texts: _sizes(tf.io.decode_base64(texts)), "fail"),
    "jpeg": (_sizes, "fail"),
    "csv": (lambda lines: tf.io.decode_csv(lines, [0.0, 0.0])[0], "fail"),
    "number": (tf.strings.to_number, "fail"),
    "word": (_numbers_of_words, "fail"),
    "text": (_lengths, "warn"),
    "protos": (_miles_of_protos, "pass"),
    "examples": (_miles, "pass"),
}
NAMING_BOTH = dataclasses.replace(
    with_examples(consumed_by("BulkInferrer")), signatures=("serving_default", "from_examples")
)
WITH_BULK = {
    "alone": with_examples(consumed_by("BulkInferrer")),
    "evaluated": dataclasses.replace(
        with_examples(consumed_by("BulkInferrer", "Evaluator")),
        signatures=("serving_default",),
        eval_config=config_pb2.EvalConfig(
            model_specs=[{"signature_name": "from_examples", "label_key": "label"}]
        ),
    ),
    "named": NAMING_BOTH,
    "not_read": with_examples(SERVED),
    "without_examples": consumed_by("BulkInferrer"),
}


# The input may have the name of a feature, and gets the serialized examples all the same.
NAMED_INPUTS = [
    *((kind, "examples") for kind in OF_STRINGS),
    *((kind, "payment") for kind in ("word", "text", "examples")),
]


@pytest.mark.parametrize("kind, name", NAMED_INPUTS)
def test_what_a_bulk_inferrer_sends_to_the_only_string(
    kind: str, name: str, check: Check, tmp_path: Path
) -> None:
    function, status = OF_STRINGS[kind]
    rows = tf.TensorSpec([None], tf.string, name=name)
    signatures = models.signatures(
        serving_default=(lambda rows: {"y": tf.reshape(function(rows), [-1, 1])}, [rows]),
        from_examples=(lambda rows: {"y": tf.reshape(_miles(rows), [-1, 1])}, [SERIALIZED]),
    )
    folder = save(tf.Module(), tmp_path / "model", signatures)
    about = "scores bulk_inference"
    only = save(tf.Module(), tmp_path / "only", {"serving_default": signatures["serving_default"]})
    assert check(only, WITH_BULK["alone"], only=about)["bulk_inference"].status == status
    for consumed, contract in WITH_BULK.items():
        result = check(folder, contract, only=about)["bulk_inference"]
        if consumed in ("alone", "evaluated"):  # it may be configured to call `from_examples`
            assert result.status == status.replace("fail", "warn"), (consumed, result)
        else:
            is_parsed = kind == "examples" and consumed == "without_examples"
            is_tested = consumed == "named" or is_parsed
            assert result.status == ("pass" if is_tested else "skip"), (consumed, result)
        if result.status in ("fail", "warn"):
            line = result.remedy.splitlines()[0].rpartition(": ")[2]
            accepted = eval(line, {"ServingContract": ServingContract})  # as a user would paste it
            assert accepted.signatures == NAMING_BOTH.signatures


def _transform(examples: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"miles_xf": tf.io.parse_example(examples, FEATURES)["miles"] / 10.0}


OF_COLUMNS = {
    "transformed": ("miles_xf", tf.float32, {}, "warn"),
    "text": ("text_xf", tf.string, {}, "warn"),
    "raw_text": ("text", tf.string, {}, "warn"),
    "raw": ("miles", tf.float32, {}, "skip"),
    "beside_a_transformation": (
        *("miles_xf", tf.float32),
        models.signatures(transform=(_transform, [SERIALIZED])),
        "skip",
    ),
}


@pytest.mark.parametrize("kind", OF_COLUMNS)
def test_columns_that_no_raw_example_has_without_an_eval_config(
    kind: str, check: Check, tmp_path: Path
) -> None:
    name, dtype, others, status = OF_COLUMNS[kind]
    column = tf.TensorSpec([None] if kind == "raw_text" else [None, 1], dtype, name=name)
    module = serving(lambda value: {"score": tf.strings.length(tf.as_string(value))}, column)
    save(module, tmp_path / "model", {"serving_default": module.serve, **others})
    for consumers, expected in ((("Evaluator", "Pusher"), status), (("Pusher",), "skip")):
        wanted = dataclasses.replace(consumed_by(*consumers), examples=models.examples())
        result = check(tmp_path / "model", wanted, only="scores eval_signatures")["eval_signatures"]
        assert result.status == expected, result
        assert ("Evaluator downstream" in result.message) == (expected == "warn")


def _counts(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A graph of TensorFlow 1 that returns a reference, as TF Serving's own counter does."""
    x = v1.placeholder(tf.float32, [None, 2], name="x")
    weight = v1.Variable([[1.0], [2.0]], use_resource=False)
    return {"x": x}, {"y": x @ weight, "weight": v1.assign(weight, weight)}


def test_a_model_that_only_a_session_can_load(check: Check, tmp_path: Path) -> None:
    export_v1(tmp_path / "model", _counts)
    for contract, status in (
        (consumed_by("Pusher"), "pass"),
        (consumed_by("BulkInferrer", "Pusher"), "pass"),
        (UNKNOWN, "warn"),
        (consumed_by("Evaluator", "Pusher"), "fail"),
    ):
        report = check(tmp_path / "model", contract)
        assert report["loads"].status == status, report["loads"]
        assert "float_ref" in report["loads"].message
        assert report["signature_tensors"].status == "pass"
        if contract.consumers == ("Pusher",):  # a BulkInferrer would want serialized examples
            assert report.passed, report.summary()
        if status != "fail":
            assert report["session"].status == "pass"
            assert "scored" in report["scores"].message


def test_variables_that_are_set_while_the_model_is_loaded(check: Check, tmp_path: Path) -> None:
    def local(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        x = v1.placeholder(tf.float32, [None, 2])
        weight = v1.get_local_variable("w", initializer=2.0)
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, weight.initializer)
        return {"x": x}, {"y": x * weight}

    export_v1(tmp_path / "model", local)
    assert check(tmp_path / "model", SERVED).passed


def test_a_model_that_a_session_loads_and_cannot_run_fails(check: Check, tmp_path: Path) -> None:
    def flagged(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        return {"x": x}, {"y": v1.where(v1.placeholder(tf.bool, []), x, -x)}

    export_v1(tmp_path / "model", flagged)
    report = check(tmp_path / "model", SERVED)
    assert [failure.name for failure in report.failures] == ["loads"], report.summary()


def test_a_regression_has_one_output(check: Check, tmp_path: Path) -> None:
    folder, names = tmp_path / "model", ("outputs", "more")
    export_of_miles(folder, lambda v1, miles: dict.fromkeys(names, miles), method="regress")
    report = check(folder, INFERRED)
    assert "'outputs' alone" in report["signature_methods"].message


def test_side_signatures_may_be_anything(check: Check, tmp_path: Path) -> None:
    module = models.linear(tmp_path / "model")
    vector = tf.TensorSpec([4, 1], tf.float32, name="target")

    def train(target: tf.Tensor) -> dict[str, tf.Tensor]:
        module.weight.assign_add([[1.0]])
        return {"loss": tf.reduce_mean(target)}

    signatures = models.signatures(
        a_step_of_training=(train, [vector]),
        labels=(lambda: {"labels": tf.constant(["cash", "card"])}, []),
        name=(lambda x: {"name": tf.constant("taxi")}, [ROWS]),
        sample=(lambda x: {"y": tf.random.normal(tf.shape(x))}, [ROWS]),
        total=(lambda x: {"total": tf.reduce_sum(x)}, [ROWS]),
    )
    folder = save(module, tmp_path / "model", {**signatures, "serving_default": module.serve})
    report = check(folder, with_examples(EVALUATED))
    assert report.passed, report.summary()
    assert "changes the model's variables" in report["scores"].message
    # A BulkInferrer calls serving_default, whatever else there is.
    signatures = {"serving_default": signatures["total"], "predict": module.serve}
    report = check(save(module, tmp_path / "2", signatures), INFERRED)
    assert report["serialized_input"].status == "fail"


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
def test_ops_of_an_installed_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    tripled = ops.tripled_for_tests
    module = serving(lambda x: {"y": models.aborted(tf.size(x) == 0, tripled(x))}, ROWS)
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
        # Another process, which loads the ops too, runs the other checks.
        assert "SIGABRT" in report["unforeseen_rows"].message
        assert report["session"].status == "pass"
        accepted = dataclasses.replace(named, allowed_ops=("TripledForTests",))
        assert checker.validate(folder, accepted)["unregistered_ops"].status == "pass"
