"""TFLite models and quantised SavedModels: those that are whole and true to their source pass."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.validation import ServingContract, ValidationReport
from tests.examples import example
from tests.validation import models
from tests.validation.conftest import Check

ANY = ServingContract(signatures=())
BESIDE = "assets.extra/m.tflite"
FEATURES = ("length", "depth", "width", "mass")
CLASSES = 3
ROWS = tf.TensorSpec([None, len(FEATURES)], tf.float32, name="x")


def network(hidden: int = 64) -> tf.Module:
    """A classifier with weights large enough to be quantised; `serve` takes `x` [rows, 4]."""
    generator = np.random.default_rng(0)
    module = tf.Module()
    module.first = tf.Variable(generator.normal(size=(len(FEATURES), hidden)).astype("f4"))
    module.second = tf.Variable(generator.normal(size=(hidden, hidden)).astype("f4") / 8)
    module.last = tf.Variable(generator.normal(size=(hidden, CLASSES)).astype("f4") / 8)

    serve = tf.function(lambda x: scored(module, x), input_signature=[ROWS], autograph=False)
    module.serve = serve
    return module


def scored(module: tf.Module, x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns what the classifier gives for rows."""
    inner = tf.nn.relu(tf.nn.relu(x @ module.first) @ module.second)
    return {"probabilities": tf.nn.softmax(inner @ module.last)}


def labelled_examples(model: Path, count: int = 120) -> tuple[bytes, ...]:
    """tf.Examples with one feature `x` of four numbers, and the class that the model gives them."""
    rows = np.random.default_rng(1).normal(size=(count, len(FEATURES))).astype("f4")
    serve = tf.saved_model.load(str(model)).signatures["serving_default"]
    labels = np.argmax(serve(x=tf.constant(rows))["probabilities"].numpy(), axis=1)
    labelled = zip(rows.tolist(), labels.tolist(), strict=True)
    return tuple(example(x=row, species=label) for row, label in labelled)


def tflite(model: Path, kind: str = "float32") -> bytes:
    """Converts a SavedModel; weights "float32", "float16", "int8" (dynamic range or "full")."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(model))
    if kind != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if kind == "full":
        rows = np.random.default_rng(2).normal(size=(50, 1, len(FEATURES))).astype("f4")
        converter.representative_dataset = lambda: ([row] for row in rows)
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def with_other_weights(content: bytes, change: Callable[[np.ndarray], None]) -> bytes:
    """Returns a float TFLite model with its largest weights changed in place."""
    from tensorflow.lite.python import schema_py_generated as schema

    buffers = schema.ModelT.InitFromPackedBuf(content, 0).buffers
    largest = max((b.data for b in buffers if b.data is not None), key=len)
    original = np.asarray(largest, np.uint8).tobytes()
    assert content.count(original) == 1
    weights = np.frombuffer(original, "<f4").copy()
    change(weights)
    return content.replace(original, weights.tobytes())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(network(), tmp_path_factory.mktemp("source") / "1")


@pytest.fixture(scope="module")
def examples(source: Path) -> tuple[bytes, ...]:
    return labelled_examples(source)


@pytest.fixture(scope="module")
def converted(source: Path) -> dict[str, bytes]:
    return {kind: tflite(source, kind) for kind in ("float32", "float16", "int8", "full")}


def put(folder: Path, name: str, content: bytes) -> Path:
    """Writes a file of a model."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


def told(report: ValidationReport) -> dict[str, str]:
    """Check → its message, of those that warn or fail."""
    return {result.name: result.message for result in (*report.failures, *report.warnings)}


@pytest.fixture(scope="module")
def compared(source: Path, examples: tuple[bytes, ...]) -> ServingContract:
    """The contract of a model that is made of the source."""
    return ServingContract(source_model=str(source), examples=examples, label_keys=("species",))


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "full"])
def test_a_converted_model_is_compared_with_its_source(
    kind: str, converted: dict[str, bytes], compared: ServingContract, check: Check, tmp_path: Path
) -> None:
    """As TFX's rewriter writes it: alone, in a file `tflite` without a suffix."""
    contract = dataclasses.replace(compared, consumers=("Evaluator", "Pusher"))
    report = check(put(tmp_path, "tflite", converted[kind]), contract)
    assert report.passed and not report.warnings, told(report)
    assert "loads" not in {result.name for result in report.results}
    shown = report["other_formats"].message
    precision = {"float32": "", "full": " with int8 weights"}.get(kind, f" with {kind} weights")
    assert f"TFLite{precision}; serving_default(x: float32[None, 4])" in shown
    measured = report.facts["parity"]["tflite"]
    assert measured["rows"] == 100
    largest = measured["outputs"]["probabilities"]["largest"]
    assert (largest < 1e-5) == (kind == "float32")


def test_a_file_beside_its_source_needs_no_contract(
    converted: dict[str, bytes], source: Path, check: Check, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(source, tmp_path / "model"))
    report = check(put(model, BESIDE, converted["float32"]), ANY)
    assert report.passed and not report.warnings, told(report)
    assert "differs from the source by" in report["parity"].message
    assert report["session"].status == "pass"

    wrong = with_other_weights(converted["float32"], lambda weights: weights.sort())
    report = check(put(model, BESIDE, wrong), ANY)
    assert set(told(report)) == {"parity"} and not report.passed
    assert "parity_atol" in report["parity"].remedy
    assert check(model, ServingContract(signatures=(), parity_atol=2.0)).passed


def test_a_bound_of_the_contract_holds_for_a_quantised_model(
    converted: dict[str, bytes], compared: ServingContract, check: Check, tmp_path: Path
) -> None:
    strict = dataclasses.replace(compared, parity_rtol=0.0, parity_atol=1e-6)
    report = check(put(tmp_path, "tflite", converted["full"]), strict)
    assert report["parity"].status == "fail", report["parity"]
    # A bound that nothing can be held against is no bound.
    unsourced = check(tmp_path, ServingContract(parity_atol=0.5))
    assert "compared" in unsourced["parity"].message and not unsourced.passed


@pytest.mark.parametrize("is_serialized", [False, True])
def test_a_quantised_saved_model_is_compared_with_its_source(
    is_serialized: bool, compared: ServingContract, check: Check, tmp_path: Path
) -> None:
    module = network()
    weights = {name: getattr(module, name) for name in ("first", "second", "last")}
    limits = {}

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        if is_serialized:
            x = tf.io.parse_example(x, {"x": tf.io.FixedLenFeature([4], tf.float32)})["x"]
        x = tf.quantization.fake_quant_with_min_max_args(x, **limits) if limits else x
        return scored(module, x)

    spec = models.SERIALIZED if is_serialized else ROWS
    source = models.save(models.serving(serve, spec, **weights), tmp_path / "source")
    contract = dataclasses.replace(compared, source_model=str(source), parity_atol=0.1)
    for limits["min"], limits["max"], status in ((-3.0, 3.0, "pass"), (5.0, 6.0, "fail")):
        quantised = models.serving(serve, spec, **weights)
        report = check(models.save(quantised, tmp_path / status), contract)
        assert report["parity"].status == status, report["parity"]
        assert report.passed == (status == "pass"), told(report)
        assert report.facts["parity"]["the SavedModel"]["rows"] == 100


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.float16, tf.bfloat16])
def test_weights_of_fewer_bits_are_compared_as_such(
    dtype: tf.DType, source: Path, compared: ServingContract, check: Check, tmp_path: Path
) -> None:
    module = network()
    step, zero = 0.02 if dtype.is_integer else 1 / 128, 128.0 if dtype == tf.uint8 else 0.0
    stored = tf.Variable(tf.cast(np.rint(module.first / step) + zero, dtype))

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        kernel = (tf.cast(stored, tf.float32) - zero) * step
        inner = tf.nn.relu(tf.nn.relu(x @ kernel) @ module.second)
        return {"probabilities": tf.nn.softmax(inner @ module.last)}

    kept = models.serving(serve, ROWS, module=module, stored=stored)
    report = check(models.save(kept, tmp_path / "model"), compared)
    assert report["parity"].status == "pass", told(report)
    measured = report.facts["parity"]["the SavedModel"]["outputs"]["probabilities"]
    assert measured["largest"] > 1e-3
    stored.assign(stored[::-1])
    report = check(models.save(kept, tmp_path / "wrong"), compared)
    assert report["parity"].status == ("warn" if dtype.is_integer else "fail"), told(report)


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint8, tf.float16, tf.bfloat16])
def test_one_number_of_fewer_bits_makes_no_quantised_model(
    dtype: tf.DType, compared: ServingContract, check: Check, tmp_path: Path
) -> None:
    module = network()
    module.first.assign(module.first[::-1])

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        one = tf.cast(tf.cast(tf.size(x), dtype) * tf.constant(1, dtype) > 0, tf.float32)
        return scored(module, x * one)

    kept = models.serving(serve, ROWS, module=module)
    report = check(models.save(kept, tmp_path / "model"), compared)
    assert report["parity"].status == "fail", told(report)


def _with_nan(content: bytes) -> bytes:
    return with_other_weights(content, lambda weights: weights.fill(np.nan))


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        (lambda content: content[: len(content) // 2], "other_formats", ""),
        (lambda content: b"version https://git-lfs.github.com/spec/v1\n", "presence", "TFL3"),
        (_with_nan, "format_scores", "has NaN"),
    ],
)
def test_a_damaged_tflite_model_is_refused(
    change: Callable[[bytes], bytes],
    name: str,
    expected: str,
    converted: dict[str, bytes],
    check: Check,
    tmp_path: Path,
) -> None:
    report = check(put(tmp_path, "m.tflite", change(converted["float32"])), ANY)
    assert expected in report[name].message
    assert report.passed == (name == "format_scores")


def test_a_batch_of_one_may_have_scalars_beside_it(check: Check, tmp_path: Path) -> None:
    specs = tf.TensorSpec([1, 4], name="x"), tf.TensorSpec([], name="factor")
    module = models.serving(lambda x, factor: {"y": x * factor, "n": tf.reduce_sum(x)}, *specs)
    content = tflite(models.save(module, tmp_path / "model"))
    contract = ServingContract(signatures=(), consumers=("Pusher",))
    report = check(put(tmp_path / "model", BESIDE, content), contract)
    assert not told(report), told(report)
    assert "scored 32 rows" in report["format_scores"].message


def test_consumers_that_cannot(converted: dict[str, bytes], check: Check, tmp_path: Path) -> None:
    served = ServingContract(consumers=("Pusher",))
    report = check(put(tmp_path, "tflite", converted["float32"]), served)
    assert report.passed and not report.warnings, told(report)
    for consumer in ("BulkInferrer", "InfraValidator"):
        refused = check(tmp_path, ServingContract(consumers=(consumer, "Pusher")))
        assert consumer in refused["format_consumers"].message and not refused.passed
    (tmp_path / "tflite").rename(tmp_path / "model.tflite")
    evaluated = check(tmp_path, ServingContract(consumers=("Evaluator",)))
    assert evaluated.passed and set(told(evaluated)) == {"format_consumers"}


def with_ops_of_tensorflow(function: Callable[..., Any], folder: Path) -> bytes:
    """Converts a model that TFLite's own ops are too few for, saved in `folder`."""
    models.save(models.serving(function, ROWS), folder)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    ops = tf.lite.OpsSet
    converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS, ops.SELECT_TF_OPS]
    return converter.convert()


def test_a_source_that_samples_is_nobodys_parity(check: Check, tmp_path: Path) -> None:
    steady = models.serving(lambda x: {"y": x + 1.0}, ROWS)
    noisy = models.serving(lambda x: {"y": x + tf.random.normal(tf.shape(x))}, ROWS)
    content = tflite(models.save(steady, tmp_path / "steady"))
    report = check(put(models.save(noisy, tmp_path / "model"), BESIDE, content), ANY)
    assert report["parity"].status == "pass" and "varies" in report["parity"].message


def test_a_tflite_model_that_reaches_files_is_not_run(check: Check, tmp_path: Path) -> None:
    def read(x: tf.Tensor) -> dict[str, tf.Tensor]:
        content = tf.io.read_file(str(tmp_path / "written"))
        return {"y": tf.strings.length(content) + tf.cast(x, tf.int32)}

    content = with_ops_of_tensorflow(read, tmp_path / "reads")
    for name in (b"FlexReadFile", b"FlexIdentity"):  # the interpreter looks in the options
        named = content.replace(b"FlexReadFile", name)
        report = check(put(tmp_path / "model", "tflite", named), ANY)
        assert "FlexReadFile" in report["other_formats"].message and not report.passed
        assert report["format_scores"].status == "skip"


def test_a_tflite_model_with_ops_that_interpreters_lack(check: Check, tmp_path: Path) -> None:
    """TensorFlow 2.16 runs its own ops inside of TFLite, 2.21 does not."""

    def draw(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + tf.random.stateless_normal(tf.shape(x), [1, 2])}

    content = with_ops_of_tensorflow(draw, tmp_path / "model")
    report = check(put(tmp_path / "model", BESIDE, content), ANY)
    assert report.passed and told(report).keys() <= {"row_independence"}, told(report)
    was_run = "lacks its ops" not in report["format_scores"].message
    assert was_run == ("differs" in report["parity"].message)
    gated = ServingContract(signatures=(), parity_atol=1e-3)
    assert check(tmp_path / "model", gated).passed == was_run
