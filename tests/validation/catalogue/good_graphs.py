"""Good models without Keras: what graphs of TensorFlow 2 and of TensorFlow 1 rightly do."""

import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.validation import ServingContract, ValidationReport, write_manifest
from tests.examples import example
from tests.validation import models
from tests.validation.broken_rows import observed
from tests.validation.catalogue.consumers import logs, several_at_once
from tests.validation.catalogue.rows import export_of_miles
from tests.validation.good import GOOD, SERVED, TEXT, add, computes, kernel, recipe, serves
from tests.validation.models import ROWS, SERIALIZED, asserted, lines_of, save, serving
from tests.validation.recipes import EVALUATED, Features, scoring


def spec(*dims: int | None, dtype: Any = tf.float32, name: str = "x") -> tf.TensorSpec:
    """An input with these dimensions behind the batch."""
    return tf.TensorSpec([None, *dims], dtype, name=name)


IMAGE = spec(16, 16, 3, name="image")
SOUND = spec(512, name="sound")
IDS = spec(None, dtype=tf.int64, name="ids")
WORDS = ("cash", "card", "none")


def _floats(value: Any) -> tf.Tensor:
    return tf.cast(value, tf.float32)


# Layers and arithmetic.

for *entry, options in (
    ("linear_regression", lambda x, w: x @ w, {"w": kernel(2, 1)}),
    ("network_of_two_layers", lambda x, w, v: tf.nn.relu(x @ w) @ v,
     {"w": kernel(2, 8), "v": kernel(8, 1)}),
    ("convolution", lambda x, w: tf.reduce_mean(tf.nn.conv2d(x, w, 2, "SAME"), [1, 2]), IMAGE,
     {"w": kernel(3, 3, 3, 4)}),
    ("convolution_of_channels_first",
     lambda x, w: tf.reduce_mean(tf.nn.conv2d(x, w, 1, "SAME", "NCHW"), [2, 3]), spec(3, 8, 8),
     {"w": kernel(3, 3, 3, 4)}),
    ("depthwise_convolution", lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
     IMAGE, {"w": kernel(3, 3, 3, 1)}),
    ("dilated_convolution", lambda x, w: tf.nn.conv2d(x, w, 1, "VALID", dilations=2), IMAGE,
     {"w": kernel(3, 3, 3, 2)}),
    ("transposed_convolution",
     lambda x, w: tf.nn.conv2d_transpose(x, w, [tf.shape(x)[0], 32, 32, 2], 2), IMAGE,
     {"w": kernel(3, 3, 2, 3)}),
    ("pooling", lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"), IMAGE, {}),
    ("resized_images", lambda x: tf.image.resize(x, [8, 8]), IMAGE, {}),
    ("cropped_images", lambda x: tf.image.central_crop(x, 0.5), IMAGE, {}),
    ("images_of_bytes", lambda x: _floats(x) / 255.0, spec(8, 8, 3, dtype=tf.uint8), {}),
    ("images_of_any_size", lambda x: tf.reduce_mean(x, [1, 2]), spec(None, None, 3), {}),
    ("segmentation_of_images", lambda x: tf.argmax(x, axis=-1), IMAGE, {}),
    ("spectrogram", lambda x: tf.abs(tf.signal.stft(x, 128, 64)), SOUND, {}),
    ("mel_cepstrum",
     lambda x: tf.signal.mfccs_from_log_mel_spectrograms(tf.math.log(tf.abs(tf.signal.stft(x, 128,
         64)) @ tf.signal.linear_to_mel_weight_matrix(16, 65) + 1e-3)), SOUND, {}),
    ("fourier_transform", lambda x: tf.abs(tf.signal.rfft(x)), SOUND, {}),
    ("attention", lambda x: tf.nn.softmax(x @ tf.transpose(x, [0, 2, 1])) @ x, spec(4, 8), {}),
    ("causal_mask_of_infinities",
     lambda x: tf.nn.softmax(x + tf.linalg.band_part(tf.fill([4, 4], -1e9), 0, -1) * 0.1),
     spec(4, 4), {}),
    ("embeddings_of_ids", lambda i, e: tf.reduce_mean(tf.gather(e, tf.math.floormod(i, 9)), 1), IDS,
     {"e": kernel(9, 4)}),
    ("hashed_ids",
     lambda i, e: tf.gather(e, tf.strings.to_hash_bucket_fast(tf.strings.as_string(i[:, 0]), 9)),
     spec(1, dtype=tf.int64), {"e": kernel(9, 4)}),
    ("positions_and_ids_of_32_bits", lambda i, e: tf.gather(e, tf.math.floormod(i, 9)),
     spec(4, dtype=tf.int32), {"e": kernel(9, 4)}),
    ("factorisation_machine",
     lambda x, w: tf.reduce_sum((x @ w) ** 2 - (x**2) @ (w**2), 1, keepdims=True),
     {"w": kernel(2, 4)}),
    ("two_towers", lambda a, b, u, v: tf.reduce_sum((a @ u) * (b @ v), 1), spec(2, name="query"),
     spec(2, name="item"), {"u": kernel(2, 3), "v": kernel(2, 3)}),
    ("nearest_neighbours", lambda x, w: tf.math.top_k(x @ w, 3).indices, {"w": kernel(2, 20)}),
    ("clusters", lambda x, c: tf.argmin(tf.norm(x[:, None] - c, axis=-1), 1), {"c": kernel(5, 2)}),
    ("tree_of_decisions", lambda x: tf.where(x[:, 0] > 0.5, tf.where(x[:, 1] > 0.5, 3.0, 2.0), 1.0),
     {}),
    ("linear_systems", lambda x, a: tf.linalg.matvec(tf.linalg.inv(a), x),
     {"a": lambda: tf.Variable([[2.0, 0.1], [0.1, 2.0]])}),
    ("cholesky",
     lambda x, a: tf.linalg.cholesky_solve(tf.linalg.cholesky(a), tf.transpose(x))[0] + x[:, 0],
     {"a": lambda: tf.Variable([[2.0, 0.1], [0.1, 2.0]])}),
    ("singular_values", lambda x: tf.linalg.svd(x, compute_uv=False), spec(3, 3), {}),
    ("sums_of_einstein", lambda x, w: tf.einsum("bi,ij->bj", x, w), {"w": kernel(2, 3)}),
    ("sparse_weights",
     lambda x: tf.transpose(tf.sparse.sparse_dense_matmul(tf.sparse.from_dense([[1.0, 0.0], [0.0,
         2.0]]), x, adjoint_b=True)), {}),
):  # fmt: skip
    computes(*entry, **options)

# Control flow and functions.

for *entry, options in (
    ("branch", lambda x: tf.cond(tf.reduce_all(x < 9.0), lambda: x, lambda: x * 1.0), {}),
    ("branch_of_many",
     lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: x * 2.0, lambda: x * 3.0]), {}),
    ("loop", lambda x: tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 0.5), (0, x))[1],
     {}),
    ("loop_until_it_converges",
     lambda x: (tf.while_loop(lambda y: tf.reduce_max(tf.abs(y)) > 1e-3, lambda y: (y * 0.5,), (x
         * 0.0,))[0] + x), {}),
    ("recurrent_cell",
     lambda x, w: tf.scan(lambda h, step: tf.tanh((h + step) @ w), tf.transpose(x, [1, 0, 2]),
         tf.zeros_like(x[:, 0]))[-1], spec(4, 2), {"w": kernel(2, 2)}),
    ("map_over_rows", lambda x: tf.map_fn(tf.reduce_max, x), {}),
    ("vectorised_map", lambda x: tf.vectorized_map(lambda row: row * row[0], x), {}),
    ("array_of_tensors",
     lambda x: tf.transpose(tf.TensorArray(tf.float32, 2).unstack(tf.transpose(x)).stack()), {}),
    ("gradients_of_its_own_score", lambda x: tf.gradients(tf.reduce_sum(x**2), x)[0], {}),
    ("function_in_a_function", tf.function(lambda x: tf.function(lambda y: y + 1.0)(x)), {}),
    ("own_gradient", tf.custom_gradient(lambda x: (x * 2.0, lambda g: g)), {}),
    ("beam_of_candidates",
     lambda x: tf.sort(tf.reshape(x[:, :, None] + x[:, None, :], [tf.shape(x)[0], 4]), axis=1), {}),
    ("assertion_that_holds", lambda x: asserted(tf.rank(x) == 2, x), {}),
    ("shape_asked_of_the_batch", lambda x: tf.reshape(x, [tf.shape(x)[0], 1, 2]), {}),
    ("random_numbers_of_a_fixed_seed", lambda x: x @ tf.random.stateless_normal([2, 4], [7, 7]),
     {}),
):  # fmt: skip
    computes(*entry, **options)


# Types.

for dtype in (tf.bfloat16, tf.float16, tf.float64):
    computes(
        f"computed_in_{dtype.name}",
        lambda x, w, dtype=dtype: tf.cast(tf.cast(x, dtype) @ w, tf.float32),
        w=kernel(2, 3, dtype=dtype),
    )
for dtype in (tf.float16, tf.float64, tf.int8, tf.uint8, tf.int16, tf.int64, tf.bool):
    computes(f"output_of_{dtype.name}", lambda x, dtype=dtype: tf.cast(x, dtype))
for *entry, options in (
    ("weights_of_8_bits", lambda x, w: x @ (_floats(w) * 0.02),
     {"w": lambda: tf.Variable([[3, -7], [120, 5]], dtype=tf.int8)}),
    ("fake_quantisation", lambda x: tf.quantization.fake_quant_with_min_max_args(x, -1, 1), {}),
    ("quantised_and_back",
     lambda x: tf.quantization.quantize_and_dequantize_v2(x, -1.0, 1.0, range_given=True), {}),
    ("variable_of_text", lambda x, words: tf.gather(words, tf.argmax(x, axis=1)),
     {"words": lambda: tf.Variable(["no", "yes"])}),
    ("variable_of_any_shape", lambda x, v: x + tf.reduce_sum(v),
     {"v": lambda: tf.Variable([1.0, 2.0], shape=[None])}),
    ("mask_of_infinities_in_a_variable", lambda x, m: tf.maximum(x, m),
     {"m": lambda: tf.Variable([-np.inf, -np.inf])}),
    ("names_of_classes", lambda x: tf.gather(["no", "yes"], tf.argmax(x, axis=1)), {}),
    ("pictures_as_output",
     lambda x: tf.map_fn(lambda p: tf.io.encode_png(tf.cast(p * 255.0, tf.uint8)), x,
         fn_output_signature=tf.string), IMAGE, {}),
):  # fmt: skip
    computes(*entry, **options)

# Text.

for entry in (
    ("length_of_text", lambda t: tf.strings.length(t), TEXT),
    ("text_cleaned_by_expressions",
     lambda t: tf.strings.regex_replace(tf.strings.lower(t), r"[^a-z ]", ""), TEXT),
    ("bag_of_hashed_words",
     lambda t: tf.reduce_sum(tf.one_hot(tf.strings.to_hash_bucket_fast(tf.strings.split(t),
         8).to_tensor(-1), 8), 1), TEXT),
    ("pairs_of_words",
     lambda t: tf.strings.ngrams(tf.strings.split(t), 2, separator=" ").row_lengths(), TEXT),
    ("letters_of_unicode",
     lambda t: tf.strings.unicode_decode(t, "UTF-8", errors="replace").row_lengths(), TEXT),
    ("text_joined", lambda a, b: tf.strings.join([a, b], " "), spec(dtype=tf.string, name="a"),
     spec(dtype=tf.string, name="b")),
    ("images_decoded_from_bytes",
     lambda t: tf.map_fn(lambda b: tf.image.resize(tf.io.decode_image(b, expand_animations=False),
         [8, 8]), t, fn_output_signature=tf.float32), spec(dtype=tf.string, name="image_bytes")),
):  # fmt: skip
    computes(*entry)

# Tables and assets.


def _constants() -> Any:
    values = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(3, dtype=tf.int64))
    return tf.lookup.StaticHashTable(values, -1)


for *entry, options in (
    ("table_of_constants", lambda t, table: table.lookup(t), TEXT, {"table": _constants}),
    ("table_with_buckets", lambda t, table: table.lookup(t), TEXT,
     {"table": lambda: tf.lookup.StaticVocabularyTable(tf.lookup.KeyValueTensorInitializer(WORDS,
         tf.range(3, dtype=tf.int64)), 2)}),
    ("table_of_2000_words", lambda t, table: table.lookup(t), TEXT,
     {"table": lambda: tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([f"/word/{n}"
         for n in range(2000)], tf.range(2000)), -1)}),
):  # fmt: skip
    computes(*entry, **options)


def _filled(table: Any) -> Any:
    table.insert(["cash", "card"], tf.constant([1, 2], tf.int64))
    return table


for *entry, options in (
    ("table_that_was_filled", lambda t, table: table.lookup(t), TEXT,
     {"table": lambda: _filled(tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0))}),
    ("dense_table_that_was_filled", lambda t, table: table.lookup(t), TEXT,
     {"table": lambda: _filled(tf.lookup.experimental.DenseHashTable(tf.string, tf.int64, 0,
         empty_key="", deleted_key="-"))}),
):  # fmt: skip
    computes(*entry, **options)


def _with_file(content: str, *columns: Any) -> Callable[[Path], None]:
    """A recipe of a model with a table from a file."""

    def make(folder: Path) -> None:
        asset = models.asset(folder.parent / f"{folder.name}.txt", content)
        filled = tf.lookup.TextFileInitializer(asset, *columns) if columns else lines_of(asset)
        table = tf.lookup.StaticHashTable(filled, -1)
        module = serving(lambda t: {"y": table.lookup(t)}, TEXT, table=table, asset=asset)
        save(module, folder)

    return make


add("vocabulary_in_a_file", _with_file("cash\ncard\n"))
add("vocabulary_with_line_ends_of_windows", _with_file("cash\r\ncard\r\n"))
add("vocabulary_without_a_last_line_end", _with_file("cash\ncard"))
add("vocabulary_in_columns", _with_file("cash\t7\ncard\t9\n", tf.string, 0, tf.int64, 1))
add("vocabulary_of_paths", _with_file("/etc/passwd\n/usr/bin\n"))
add("vocabulary_of_unicode", _with_file("東京\nZürich\n🚖\n"))


@recipe
def asset_that_is_only_for_people(folder: Path) -> None:
    notes = models.asset(folder.parent / "readme.txt", "trained in May")
    save(serving(lambda x: {"y": x}, ROWS, notes=notes), folder)


# Rows of examples, as a schema has them.


def scores(
    name: str, score: Callable[[Features], Any], contract: Any = EVALUATED, **features: Any
) -> None:
    """Registers a model that parses examples."""
    add(name, lambda folder: save(scoring(score, **features), folder), contract)


LIST = {"company": tf.io.VarLenFeature(tf.int64)}
RAGGED = {"company": tf.io.RaggedFeature(tf.int64)}
PADDED = {"company": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
scores("examples_parsed", lambda f: f["miles"])
scores("lists_as_sparse_tensors", lambda f: _floats(tf.sparse.reduce_sum(f["company"], 1)), **LIST)
scores("lists_as_ragged_tensors", lambda f: _floats(tf.reduce_sum(f["company"], 1)), **RAGGED)
scores("lists_padded", lambda f: _floats(tf.reduce_sum(f["company"], 1)), **PADDED)
scores(
    "mean_of_lists_that_may_be_empty",
    lambda f: tf.math.divide_no_nan(
        _floats(tf.reduce_sum(f["company"], 1)), _floats(f["company"].row_lengths())
    ),
    **RAGGED,
)
scores("logarithm_of_what_is_positive", lambda f: tf.math.log1p(tf.maximum(f["miles"], 0.0)))
scores("scaled_by_constants", lambda f: (f["miles"] - 7.0) / 3.0)
scores(
    "clipped_ids",
    lambda f: tf.reduce_sum(
        tf.gather(tf.range(10.0), tf.clip_by_value(tf.sparse.to_dense(f["company"]), 0, 9)), 1
    ),
    **LIST,
)
scores("words_in_buckets", lambda f: _floats(tf.strings.to_hash_bucket_fast(f["payment"], 16)))


def _last_of_a_list(features: Features) -> tf.Tensor:
    """The value that an id names in a list of the same row, as where padding ends."""
    last = tf.reduce_max(tf.sparse.to_dense(features["company"]), axis=1)
    known = tf.reduce_all(last < tf.size(features["payment"], tf.int64) + 5)
    return asserted(known, features["miles"])


SEEN = observed('name: "company" num_stats { max: 6000', "num_non_missing: 9999 max_num_values: 7")
scores("place_in_a_list_of_the_row", _last_of_a_list, SEEN, **LIST)


# Outputs and signatures for servers alone.

for *entry, options in (
    ("fixed_batch_of_images", lambda x: tf.reduce_mean(_floats(x), [1, 2]),
     tf.TensorSpec([1, None, None, 3], tf.uint8, name="input_tensor"), {"contract": SERVED}),
    ("scalar_for_a_batch", tf.reduce_mean, {"contract": SERVED}),
    ("scalar_of_text", lambda x: tf.constant("taxi"), {"contract": SERVED}),
    ("sampled_answers", lambda x: tf.random.categorical(x, 2), {"contract": SERVED}),
    ("dropout_for_uncertainty", lambda x: tf.nn.dropout(x, 0.5), {"contract": SERVED}),
    ("shares_of_a_list", lambda x: tf.nn.softmax(x, axis=0), {"contract": SERVED}),
    ("nan_for_what_is_unknown", lambda x: tf.where(x > 0.5, x, math.nan), {"contract": SERVED}),
    ("switch_beside_the_rows", lambda x, double: tf.cond(double, lambda: x * 2.0, lambda: x), ROWS,
     tf.TensorSpec([], tf.bool, name="double"), {"contract": SERVED}),
    ("number_of_answers_as_an_input", lambda x, k: tf.math.top_k(x, k).indices, ROWS,
     tf.TensorSpec([], tf.int32, name="k"), {"contract": SERVED}),
    ("boxes_that_do_not_overlap", lambda b, s: tf.image.non_max_suppression(b, s, 3),
     spec(4, name="boxes"), spec(name="scores"), {"contract": SERVED}),
    ("rows_above_a_threshold", lambda x: tf.boolean_mask(x, x[:, 0] > 0.5), {"contract": SERVED}),
    ("age_by_the_clock", lambda x: tf.timestamp() - tf.cast(x, tf.float64), {"contract": SERVED}),
    ("counts_its_calls_on_purpose", lambda x, n: x + _floats(n.assign_add(1)),
     {"n": lambda: tf.Variable(0), "contract": SERVED}),
):  # fmt: skip
    computes(*entry, **options)


def _signatures(**functions: tuple[Callable[..., Any], list[tf.TensorSpec]]) -> Any:
    """A recipe of a model with these signatures beside its own."""

    def make(folder: Path) -> None:
        module, others = models.linear(folder), models.signatures(**functions)
        save(module, folder, {"serving_default": module.serve, **others})

    return make


add("signature_of_metadata", _signatures(labels=(lambda: {"labels": tf.constant(["a"])}, [])))
add("signature_of_raw_tensors", _signatures(raw=(lambda x: {"y": x}, [ROWS])))
add("signature_called_predict", _signatures(predict=(lambda x: {"y": x}, [spec(2)])))
add("signature_of_embeddings", _signatures(embed=(lambda x: {"e": x, "n": x[:, 0]}, [ROWS])))
add("signature_of_a_total", _signatures(total=(lambda x: {"t": tf.reduce_sum(x)}, [ROWS])))
add(
    "signature_of_ragged_lists",
    _signatures(split=(lambda t: {"words": tf.strings.split(t)}, [TEXT])),
)


# Graphs of TensorFlow 1.


def _variable(v1: Any, **options: Any) -> Any:
    return v1.get_variable("w", [], initializer=v1.ones_initializer(), **options)


for name, outputs in (
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
    add(name, partial(export_of_miles, outputs=outputs))


def _queued(v1: Any, miles: Any) -> Any:
    v1.FIFOQueue(8, [tf.float32], name="input_producer").dequeue()
    return miles + 1.0


def _two(miles: tf.Tensor) -> tf.Tensor:
    return tf.stack([miles, -miles], axis=1)


BULK = ServingContract(signatures=(), consumers=("BulkInferrer",), examples=models.examples())


def _answers(name: str, method: str, outputs: Callable[[tf.Tensor], dict[str, Any]]) -> None:
    """Registers a model whose signature classifies or regresses."""
    make = partial(export_of_miles, outputs=lambda v1, miles: outputs(miles), method=method)
    add(name, make, BULK)


def _classes(miles: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"classes": tf.strings.as_string(_two(miles))}


_answers("classifies_with_scores_alone", "classify", lambda m: {"scores": _two(m)})
_answers("classifies_with_classes_alone", "classify", _classes)
_answers("classifies_with_both", "classify", lambda m: {**_classes(m), "scores": _two(m)})
_answers("regresses_to_a_vector", "regress", lambda m: {"outputs": m})
_answers("regresses_to_a_column", "regress", lambda m: {"outputs": m[:, None]})


@lambda make: add(make.__name__, make, BULK)
def regresses_among_several_questions(folder: Path) -> None:
    GOOD["regresses_to_a_vector"][0](folder)
    logs(lambda log: several_at_once(log, "regress"))(folder)


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
    models.write_as_text(folder, "saved_model.pbtxt")
    (folder / "saved_model.pb").unlink()
    (folder / "fingerprint.pb").unlink()


def _saved_again(folder: Path) -> None:
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["serving_default"]
    tf.saved_model.save(loaded, f"{folder}-again", {"serving_default": signature})
    shutil.rmtree(folder)
    shutil.move(f"{folder}-again", folder)


laid_out("links_to_blobs", _linked)
laid_out("text_proto", _as_text)
# TensorFlow 2.12 computed this hash in another way.
OLDER = partial(models.edit_fingerprint, field="signature_def_hash")
laid_out("fingerprint_of_tensorflow_2_12", OLDER)
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


@recipe
def nan_in_unread_variables(folder: Path) -> None:
    """Such as the moments of an optimizer, or a metric without a value."""
    module = models.linear(folder)
    module.slot = tf.Variable([math.nan], name="slot")
    save(module, folder)


@serves(big=lambda: tf.Variable(tf.zeros([2000, 1000])))
def many_weights(x: tf.Tensor, big: tf.Variable) -> tf.Tensor:
    return x @ big[:2, :4]


@recipe
def nested_modules(folder: Path) -> None:
    outer, inner = tf.Module(), models.linear(folder)
    outer.parts = [{"inner": inner}]
    serve = tf.function(inner.serve, input_signature=[SERIALIZED])
    save(outer, folder, {"serving_default": serve})


@recipe
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


@recipe
def example_inside_an_example(folder: Path) -> None:
    """As rankings have it: features of a document in a feature of the list."""
    outer = {"payment": tf.io.FixedLenFeature([], tf.string, default_value="")}
    inner = {"clicks": tf.io.FixedLenFeature([], tf.float32)}

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        document = tf.io.parse_example(examples, outer)["payment"]
        known = tf.fill(tf.shape(document), example(clicks=1.0))
        parsed = tf.io.parse_example(tf.where(document == "document", document, known), inner)
        return {"score": parsed["clicks"]}

    save(serving(serve, SERIALIZED), folder)
