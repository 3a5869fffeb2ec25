"""Small models, built fast: a good one in several kinds, and the means to break it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

VOCABULARY = ("cash", "card", "none")
FEATURES = {
    "miles": tf.io.FixedLenFeature([], tf.float32),
    "payment": tf.io.FixedLenFeature([], tf.string, default_value=""),
}
SERIALIZED = tf.TensorSpec([None], tf.string, name="examples")
ROWS = tf.TensorSpec([None, 2], tf.float32, name="x")


def example(miles: float, payment: str | None, label: float | None = None) -> bytes:
    """One serialized tf.Example as the good model reads it."""
    feature: dict[str, Any] = {"miles": tf.train.Feature(float_list={"value": [miles]})}
    if payment is not None:
        feature["payment"] = tf.train.Feature(bytes_list={"value": [payment.encode()]})
    if label is not None:
        feature["tips"] = tf.train.Feature(float_list={"value": [label]})
    return tf.train.Example(features={"feature": feature}).SerializeToString()


def examples(count: int = 40) -> tuple[bytes, ...]:
    """Varied examples, with a label."""
    return tuple(
        example(0.1 * row, VOCABULARY[row % len(VOCABULARY)], label=0.5 * row)
        for row in range(count)
    )


class Linear(tf.Module):
    """`score = miles * w + embedding[payment] + b`, with the vocabulary in an asset."""

    def __init__(self, vocabulary_file: Path) -> None:
        super().__init__()
        self.weight = tf.Variable([[0.5]], name="weight")
        self.bias = tf.Variable([0.25], name="bias")
        self.embedding = tf.Variable([[0.0], [1.0], [2.0], [3.0]], name="embedding")
        self.asset = tf.saved_model.Asset(str(vocabulary_file))
        self.table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                self.asset,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            num_oov_buckets=1,
        )

    def score(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns [batch, 1] scores."""
        miles = tf.reshape(features["miles"], [-1, 1])
        row = self.table.lookup(tf.reshape(features["payment"], [-1]))
        return miles @ self.weight + tf.gather(self.embedding, row) + self.bias

    @tf.function(input_signature=[SERIALIZED])
    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Scores serialized tf.Examples."""
        return {"score": self.score(tf.io.parse_example(examples, FEATURES))}


def linear(folder: Path, name: str = "", words: Sequence[str] = VOCABULARY) -> Linear:
    """Makes the module; its vocabulary file lies beside `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = folder.parent / (name or f"{folder.name}.vocabulary.txt")
    vocabulary.write_text("\n".join(words) + "\n")
    return Linear(vocabulary)


def save(module: tf.Module, folder: Path, signatures: Any = None) -> Path:
    """Saves the module, with `module.serve` as serving_default unless told otherwise."""
    if signatures is None:
        signatures = {"serving_default": module.serve}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


def good(folder: Path) -> Path:
    """The good model that most broken ones are made from."""
    return save(linear(folder), folder)


def serving(function: Callable[..., Any], *specs: tf.TensorSpec, **tracked: Any) -> tf.Module:
    """A module whose `serve` is `function`, traced with `specs`; `tracked` become attributes."""
    module = tf.Module()
    for name, value in tracked.items():
        setattr(module, name, value)
    module.serve = tf.function(function, input_signature=specs, autograph=False)
    return module


def broken_copy(model: Path, folder: Path, edit: Callable[[Path], None]) -> Path:
    """Copies a model and damages the copy."""
    shutil.copytree(model, folder)
    edit(folder)
    return folder


def edit_proto(
    folder: Path, edit: Callable[[Any], None], *, keep_fingerprint: bool = False
) -> None:
    """Applies `edit` to the SavedModel proto in `folder`, and deletes the fingerprint."""
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    edit(proto)
    file.write_bytes(proto.SerializeToString())
    if not keep_fingerprint:
        (folder / "fingerprint.pb").unlink(missing_ok=True)


def write_warmup(
    folder: Path,
    *,
    signature: str = "serving_default",
    key: str = "examples",
    value: Any = None,
    count: int = 1,
    compression: str = "",
) -> Path:
    """Adds a file with warm-up requests, all the same, to a model and returns it."""
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    request.inputs[key].CopyFrom(tf.make_tensor_proto(value or list(examples(2))))
    log = prediction_log_pb2.PredictionLog(
        predict_log=prediction_log_pb2.PredictLog(request=request)
    )
    file = folder / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file), compression) as writer:
        for _ in range(count):
            writer.write(log.SerializeToString())
    return file
