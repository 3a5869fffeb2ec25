"""Faults of files: damaged on the way, of another export, of another kind."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from generic_trainer.validation import ValidationReport, write_manifest
from tests.validation import models
from tests.validation.catalogue.rows import add, damaged, edited, fault
from tests.validation.models import ROWS, save, serving
from tests.validation.recipes import WITH_EXAMPLES

SHARD = "variables/variables.data-00000-of-00001"
INDEX = "variables/variables.index"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4bcdabf3da95\nsize 21840\n"


def _asset(folder: Path) -> Path:
    return next((folder / "assets").iterdir())


def _unprotected(folder: Path) -> None:
    (folder / "fingerprint.pb").unlink(missing_ok=True)


def _zeroed(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def _dangling(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.parent / "blobs" / "4bcdabf3da95")


def _as_graph(folder: Path) -> None:
    graph = tf.Graph().as_graph_def()
    node = graph.node.add(name="x", op="Placeholder")
    node.attr["dtype"].type = 1
    (folder / "saved_model.pb").write_bytes(graph.SerializeToString())


def _text_beside(folder: Path) -> None:
    models.write_as_text(folder, "saved_model.pb")
    text = (folder / "saved_model.pb").read_text().replace('"serving_default"', '"predict"')
    (folder / "saved_model.pbtxt").write_text(text)


for name, check, source, edit, options in (
    ("saved_model_pb_is_a_pointer_of_git_lfs", "parses", "transformers#8497, tiger#4",
     lambda f: (f / "saved_model.pb").write_text(POINTER), {}),
    ("weights_are_a_pointer_of_git_lfs", "variables_read", "transformers#8497",
     lambda f: (f / SHARD).write_text(POINTER), {}),
    ("vocabulary_is_a_pointer_of_git_lfs", "assets", "sentencepiece#1054",
     lambda f: _asset(f).write_text(POINTER), {}),
    ("page_of_an_error_instead_of_the_model", "parses", "TransNetV2#6",
     lambda f: (f / "saved_model.pb").write_text("<!DOCTYPE html><title>404</title>"), {}),
    ("frozen_graph_under_the_name_of_a_saved_model", "parses", "serving#491", _as_graph, {}),
    ("text_proto_under_the_name_of_a_binary_one", "parses", "tensorflow-onnx#990",
     lambda f: models.write_as_text(f, "saved_model.pb"), {}),
    ("text_proto_that_does_not_parse", "parses", "tf.io.write_graph(as_text=True)",
     lambda f: (f / "saved_model.pb").rename(f / "saved_model.pbtxt").write_text("graph { "), {}),
    ("binary_and_text_proto_of_two_exports", "leftovers", "SavedModelBuilder.save(as_text)",
     lambda f: (_unprotected(f), shutil.copy(f / "saved_model.pb", f / "keep"), _text_beside(f),
         (f / "keep").rename(f / "saved_model.pb")), {"status": "warn"}),
    ("saved_model_pb_is_a_folder", "presence", "object store placeholders",
     lambda f: ((f / "saved_model.pb").unlink(), (f / "saved_model.pb").mkdir()), {}),
    ("saved_model_pb_is_a_dangling_link", "presence", "cache of Hugging Face pruned",
     lambda f: _dangling(f / "saved_model.pb"), {}),
    ("weights_are_a_dangling_link", "variables_read", "cache of Hugging Face pruned",
     lambda f: _dangling(f / SHARD), {}),
    ("asset_is_a_folder", "assets", "gsutil cp -r of a prefix",
     lambda f: (_asset(f).rename(f / "moved"), (f / "assets" / (f.name + "x")).mkdir()), {}),
    ("checkpoint_instead_of_saved_model", "presence", "serving#601",
     lambda f: ((f / "saved_model.pb").unlink(), (f / "checkpoint").write_text("model-1")), {}),
    ("weights_half_of_zeros", "variables_read", "hub#305", lambda f: _zeroed(f / SHARD), {}),
    ("index_of_variables_of_no_bytes", "variables_read", "models#8451",
     lambda f: (f / INDEX).write_bytes(b""), {}),
    ("index_of_variables_truncated", "variables_read", "blocksparse#27",
     lambda f: (f / INDEX).write_bytes((f / INDEX).read_bytes()[:40]), {}),
    ("shard_under_the_name_of_another", "variables_read", "two writers of one checkpoint",
     lambda f: (f / SHARD).rename(f / "variables/variables.data-00001-of-00002"), {}),
    ("fingerprint_of_another_export", "fingerprint", "tensorflow SavedModel fingerprinting",
     lambda f: _another_fingerprint(f), {}),
    ("left_over_from_an_interrupted_download", "leftovers", "gsutil sliced download",
     lambda f: (f / "variables/variables.index_.gstmp").write_bytes(b"x"), {"status": "warn"}),
    ("left_over_from_an_interrupted_rsync", "leftovers", "rsync",
     lambda f: (f / ".saved_model.pb.Xk3d9A").write_bytes(b"x"), {"status": "warn"}),
    ("vocabulary_with_a_word_twice", "loads", "InitializeTable: duplicate key",
     lambda f: _asset(f).write_text("cash\ncard\ncash\n"), {}),
    ("vocabulary_with_empty_lines_at_its_end", "loads", "InitializeTable: duplicate key",
     lambda f: _asset(f).write_text("cash\ncard\nnone\n\n\n"), {}),
    ("vocabulary_cut_at_the_end_of_a_line", "manifest_matches", "transform#120",
     lambda f: _asset(f).write_text("cash\n"),
     {"missed": "a shorter vocabulary is valid; a manifest or the transform graph shows it"}),
):  # fmt: skip
    damaged(name, check, source, "all", None, edit, **options)


def _another_fingerprint(folder: Path) -> None:
    save(serving(lambda x: {"y": x + 1.0}, ROWS), folder.parent / "another")
    shutil.copy(folder.parent / "another/fingerprint.pb", folder / "fingerprint.pb")


def _linear_with(folder: Path, **shapes: Any) -> None:
    module = models.linear(folder)
    for name, value in shapes.items():
        setattr(module, name, tf.Variable(value, name=name))
    save(module, folder)


def _with_weights(good: Path, folder: Path, **values: Any) -> None:
    """The good model with the variables of another export of the same code."""
    _linear_with(folder.parent / "other", **values)
    shutil.copytree(good, folder)
    _unprotected(folder)
    shutil.rmtree(folder / "variables")
    shutil.copytree(folder.parent / "other/variables", folder / "variables")


WIDER, TRAINED = partial(_with_weights, weight=[[0.5, 0.5]]), partial(_with_weights, bias=[9.0])
NOT_SEEN = "names and shapes are the same, without a fingerprint; a manifest shows it"
add("weights_of_another_architecture", "loads", "tensorflow#24857", "all", WIDER)
add("weights_of_another_run", "manifest_matches", "serving#441", "all", TRAINED, missed=NOT_SEEN)


@fault("loads", "interrupted Saver", "all")
def checkpoint_without_a_variable(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    _unprotected(folder)
    shutil.rmtree(folder / "variables")
    other = tf.train.Checkpoint(bias=tf.Variable([0.25]))
    prefix = other.write(str(folder.parent / "part"))
    (folder / "variables").mkdir()
    for ending in ("index", "data-00000-of-00001"):
        shutil.copy(f"{prefix}.{ending}", folder / f"variables/variables.{ending}")


@fault("manifest_matches", "supply chain", "all", told="added since", status="warn")
def file_added_since_publishing(good: Path, folder: Path) -> None:
    shutil.copytree(good, folder)
    write_manifest(str(folder), ValidationReport("", ()))
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra/plugin.so").write_bytes(b"\x7fELF")


@fault("outputs_vary", "keras#18376", "all", WITH_EXAMPLES, status="warn")
def weights_of_zeros(good: Path, folder: Path) -> None:
    _linear_with(folder, weight=[[0.0]], embedding=[[0.0]] * 4)


def _later_runtime(proto: Any) -> None:
    proto.meta_graphs[0].graph_def.versions.min_consumer = 1 << 20


def _without_function(proto: Any) -> None:
    library = proto.meta_graphs[0].graph_def.library
    gone = next(f for f in library.function if any(n.op == "MatMul" for n in f.node_def))
    library.function.remove(gone)


def _without_init(proto: Any) -> None:
    graph = proto.meta_graphs[0]
    graph.signature_def.pop("__saved_model_init_op")
    graph.collection_def.pop("saved_model_main_op", None)


def _without_saver(proto: Any) -> None:
    proto.meta_graphs[0].ClearField("saver_def")


for entry in (
    ("graph_for_a_later_runtime", "session", "GraphDef min_consumer", "all", None,
     _later_runtime),
    ("function_lost_from_the_library", "loads", "graph stripped by a tool", "all", None,
     _without_function),
    ("initialisation_lost_by_a_graph_editor", "file_ops", "hub#320", "TF Serving, BulkInferrer",
     WITH_EXAMPLES, _without_init),
    ("saver_lost_by_a_graph_editor", "session", "tensorpack#1449", "TF Serving, BulkInferrer",
     WITH_EXAMPLES, _without_saver),
    ("no_tags_at_all", "serve_tag", "tensorpack#1449", "all", None,
     lambda proto: proto.meta_graphs[0].meta_info_def.ClearField("tags")),
    ("two_graphs_of_the_same_tag", "loads", "SavedModelBuilder.add_meta_graph twice", "all", None,
     lambda proto: proto.meta_graphs.add().CopyFrom(proto.meta_graphs[0])),
):  # fmt: skip
    edited(*entry)
