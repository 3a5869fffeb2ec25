"""Models in other formats: what is whole, harmless and true to its source passes; nothing else."""

from __future__ import annotations

import builtins
import functools
import json
import operator
import os
import pickle
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from generic_trainer.validation import Checker, ServingContract, ValidationReport
from tests.validation import formats, models

ANY = ServingContract(signatures=())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return formats.source(tmp_path_factory.mktemp("source") / "1")


@pytest.fixture(scope="module")
def examples(source: Path) -> tuple[bytes, ...]:
    return formats.labelled_examples(source)


@pytest.fixture(scope="module")
def converted(source: Path) -> dict[str, bytes]:
    return {kind: formats.tflite(source, kind) for kind in ("float32", "float16", "int8", "full")}


@pytest.fixture(scope="module")
def estimator() -> object:
    return formats.estimator()


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


# ---- TFLite --------------------------------------------------------------------------------------


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
        max_accuracy_drop=0.1,
    )
    report = check(checker, tmp_path, {"tflite": converted[kind]}, contract)
    assert report.passed and not report.warnings, told(report)
    assert "loads" not in {result.name for result in report.results}
    (shown,) = report.facts["formats"]
    precision = {"float32": "", "full": " with int8 weights"}.get(kind, f" with {kind} weights")
    assert f"TFLite{precision}; serving_default(x: float32[None, 4])" in shown
    measured = report.facts["parity"]["tflite"]
    assert measured["rows"] == 120 and measured["source_accuracy"] == 1.0
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

    wrong = formats.with_other_weights(converted["float32"], lambda weights: weights.sort())
    report = check(checker, tmp_path / "model", {"assets.extra/m.tflite": wrong})
    assert set(told(report)) == {"parity"} and not report.passed
    assert "parity_atol" in report["parity"].remedy
    tolerant = ServingContract(signatures=(), parity_atol=2.0)
    assert checker.validate(str(tmp_path / "model"), tolerant).passed


def test_quantisation_is_a_warning_until_the_contract_says_how_much_it_may_cost(
    converted: dict[str, bytes],
    source: Path,
    examples: tuple[bytes, ...],
    checker: Checker,
    tmp_path: Path,
) -> None:
    given = {"source_model": str(source), "examples": examples, "label_keys": ("species",)}
    strict = {"parity_rtol": 0.0, "parity_atol": 1e-6}
    for extra, status in ((strict, "fail"), ({"max_accuracy_drop": 0.0}, None), ({}, None)):
        report = check(
            checker, tmp_path, {"tflite": converted["full"]}, ServingContract(**given, **extra)
        )
        measured = report.facts["parity"]["tflite"]
        loses = measured["accuracy"] < measured["source_accuracy"]
        expected = "fail" if extra and loses else "pass"
        assert report["parity"].status == (status or expected), report["parity"]
    # A bound that nothing can be held against is no bound.
    for given in ({"source_model": str(source)}, {}):
        unlabelled = ServingContract(**given, max_accuracy_drop=0.5)
        report = checker.validate(str(tmp_path), unlabelled)
        assert "compared" in report["parity"].message and not report.passed


def test_a_quantised_saved_model_is_compared_with_its_source(
    source: Path, examples: tuple[bytes, ...], checker: Checker, tmp_path: Path
) -> None:
    import tensorflow as tf

    module = formats.network()
    contract = ServingContract(
        source_model=str(source),
        examples=examples,
        label_keys=("species",),
        max_accuracy_drop=0.2,
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
                formats.ROWS,
                first=module.first,
                second=module.second,
                last=module.last,
            ),
            folder,
        )
        report = checker.validate(str(folder), contract)
        assert report["parity"].status == status, report["parity"]
        assert report.passed == (status == "pass"), told(report)
        assert "accuracy" in report.facts["parity"]["the SavedModel"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda content: content[: len(content) // 2], "damaged or incomplete"),
        (lambda content: content[:100], "damaged or incomplete"),
        (lambda content: content[:4] + b"TFL2" + content[8:], "TFL3"),
        (lambda content: b"", "TFL3"),
        (lambda content: b"version https://git-lfs.github.com/spec/v1\n", "TFL3"),
    ],
)
def test_a_damaged_tflite_model_is_not_loaded(
    change: Callable[[bytes], bytes],
    expected: str,
    converted: dict[str, bytes],
    checker: Checker,
    tmp_path: Path,
) -> None:
    report = check(checker, tmp_path, {"m.tflite": change(converted["float32"])})
    assert expected in report["presence"].message and not report.passed


def test_a_tflite_model_with_nan(
    converted: dict[str, bytes], checker: Checker, tmp_path: Path
) -> None:
    content = formats.with_other_weights(converted["float32"], lambda w: w.fill(np.nan))
    report = check(checker, tmp_path, {"m.tflite": content})
    assert "NaN in 1 tensors" in report["other_formats"].message and not report.passed


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


def test_inputs_are_features_of_the_schema(
    estimator: object, checker: Checker, tmp_path: Path
) -> None:
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0.schema_pb2 import Schema

    features = "".join(
        f"feature {{ name: {name!r} type: FLOAT }}" for name in ("length", "depth", "widht", "mass")
    )
    contract = ServingContract(schema=text_format.Parse(features, Schema()))
    report = check(checker, tmp_path, {"model.pkl": pickle.dumps(estimator)}, contract)
    assert report.passed
    assert (
        "'width' is no feature of the schema (did you mean 'widht'?)"
        in told(report)["format_inputs"]
    )


def test_a_source_that_samples_is_nobodys_parity(checker: Checker, tmp_path: Path) -> None:
    import tensorflow as tf

    steady = models.serving(lambda x: {"y": x + 1.0}, formats.ROWS)
    noisy = models.serving(lambda x: {"y": x + tf.random.normal(tf.shape(x))}, formats.ROWS)
    models.save(steady, tmp_path / "steady")
    models.save(noisy, tmp_path / "model")
    content = formats.tflite(tmp_path / "steady")
    report = check(checker, tmp_path / "model", {"assets.extra/m.tflite": content})
    assert report["parity"].status == "pass" and "varies" in report["parity"].message


def test_a_tflite_model_that_reaches_files_is_not_run(
    source: Path, checker: Checker, tmp_path: Path
) -> None:
    import tensorflow as tf

    written = tmp_path / "written"
    module = models.serving(
        lambda x: {"y": tf.strings.length(tf.io.read_file(str(written))) + tf.cast(x, tf.int32)},
        formats.ROWS,
    )
    models.save(module, tmp_path / "reads")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "reads"))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS
    ]  # fmt: skip
    report = check(checker, tmp_path / "model", {"tflite": converter.convert()})
    assert "FlexReadFile" in report["embedded_code"].message and not report.passed
    assert report["format_scores"].status == "skip"


def test_a_tflite_model_with_ops_that_the_interpreter_may_lack(
    checker: Checker, tmp_path: Path
) -> None:
    """TensorFlow 2.16 runs its own ops inside of TFLite, 2.21 does not."""
    import tensorflow as tf

    module = models.serving(
        lambda x: {"y": x + tf.random.stateless_normal(tf.shape(x), [1, 2])}, formats.ROWS
    )
    models.save(module, tmp_path / "model")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "model"))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS
    ]  # fmt: skip
    files = {"assets.extra/m.tflite": converter.convert()}
    report = check(checker, tmp_path / "model", files)
    assert report.passed and told(report).keys() <= {"row_independence"}, told(report)
    was_run = "scored" in report["format_scores"].message
    assert was_run or "lacks some of its ops Flex" in report["format_scores"].message
    assert was_run == ("differs" in report["parity"].message)
    gated = ServingContract(signatures=(), parity_atol=1e-3)
    assert checker.validate(str(tmp_path / "model"), gated).passed == was_run


def test_a_function_of_jax_for_tpus_alone(
    good_model: Path, checker: Checker, tmp_path: Path
) -> None:
    def lowered(proto: Any) -> None:
        node = proto.meta_graphs[0].graph_def.node.add(name="jax", op="XlaCallModule")
        node.attr["platforms"].list.s.append(b"TPU")

    shutil.copytree(good_model, tmp_path / "model")
    models.edit_proto(tmp_path / "model", lowered)
    report = checker.validate(str(tmp_path / "model"))
    assert "lowered by JAX for TPU alone" in report["compiled_functions"].message


# ---- pickles -------------------------------------------------------------------------------------


def test_estimators_are_read_and_never_unpickled(
    estimator: object, checker: Checker, tmp_path: Path
) -> None:
    joblib.dump(estimator, tmp_path / "model.joblib")
    joblib.dump(estimator, tmp_path / "small.joblib", compress=3)
    files = {f"{n}/model.pkl": pickle.dumps(estimator, protocol=n) for n in (0, 2, 4, 5)}
    files["model.pkl.z"] = zlib.compress(pickle.dumps(estimator))
    files["no_suffix"] = pickle.dumps(estimator)
    report = check(checker, tmp_path, files)
    assert report.passed, told(report)
    # Where Beam is imported, dill writes some types in a way of its own.
    assert "dill" in told(report).pop("embedded_code", "dill")
    assert told(report).keys() <= {"embedded_code"}
    shown = report.facts["formats"]
    assert len(shown) == 8
    assert all("Pipeline(StandardScaler, MLPClassifier); scikit-learn 1." in each for each in shown)


REFUSED = {
    "posix.system": pickle.dumps(formats.Runs(os.system, "true")),
    "subprocess.Popen": pickle.dumps(formats.Runs(subprocess.Popen, ["true"])),
    "__builtin__.eval": pickle.dumps(formats.Runs(builtins.eval, "1"), protocol=0),
    "operator.attrgetter": pickle.dumps(formats.Runs(operator.attrgetter, "system")),
    "joblib.numpy_pickle.load": pickle.dumps(formats.Runs(joblib.load, "x")),
    # Before the damage it has run.
    "os.system": b"\x80\x04" + formats.text("os") + formats.text("system") + b"\x93",
    # A module's module.
    "numpy.os.system": formats.stacked(
        formats.text("numpy"), formats.text("os.system"), pickle.STACK_GLOBAL
    ),
    # Behind another one, and compressed.
    "timeit.timeit": zlib.compress(b"\x80\x04N." + b"\x80\x04ctimeit\ntimeit\n."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_pickle_that_runs_something_is_refused(
    name: str, checker: Checker, tmp_path: Path
) -> None:
    report = check(checker, tmp_path, {"model.pkl": REFUSED[name]})
    assert name in report["embedded_code"].message
    assert report["embedded_code"].status == "fail"


def test_code_of_others_is_told_of_and_can_be_allowed(checker: Checker, tmp_path: Path) -> None:
    content = formats.stacked(b"cmy_company.steps\nClean\n", b")", pickle.REDUCE)
    files = {"model.pkl": content}
    report = check(checker, tmp_path, files)
    assert report.passed and "my_company.steps.Clean" in report["embedded_code"].message
    assert "allowed_globals=('my_company',)" in report["embedded_code"].remedy
    allowed = ServingContract(allowed_globals=("my_company",))
    assert not checker.validate(str(tmp_path), allowed).warnings
    dangerous = ServingContract(allowed_globals=("os", "posix"))
    assert check(checker, tmp_path, {"model.pkl": REFUSED["posix.system"]}, dangerous).passed
    partial = pickle.dumps(functools.partial(max, 1))
    assert not check(checker, tmp_path, {"model.pkl": partial}).warnings


@pytest.mark.parametrize("content", [b"", b"a forest", b"\x80\x04\x95\x10\x00", b"\x80\x04."])
def test_what_only_has_the_name_of_a_pickle(
    content: bytes, checker: Checker, tmp_path: Path
) -> None:
    report = check(checker, tmp_path, {"model.pkl": content})
    assert "model.pkl: it is no whole pickle" in report["presence"].message


def test_beside_a_saved_model_a_name_is_no_promise(
    good_model: Path, checker: Checker, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(good_model, model)
    files = {"assets.extra/words.pkl": b"a forest", "assets.extra/data": b"\x80\x04\x95\x10."}
    report = check(checker, model, files)
    assert report.passed and "words.pkl" in told(report)["other_formats"]
    assert "data" not in report["other_formats"].message
    damaged = check(checker, model, {"assets.extra/cut.pkl": b"\x80\x04\x95\x10\x00"})
    assert "cut.pkl" in damaged["other_formats"].message and not damaged.passed


# ---- Keras ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["Keras 3", pytest.param("Keras 2", marks=pytest.mark.slow)])
def keras_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model.keras` and `model.h5`, and the SavedModel `source` beside them."""
    folder = tmp_path_factory.mktemp("keras")
    model = formats.keras_3_model() if request.param == "Keras 3" else formats.keras_2_model()
    for name in ("model.keras", "model.h5"):
        model.save(str(folder / name))
    formats.save_keras_source(model, folder / "source")
    return folder


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_keras_files_are_compared_with_their_source(
    keras_model: Path, checker: Checker, tmp_path: Path
) -> None:
    files = {name: (keras_model / name).read_bytes() for name in ("model.keras", "model.h5")}
    contract = ServingContract(source_model=str(keras_model / "source"))
    report = check(checker, tmp_path, files, contract)
    assert report.passed and not report.warnings, told(report)
    shown = " ".join(report.facts["formats"])
    assert "far: float32[None, 2], near: float32[None, 2]" in shown and "HDF5" in shown
    for name in files:
        (measured,) = report.facts["parity"][name]["outputs"].values()
        assert measured["largest"] < 1e-5

    half = check(checker, tmp_path, {"model.keras": files["model.keras"][:-900]}, contract)
    assert "neither a whole zip" in half["other_formats"].message
    half = check(checker, tmp_path, {"model.h5": files["model.h5"][:-900]}, contract)
    assert "HDF5" in half["presence"].message


def test_keras_files_that_bring_code_are_not_loaded(
    keras_model: Path, checker: Checker, tmp_path: Path
) -> None:
    content = (keras_model / "model.keras").read_bytes()

    def naming(module: str, name: str) -> bytes:
        dense = b'"module": "keras.layers", "class_name": "Concatenate"'
        changed = f'"module": "{module}", "class_name": "{name}"'.encode()
        return formats.edited_zip(content, "config.json", lambda c: c.replace(dense, changed))

    refused = check(checker, tmp_path, {"model.keras": naming("shutil", "rmtree")})
    assert "shutil.rmtree" in refused["embedded_code"].message and not refused.passed
    loads = check(checker, tmp_path, {"model.keras": naming("keras.utils", "get_file")})
    assert "keras.utils.get_file" in loads["embedded_code"].message and not loads.passed
    own = check(checker, tmp_path, {"model.keras": naming("my_layers", "Join")})
    assert own.passed and "my_layers.Join" in told(own)["embedded_code"]
    assert "no file in another format that is run" in own["format_scores"].message


@pytest.mark.parametrize("keras", ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)])
def test_a_lambda_layer_is_told_of(keras: str, checker: Checker, tmp_path: Path) -> None:
    layers = pytest.importorskip(keras).layers
    model = pytest.importorskip(keras).Sequential([layers.Input([2]), layers.Lambda(lambda x: x)])
    model.save(str(tmp_path / "model.keras"))
    report = checker.validate(str(tmp_path))
    assert report.passed and "a Lambda layer" in told(report)["embedded_code"]


# ---- ONNX ----------------------------------------------------------------------------------------


def test_an_onnx_model_is_read_without_its_library(
    source: Path, checker: Checker, tmp_path: Path
) -> None:
    contract = ServingContract(source_model=str(source))
    report = check(checker, tmp_path, {"model.onnx": formats.onnx()}, contract)
    assert report.passed and not report.warnings, told(report)
    (shown,) = report.facts["formats"]
    assert "ONNX of by_hand; serving_default(x: float32[None, 4]) → probabilities" in shown
    if "extra `onnx`" in report["format_scores"].message:
        pytest.skip("the extra `onnx` is not installed: read, and not run")
    measured = report.facts["parity"]["model.onnx"]["outputs"]["probabilities"]
    assert measured["largest"] < 1e-5


def test_a_broken_onnx_model(checker: Checker, tmp_path: Path) -> None:
    whole = formats.onnx()
    for content in (whole[:-9], b"", b"<html>", whole[:20]):
        report = check(checker, tmp_path / "cut", {"model.onnx": content})
        assert "model.onnx: it" in report["presence"].message and not report.passed
    lacking = check(checker, tmp_path / "lacking", {"m": formats.onnx(location="weights.bin")})
    assert "weights.bin, where it keeps weights, is missing" in told(lacking)["other_formats"]
    escaping = check(checker, tmp_path / "out", {"m": formats.onnx(location="../../etc/passwd")})
    assert "reads ../../etc/passwd" in told(escaping)["embedded_code"] and not escaping.passed
    foreign = check(checker, tmp_path / "foreign", {"m": formats.onnx(domain="my.ops")})
    assert foreign.passed and "ops of the domain my.ops" in told(foreign)["embedded_code"]


# ---- XGBoost, TensorFlow.js, Orbax ---------------------------------------------------------------


def test_xgboost_models_are_read_without_their_library(checker: Checker, tmp_path: Path) -> None:
    model = formats.xgboost_model()
    files = {"a.json": json.dumps(model).encode(), "b.ubj": formats.ubjson(model)}
    report = check(checker, tmp_path / "whole", files)
    assert report.passed and not report.warnings, told(report)
    for shown in report.facts["formats"]:
        assert "XGBoost 2.1.1, gbtree, binary:logistic, 4 features" in shown
        assert "features length, depth, width, mass" in shown
    for name, content in files.items():
        cut = check(checker, tmp_path / name, {name: content[:-20], "notes.txt": b"-"})
        assert f"{name}: it " in cut["presence"].message
    model["learner"]["feature_names"] = ["length"]
    model["learner"]["gradient_booster"]["model"]["trees"].clear()
    wrong = check(checker, tmp_path / "wrong", {"m.ubj": formats.ubjson(model)})
    assert "1 names for 4 features" in told(wrong)["other_formats"]
    assert "0 trees instead of 1" in told(wrong)["other_formats"]


def test_models_of_xgboost_itself(checker: Checker, tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is no dependency of the tests")
    rows = np.random.default_rng(4).normal(size=(60, 4))
    model = xgboost.XGBClassifier(n_estimators=3).fit(rows, (rows[:, 0] > 0).astype(int))
    for name in ("m.json", "m.ubj"):
        model.save_model(tmp_path / name)
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(model))
    report = checker.validate(str(tmp_path))
    assert report.passed and not report.warnings, told(report)
    assert len(report.facts["formats"]) == 3


def test_a_model_of_tensorflow_js(checker: Checker, tmp_path: Path) -> None:
    """As TFX's rewriter writes it."""
    weights = [
        {"name": "first", "shape": [4, 8], "dtype": "float32"},
        {"name": "last", "shape": [8], "dtype": "float32", "quantization": {"dtype": "uint8"}},
    ]
    shards = ["group1-shard1of2.bin", "group1-shard2of2.bin"]
    index = {
        "format": "graph-model",
        "modelTopology": {"node": []},
        "weightsManifest": [{"paths": shards, "weights": weights}],
    }
    files = {"model.json": json.dumps(index).encode(), shards[0]: b"0" * 100, shards[1]: b"0" * 36}
    whole = check(checker, tmp_path, files)
    assert whole.passed and not whole.warnings, told(whole)
    assert "graph-model with uint8 weights" in whole.facts["formats"][0]
    short = check(checker, tmp_path, {shards[1]: b"0" * 30})
    assert "130 bytes, not 136" in told(short)["other_formats"] and not short.passed
    (tmp_path / shards[1]).unlink()
    assert f"{shards[1]} is missing" in told(checker.validate(str(tmp_path)))["other_formats"]


def test_an_orbax_checkpoint(checker: Checker, tmp_path: Path) -> None:
    tree = json.dumps({"tree_metadata": {"('w',)": {}, "('b',)": {}}}).encode()
    files = {
        "_CHECKPOINT_METADATA": json.dumps({"item_handlers": {"params": "x"}}).encode(),
        "params/_METADATA": tree,
        "params/manifest.ocdbt": b"\x0c\xdb\x3a\x2a" + bytes(40),
        "params/d/0": b"values",
    }
    whole = check(checker, tmp_path / "1", files)
    assert whole.passed and not whole.warnings, told(whole)
    assert any("a tree of 2 arrays" in each for each in whole.facts["formats"])
    (tmp_path / "1/params/d/0").unlink()
    lost = checker.validate(str(tmp_path / "1"))
    assert "the database that it is of" in told(lost)["other_formats"] and not lost.passed
    (tmp_path / "1").rename(tmp_path / "2.orbax-checkpoint-tmp-17")
    unfinished = checker.validate(str(tmp_path))
    assert "was never finished" in unfinished["presence"].message and not unfinished.passed
