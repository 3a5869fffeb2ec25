"""TFLite models and quantised SavedModels: those that are whole and true to their source pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.validation import Checker, ServingContract, ValidationReport
from tests.validation import models

ANY = ServingContract(signatures=())
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

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        inner = tf.nn.relu(tf.nn.relu(x @ module.first) @ module.second)
        return {"probabilities": tf.nn.softmax(inner @ module.last)}

    module.serve = tf.function(serve, input_signature=[ROWS], autograph=False)
    return module


def save_source(folder: Path) -> Path:
    """Saves the classifier as a SavedModel."""
    return models.save(network(), folder)


def labelled_examples(model: Path, count: int = 120) -> tuple[bytes, ...]:
    """tf.Examples with one feature `x` of four numbers, and the class that the model gives them."""
    rows = np.random.default_rng(1).normal(size=(count, len(FEATURES))).astype("f4")
    serve = tf.saved_model.load(str(model)).signatures["serving_default"]
    labels = np.argmax(serve(x=tf.constant(rows))["probabilities"].numpy(), axis=1)
    return tuple(
        tf.train.Example(
            features={
                "feature": {
                    "x": tf.train.Feature(float_list={"value": row}),
                    "species": tf.train.Feature(int64_list={"value": [label]}),
                }
            }
        ).SerializeToString()
        for row, label in zip(rows, labels, strict=True)
    )


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
    return save_source(tmp_path_factory.mktemp("source") / "1")


@pytest.fixture(scope="module")
def examples(source: Path) -> tuple[bytes, ...]:
    return labelled_examples(source)


@pytest.fixture(scope="module")
def converted(source: Path) -> dict[str, bytes]:
    return {kind: tflite(source, kind) for kind in ("float32", "float16", "int8", "full")}


def check(
    checker: Checker, folder: Path, files: dict[str, bytes], contract: ServingContract = ANY
) -> ValidationReport:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return checker.validate(str(folder), contract)


def told(report: ValidationReport) -> dict[str, str]:
    """Check → its message, of those that warn or fail."""
    return {result.name: result.message for result in (*report.failures, *report.warnings)}


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "full"])
def test_a_converted_model_is_compared_with_its_source(
    kind: str,
    converted: dict[str, bytes],
    source: Path,
    examples: tuple[bytes, ...],
    checker: Checker,
    tmp_path: Path,
) -> None:
    """As TFX's rewriter writes it: alone, in a file `tflite` without a suffix."""
    contract = ServingContract(
        source_model=str(source),
        examples=examples,
        label_keys=("species",),
        consumers=("Evaluator", "Pusher"),
    )
    report = check(checker, tmp_path, {"tflite": converted[kind]}, contract)
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
    converted: dict[str, bytes], source: Path, checker: Checker, tmp_path: Path
) -> None:
    shutil.copytree(source, tmp_path / "model")
    report = check(checker, tmp_path / "model", {"assets.extra/m.tflite": converted["float32"]})
    assert report.passed and not report.warnings, told(report)
    assert "differs from the source by" in report["parity"].message
    assert report["session"].status == "pass"

    wrong = with_other_weights(converted["float32"], lambda weights: weights.sort())
    report = check(checker, tmp_path / "model", {"assets.extra/m.tflite": wrong})
    assert set(told(report)) == {"parity"} and not report.passed
    assert "parity_atol" in report["parity"].remedy
    tolerant = ServingContract(signatures=(), parity_atol=2.0)
    assert checker.validate(str(tmp_path / "model"), tolerant).passed


def test_a_bound_of_the_contract_holds_for_a_quantised_model(
    converted: dict[str, bytes],
    source: Path,
    examples: tuple[bytes, ...],
    checker: Checker,
    tmp_path: Path,
) -> None:
    given = {"source_model": str(source), "parity_rtol": 0.0, "parity_atol": 1e-6}
    strict = ServingContract(**given, examples=examples)
    report = check(checker, tmp_path, {"tflite": converted["full"]}, strict)
    assert report["parity"].status == "fail", report["parity"]
    # A bound that nothing can be held against is no bound.
    unsourced = checker.validate(str(tmp_path), ServingContract(parity_atol=0.5))
    assert "compared" in unsourced["parity"].message and not unsourced.passed


def test_a_quantised_saved_model_is_compared_with_its_source(
    source: Path, examples: tuple[bytes, ...], checker: Checker, tmp_path: Path
) -> None:
    module = network()
    contract = ServingContract(
        source_model=str(source),
        examples=examples,
        label_keys=("species",),
        parity_atol=0.1,
    )
    limits = {}

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.quantization.fake_quant_with_min_max_args(x, **limits)
        inner = tf.nn.relu(tf.nn.relu(x @ module.first) @ module.second)
        return {"probabilities": tf.nn.softmax(inner @ module.last)}

    for limits["min"], limits["max"], status in ((-3.0, 3.0, "pass"), (5.0, 6.0, "fail")):
        folder = tmp_path / status
        models.save(
            models.serving(
                serve,
                ROWS,
                first=module.first,
                second=module.second,
                last=module.last,
            ),
            folder,
        )
        report = checker.validate(str(folder), contract)
        assert report["parity"].status == status, report["parity"]
        assert report.passed == (status == "pass"), told(report)
        assert report.facts["parity"]["the SavedModel"]["rows"] == 100


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda content: content[: len(content) // 2], ""),
        (lambda content: content[:100], ""),
        (lambda content: content[:4] + b"TFL2" + content[8:], "TFL3"),
        (lambda content: b"", "TFL3"),
        (lambda content: b"version https://git-lfs.github.com/spec/v1\n", "TFL3"),
    ],
)
def test_a_damaged_tflite_model_is_refused(
    change: Callable[[bytes], bytes],
    expected: str,
    converted: dict[str, bytes],
    checker: Checker,
    tmp_path: Path,
) -> None:
    report = check(checker, tmp_path, {"m.tflite": change(converted["float32"])})
    check_name = "presence" if expected == "TFL3" else "other_formats"
    assert expected in report[check_name].message and not report.passed


def test_a_tflite_model_with_nan(
    converted: dict[str, bytes], checker: Checker, tmp_path: Path
) -> None:
    content = with_other_weights(converted["float32"], lambda w: w.fill(np.nan))
    report = check(checker, tmp_path, {"m.tflite": content})
    assert "has NaN" in report["format_scores"].message


def test_consumers_that_cannot_read_it(
    converted: dict[str, bytes], checker: Checker, tmp_path: Path
) -> None:
    served = ServingContract(consumers=("Pusher",))
    report = check(checker, tmp_path, {"tflite": converted["float32"]}, served)
    assert report.passed and not report.warnings, told(report)
    for consumer in ("BulkInferrer", "InfraValidator"):
        refused = checker.validate(str(tmp_path), ServingContract(consumers=(consumer, "Pusher")))
        assert consumer in refused["format_consumers"].message and not refused.passed
    (tmp_path / "tflite").rename(tmp_path / "model.tflite")
    evaluated = checker.validate(str(tmp_path), ServingContract(consumers=("Evaluator",)))
    assert evaluated.passed and set(told(evaluated)) == {"format_consumers"}


def test_a_source_that_samples_is_nobodys_parity(checker: Checker, tmp_path: Path) -> None:
    steady = models.serving(lambda x: {"y": x + 1.0}, ROWS)
    noisy = models.serving(lambda x: {"y": x + tf.random.normal(tf.shape(x))}, ROWS)
    models.save(steady, tmp_path / "steady")
    models.save(noisy, tmp_path / "model")
    content = tflite(tmp_path / "steady")
    report = check(checker, tmp_path / "model", {"assets.extra/m.tflite": content})
    assert report["parity"].status == "pass" and "varies" in report["parity"].message


def test_a_tflite_model_that_reaches_files_is_not_run(
    source: Path, checker: Checker, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    module = models.serving(
        lambda x: {"y": tf.strings.length(tf.io.read_file(str(written))) + tf.cast(x, tf.int32)},
        ROWS,
    )
    models.save(module, tmp_path / "reads")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "reads"))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    report = check(checker, tmp_path / "model", {"tflite": converter.convert()})
    assert "FlexReadFile" in report["other_formats"].message and not report.passed
    assert report["format_scores"].status == "skip"


def test_a_tflite_model_with_ops_that_the_interpreter_may_lack(
    checker: Checker, tmp_path: Path
) -> None:
    """TensorFlow 2.16 runs its own ops inside of TFLite, 2.21 does not."""
    module = models.serving(
        lambda x: {"y": x + tf.random.stateless_normal(tf.shape(x), [1, 2])}, ROWS
    )
    models.save(module, tmp_path / "model")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "model"))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    files = {"assets.extra/m.tflite": converter.convert()}
    report = check(checker, tmp_path / "model", files)
    assert report.passed and told(report).keys() <= {"row_independence"}, told(report)
    was_run = "scored" in report["format_scores"].message
    assert was_run or "lacks its ops" in report["format_scores"].message
    assert was_run == ("differs" in report["parity"].message)
    gated = ServingContract(signatures=(), parity_atol=1e-3)
    assert checker.validate(str(tmp_path / "model"), gated).passed == was_run
