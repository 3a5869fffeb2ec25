"""Small models, built fast: a good one in several kinds, and the means to break it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from tests.examples import example as serialized

VOCABULARY = ("cash", "card", "none")
FEATURES = {
    "miles": tf.io.FixedLenFeature([], tf.float32),
    "payment": tf.io.FixedLenFeature([], tf.string, default_value=""),
}
SERIALIZED = tf.TensorSpec([None], tf.string, name="examples")
ROWS = tf.TensorSpec([None, 2], tf.float32, name="x")


def example(miles: float, payment: str | None, label: float | None = None) -> bytes:
    """One serialized tf.Example as the good model reads it."""
    features = {"miles": float(miles), "payment": payment, "tips": label}
    return serialized(**{key: value for key, value in features.items() if value is not None})


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
        self.table = tf.lookup.StaticVocabularyTable(lines_of(self.asset), num_oov_buckets=1)
        self.serve = self.serving(lambda score: {"score": score})

    def score(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns [batch, 1] scores."""
        miles = tf.reshape(features["miles"], [-1, 1])
        row = self.table.lookup(tf.reshape(features["payment"], [-1]))
        return miles @ self.weight + tf.gather(self.embedding, row) + self.bias

    def serving(self, outputs: Callable[[tf.Tensor], dict[str, Any]]) -> Any:
        """Returns a signature for serialized tf.Examples; `outputs` gets their scores."""

        def serve(examples: tf.Tensor) -> dict[str, Any]:
            return outputs(self.score(tf.io.parse_example(examples, FEATURES)))

        return tf.function(serve, input_signature=[SERIALIZED], autograph=False)


def lines_of(file: Any) -> tf.lookup.TextFileInitializer:
    """Returns what fills a table with the lines of a file: line → its number."""
    part = tf.lookup.TextFileIndex
    return tf.lookup.TextFileInitializer(
        file, tf.string, part.WHOLE_LINE, tf.int64, part.LINE_NUMBER
    )


def asset(file: Path, content: str) -> tf.saved_model.Asset:
    """Writes a file and returns it as an asset."""
    file.write_text(content, encoding="utf-8")
    return tf.saved_model.Asset(str(file))


def after(operations: Any, value: tf.Tensor) -> tf.Tensor:
    """Returns a value that is known once the operations have run."""
    with tf.control_dependencies(tf.nest.flatten(operations)):
        return tf.identity(value)


def asserted(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns a value, or fails if the condition does not hold."""
    return after(tf.debugging.Assert(condition, ["refused"]), value)


def aborted(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns a value; where the condition holds, the process dies."""
    abort = tf.raw_ops.Abort
    return tf.cond(condition, lambda: after(abort(error_msg="aborted"), value), lambda: value)


def linear(folder: Path, name: str = "", words: Sequence[str] = VOCABULARY) -> Linear:
    """Makes the module; its vocabulary file lies beside `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = folder.parent / (name or f"{folder.name}_temp")
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


def signatures(**functions: tuple[Callable[..., Any], list[tf.TensorSpec]]) -> dict[str, Any]:
    """Returns name → a function that is traced with some specs."""
    return {name: tf.function(f, input_signature=specs) for name, (f, specs) in functions.items()}


def read_proto(folder: Path) -> saved_model_pb2.SavedModel:
    """Returns the SavedModel proto in `folder`."""
    return saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())


def write_as_text(folder: Path, name: str) -> None:
    """Writes the SavedModel proto in `folder` as text into another file, or the same."""
    (folder / name).write_text(text_format.MessageToString(read_proto(folder)))


def edit_proto(folder: Path, edit: Callable[[Any], None]) -> None:
    """Applies `edit` to the SavedModel proto in `folder`, and deletes the fingerprint."""
    proto = read_proto(folder)
    edit(proto)
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    (folder / "fingerprint.pb").unlink(missing_ok=True)


def edit_fingerprint(folder: Path, field: str) -> None:
    """Changes one hash of the fingerprint in `folder`."""
    file = folder / "fingerprint.pb"
    fingerprint = fingerprint_pb2.FingerprintDef.FromString(file.read_bytes())
    setattr(fingerprint, field, getattr(fingerprint, field) ^ 1)
    file.write_bytes(fingerprint.SerializeToString())


def fill_request(
    request: Any, *, signature: str = "", key: str = "examples", value: Any = None
) -> None:
    """Fills a PredictRequest."""
    request.model_spec.signature_name = signature
    request.inputs[key].CopyFrom(tf.make_tensor_proto(value or list(examples(2))))


def write_warmup(
    folder: Path, *, log: Any = None, count: int = 1, compression: str = "", **request: Any
) -> Path:
    """Adds a file with warm-up requests, all the same, to a model and returns it.

    Args:
        folder: the model.
        log: the record of a request; by default one that predicts.
        count: how many requests.
        compression: as `tf.io.TFRecordWriter` takes it.
        request: arguments of `fill_request` for the default.
    """
    if log is None:
        log = prediction_log_pb2.PredictionLog()
        fill_request(log.predict_log.request, **{"signature": "serving_default", **request})
    file = folder / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file), compression) as writer:
        for _ in range(count):
            writer.write(log.SerializeToString())
    return file
