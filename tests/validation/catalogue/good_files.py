"""Good models of TensorFlow 1, and those whose files others have laid out."""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from generic_trainer.validation import ServingContract, ValidationReport, write_manifest
from tests.validation import models
from tests.validation.catalogue.consumers import logs, several_at_once
from tests.validation.catalogue.good_graphs import add, good
from tests.validation.catalogue.rows import export_of_miles
from tests.validation.models import ROWS, SERIALIZED, save, serving

# Graphs of TensorFlow 1.


def _variable(v1: Any, **options: Any) -> Any:
    return v1.get_variable("w", [], initializer=v1.ones_initializer(), **options)


for name, score in (
    ("v1_constants", lambda v1, miles: miles * 2.0),
    ("v1_variable", lambda v1, miles: miles * _variable(v1, use_resource=True)),
    ("v1_variable_by_reference", lambda v1, miles: miles * _variable(v1, use_resource=False)),
    ("v1_flag_with_a_default",
     lambda v1, miles: v1.where(v1.fill(v1.shape(miles), v1.placeholder_with_default(False, [])),
         -miles, miles)),
    ("v1_while_loop",
     lambda v1, miles: v1.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2.0), (0,
         miles))[1]),
    ("v1_cond",
     lambda v1, miles: v1.cond(v1.reduce_any(miles > 1e9), lambda: -miles, lambda: miles)),
    ("v1_table",
     lambda v1, miles:
         tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1],
         tf.int64), [0.0, 1.0]), -1.0).lookup(tf.cast(miles, tf.int64))),
    ("v1_queue_of_the_training_left_over", lambda v1, miles: _queued(v1, miles)),
):  # fmt: skip
    add(name, functools.partial(export_of_miles, outputs=score))


def _queued(v1: Any, miles: Any) -> Any:
    v1.FIFOQueue(8, [tf.float32], name="input_producer").dequeue()
    return miles + 1.0


def _two(miles: tf.Tensor) -> tf.Tensor:
    return tf.stack([miles, -miles], axis=1)


def _words(miles: tf.Tensor) -> tf.Tensor:
    return tf.strings.as_string(_two(miles))


BULK = ServingContract(signatures=(), consumers=("BulkInferrer",), examples=models.examples())


def _several_questions(folder: Path) -> None:
    export_of_miles(folder, lambda v1, m: {"outputs": m}, method="regress")
    logs(lambda log: several_at_once(log, "regress"))(folder)


for name, method, outputs in (
    ("classifies_with_scores_alone", "classify", lambda v1, m: {"scores": _two(m)}),
    ("classifies_with_classes_alone", "classify", lambda v1, m: {"classes": _words(m)}),
    ("classifies_with_both", "classify", lambda v1, m: {"classes": _words(m), "scores": _two(m)}),
    ("regresses_to_a_vector", "regress", lambda v1, m: {"outputs": m}),
    ("regresses_to_a_column", "regress", lambda v1, m: {"outputs": m[:, None]}),
):
    add(name, functools.partial(export_of_miles, outputs=outputs, method=method), BULK)
add("regresses_among_several_questions", _several_questions, BULK)


# Files as others lay them out.


def laid_out(name: str, change: Callable[[Path], Any]) -> None:
    """Registers a good model whose files are changed in a way that nobody minds."""

    def make(folder: Path) -> None:
        models.good(folder)
        change(folder)

    add(name, make)


def _linked(folder: Path) -> None:
    blobs = folder.parent / "blobs"
    blobs.mkdir(exist_ok=True)
    for number, file in enumerate(path for path in folder.rglob("*") if path.is_file()):
        file.symlink_to(file.rename(blobs / f"{folder.name}-{number}"))


def _as_text(folder: Path) -> None:
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    (folder / "saved_model.pbtxt").write_text(text_format.MessageToString(proto))
    file.unlink()
    (folder / "fingerprint.pb").unlink()


def _older_fingerprint(folder: Path) -> None:
    from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef

    file = folder / "fingerprint.pb"
    fingerprint = FingerprintDef.FromString(file.read_bytes())
    fingerprint.signature_def_hash ^= 1  # TensorFlow 2.12 computed it in another way
    file.write_bytes(fingerprint.SerializeToString())


def _saved_again(folder: Path) -> None:
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["serving_default"]
    tf.saved_model.save(loaded, f"{folder}-again", {"serving_default": signature})
    shutil.rmtree(folder)
    shutil.move(f"{folder}-again", folder)


laid_out("links_to_blobs", _linked)
laid_out("text_proto", _as_text)
laid_out("fingerprint_of_tensorflow_2_12", _older_fingerprint)
laid_out("no_fingerprint", lambda f: (f / "fingerprint.pb").unlink())
laid_out("files_of_a_finder", lambda f: (f / ".DS_Store").write_bytes(b"\0"))
laid_out("model_card", lambda f: (f / "README.md").write_text("---\nlicense: mit\n---\n"))
laid_out("metadata_of_keras", lambda f: (f / "keras_metadata.pb").write_bytes(b"\x0a\x00"))
laid_out("file_of_mlflow", lambda f: (f / "MLmodel").write_text("flavors: {}\n"))
laid_out(
    "labels_in_assets_extra",
    lambda f: ((f / "assets.extra").mkdir(), (f / "assets.extra/labels.txt").write_text("a\nb\n")),
)
laid_out("manifest", lambda f: write_manifest(str(f), ValidationReport("", ())))
laid_out("warm_up_request", lambda f: models.write_warmup(f))
laid_out("warm_up_of_1000_requests", lambda f: models.write_warmup(f, count=1000))
laid_out("warm_up_without_a_request", lambda f: models.write_warmup(f, count=0))
laid_out("loaded_and_saved_again", _saved_again)


@good
def nan_in_unread_variables(folder: Path) -> None:
    """Such as the moments of an optimizer, or a metric without a value."""
    module = models.linear(folder)
    module.slot = tf.Variable([math.nan], name="slot")
    save(module, folder)


@good
def many_weights(folder: Path) -> None:
    module = serving(
        lambda x: {"y": x @ big[:2, :4]}, ROWS, big=(big := tf.Variable(tf.zeros([2000, 1000])))
    )
    save(module, folder)


@good
def nested_modules(folder: Path) -> None:
    outer, inner = tf.Module(), models.linear(folder)
    outer.parts = [{"inner": inner}]
    serve = tf.function(inner.serve, input_signature=[SERIALIZED])
    save(outer, folder, {"serving_default": serve})


@good
def graph_for_training_beside_it(folder: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": x * _variable(v1)})
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["train"], {"serving_default": signature})
        builder.add_meta_graph(["serve"], {"serving_default": signature})
        builder.save()


@good
def example_inside_an_example(folder: Path) -> None:
    """As rankings have it: features of a document in a feature of the list."""
    outer = {"payment": tf.io.FixedLenFeature([], tf.string, default_value="")}
    inner = {"clicks": tf.io.FixedLenFeature([], tf.float32)}
    clicks = tf.train.Feature(float_list={"value": [1.0]})
    empty = tf.train.Example(features={"feature": {"clicks": clicks}})

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        document = tf.io.parse_example(examples, outer)["payment"]
        known = tf.fill(tf.shape(document), empty.SerializeToString())
        parsed = tf.io.parse_example(tf.where(document == "document", document, known), inner)
        return {"score": parsed["clicks"]}

    save(serving(serve, SERIALIZED), folder)
