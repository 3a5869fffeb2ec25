"""Models in other formats, as their libraries write them, and broken ones."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.validation.models import save

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


def source(folder: Path) -> Path:
    """Saves the classifier as a SavedModel."""
    return save(network(), folder)


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


class Runs:
    """What calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> Any:
        return self._call


def estimator() -> Any:
    """The estimator of TFX's penguin example for scikit-learn, fitted on named columns."""
    import pandas as pd
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(3).normal(size=(60, len(FEATURES)))
    steps = [("scaler", StandardScaler()), ("estimator", MLPClassifier([8, 8], max_iter=300))]
    model = Pipeline(steps).fit(pd.DataFrame(rows, columns=FEATURES), (rows[:, 0] > 0).astype(int))
    model.feature_keys = list(FEATURES)
    return model


def stacked(*instructions: bytes) -> bytes:
    """Returns a pickle of instructions that no pickler writes."""
    return b"\x80\x04" + b"".join(instructions) + b"."


def text(value: str) -> bytes:
    """The instruction that pushes a text."""
    return pickle.SHORT_BINUNICODE + bytes([len(value)]) + value.encode()


def keras_3_model() -> Any:
    """A model of Keras 3 with two inputs."""
    import keras

    inputs = [keras.Input([2], name=name) for name in ("near", "far")]
    inner = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()(inputs))
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="scores")(inner))


def keras_2_model() -> Any:
    """The same of Keras 2."""
    import tf_keras as keras

    inputs = [keras.Input([2], name=name) for name in ("near", "far")]
    inner = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()(inputs))
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="scores")(inner))


def save_keras_source(model: Any, folder: Path) -> Path:
    """Saves a SavedModel that takes the inputs of a Keras model by their names."""
    specs = {n: tf.TensorSpec([None, 2], tf.float32, name=n) for n in ("near", "far")}

    def serve(near: tf.Tensor, far: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scores": model([near, far], training=False)}

    module = tf.Module()
    module.model, module.weights = model, list(model.variables)
    if hasattr(model.variables[0], "value") and not isinstance(model.variables[0], tf.Variable):
        module.weights = [variable.value for variable in model.variables]
    module.serve = tf.function(serve, input_signature=list(specs.values()), autograph=False)
    return save(module, folder)


def edited_zip(content: bytes, name: str, edit: Callable[[bytes], bytes]) -> bytes:
    """Returns a zip with one of its files edited."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(written, "w") as new:
        for each in old.namelist():
            new.writestr(each, edit(old.read(each)) if each == name else old.read(each))
    return written.getvalue()


# ---- ONNX, as https://github.com/onnx/onnx/blob/main/onnx/onnx.proto describes it ----------------


def _number(value: int) -> bytes:
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def field(number: int, value: int | bytes | str) -> bytes:
    """Returns one field of a protocol buffer."""
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    content = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | 2) + _number(len(content)) + content


def _onnx_tensor(name: str, size: int) -> bytes:
    dims = field(1, field(2, "rows")) + field(1, field(1, size))
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))


def _onnx_node(op: str, inputs: list[str], output: str, domain: str) -> bytes:
    names = b"".join(field(1, each) for each in inputs)
    return names + field(2, output) + field(4, op) + (field(7, domain) if domain else b"")


def onnx(domain: str = "", location: str = "") -> bytes:
    """The classifier in ONNX, its last weights in the file `location` if there is one."""
    module = network()
    names = ("first", "second", "last")
    graph = b""
    inputs = "x"
    for name in names:
        graph += field(1, _onnx_node("MatMul", [inputs, name], f"{name}_product", domain))
        op, inputs = ("Softmax", "probabilities") if name == "last" else ("Relu", f"{name}_relu")
        graph += field(1, _onnx_node(op, [f"{name}_product"], inputs, ""))
    graph += field(2, "classifier")
    for name in names:
        weights = getattr(module, name).numpy()
        tensor = b"".join(field(1, size) for size in weights.shape) + field(2, 1) + field(8, name)
        if location and name == "last":
            tensor += field(13, field(1, "location") + field(2, location)) + field(14, 1)
        else:
            tensor += field(9, weights.tobytes())
        graph += field(5, tensor)
    graph += field(11, _onnx_tensor("x", len(FEATURES)))
    graph += field(12, _onnx_tensor("probabilities", CLASSES))
    opset = field(8, field(1, "") + field(2, 13))
    return field(1, 8) + field(2, "by_hand") + field(7, graph) + opset


# ---- XGBoost -------------------------------------------------------------------------------------


def xgboost_model(names: tuple[str, ...] = FEATURES) -> dict[str, Any]:
    """A model of one tree without a split, as XGBoost 2 saves it."""
    gbtree = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": "1"},
        "tree_info": [0],
        "trees": [{"base_weights": [0.5], "id": 0, "split_indices": [0]}],
    }
    learner = {
        "attributes": {},
        "feature_names": list(names),
        "feature_types": ["float"] * len(names),
        "gradient_booster": {"model": gbtree, "name": "gbtree"},
        "learner_model_param": {"base_score": "5E-1", "num_class": "0", "num_feature": "4"},
        "objective": {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return {"learner": learner, "version": [2, 1, 1]}


def ubjson(value: Any) -> bytes:
    """Returns a value in UBJSON, as XGBoost writes it."""
    if isinstance(value, str):
        return b"S" + _ubjson_text(value)
    if isinstance(value, int):
        return b"L" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"d" + struct.pack(">f", value)
    if isinstance(value, dict):
        return b"{" + b"".join(_ubjson_text(k) + ubjson(v) for k, v in value.items()) + b"}"
    if value and all(isinstance(each, float) for each in value):
        floats = b"".join(struct.pack(">f", each) for each in value)
        return b"[$d#L" + struct.pack(">q", len(value)) + floats
    return b"[#L" + struct.pack(">q", len(value)) + b"".join(map(ubjson, value))


def _ubjson_text(text: str) -> bytes:
    return b"L" + struct.pack(">q", len(text.encode())) + text.encode()
