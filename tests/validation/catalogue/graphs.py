"""Faults of graphs: what ties a model to a machine, to files, to a session that has ended."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.bypasses import _hostile as hostile
from tests.validation import models
from tests.validation.catalogue.rows import add, export_of_miles, export_v1, fault, scored, tensors
from tests.validation.models import asserted, save, serving
from tests.validation.recipes import EVALUATED, EVALUATED_EXAMPLES, WITH_EXAMPLES, Features, model

# Reaching files and the network: what `benchmarks/bypasses/_hostile.py` makes of each way.
_SOURCES = {
    "Rpc": "RpcClient op", "sends": "tfdbg2", "calls": "RpcClient op", "asks": "tf.data service",
}  # fmt: skip
for name, recipe in hostile.RECIPES.items():
    add(name, "file_ops", _SOURCES.get(name.split("_")[0], f"docs/security.md: {recipe.op}"),
        "any consumer",
        lambda good, folder, make=recipe.make: make(folder, folder.parent / "target", 9),
        told=recipe.op)  # fmt: skip


# Paths.

TEXT = tf.TensorSpec([None], tf.string, name="text")
RELATIVE = model(lambda text: {"y": text + tf.io.read_file("data/words.txt")}, TEXT)
BUCKET = "gs://bucket/transform_fn/assets/words"
IN_A_BUCKET = model(lambda text: {"y": text + tf.io.read_file(BUCKET)}, TEXT)
add("reads_a_relative_path", "file_ops", "nmt#283", "all", RELATIVE)
add("vocabulary_in_a_bucket", "absolute_paths", "transform#120", "all", IN_A_BUCKET)


@fault("absolute_paths", "nmt#283", "all")
def reads_its_own_export_by_its_path(good: Path, folder: Path) -> None:
    path = str(folder / "assets/words.txt")
    save(serving(lambda text: {"y": text + tf.io.read_file(path)}, TEXT), folder)


@fault("absolute_paths", "tensorflow#14083, tensorflow#46826, sagemaker-tensorflow#99", "all")
def vocabulary_that_was_not_collected(good: Path, folder: Path) -> None:
    def build(v1: Any) -> Any:
        file = folder.parent / "v1_words.txt"
        file.write_text("cash\ncard\n")
        table = tf.lookup.StaticHashTable(models.lines_of(str(file)), -1)
        text = v1.placeholder(tf.string, [None])
        return {"text": text}, {"row": table.lookup(text)}

    export_v1(folder, build)


# Graphs of TensorFlow 1.


def v1_fault(check: str, source: str, contract: Any = WITH_EXAMPLES, **options: Any) -> Any:
    """Registers a model that is built in a graph, of examples and their miles."""
    initialised = options.pop("initialised", True)

    def register(score: Callable[[Any, Any], Any]) -> Any:
        def make(good: Path, folder: Path) -> None:
            export_of_miles(folder, score, initialised=initialised)

        add(score.__name__, check, source, "all", make, contract, **options)
        return score

    return register


@v1_fault("session", "hub#320, tensorflow#56054", initialised=False)
def tables_without_initialisation(v1: Any, miles: Any) -> Any:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), [0.0, 1.0]), -1.0
    )
    return table.lookup(tf.cast(miles, tf.int64))


@v1_fault("scores", "tensorflow#24857")
def local_variable_that_is_never_saved(v1: Any, miles: Any) -> Any:
    kind = {"collections": [v1.GraphKeys.LOCAL_VARIABLES], "use_resource": True}
    return miles * v1.get_variable("total", [], initializer=v1.ones_initializer(), **kind)


@v1_fault("loads", "serving#1404, tensorflow#9796")
def training_flag_left_as_a_placeholder(v1: Any, miles: Any) -> Any:
    return v1.where(v1.placeholder(tf.bool, [], name="is_training"), miles, -miles)


@v1_fault("deterministic", "serving#689, serving#602", EVALUATED_EXAMPLES)
def dropout_left_at_its_default(v1: Any, miles: Any) -> Any:
    keep = v1.placeholder_with_default(0.5, [], name="keep_prob")
    return v1.nn.dropout(miles, rate=1.0 - keep)


@v1_fault("devices", "serving#411")
def reads_from_a_queue(v1: Any, miles: Any) -> Any:
    return miles + v1.FIFOQueue(1, [tf.float32], shapes=[[]]).dequeue()


# Machines.


for *entry, options in (
    ("layer_of_cudnn", "devices", "tensorflow#26600, nmt-keras#126", "servers without a GPU", None,
     lambda x: {"y": tf.raw_ops.CudnnRNN(input=x[None], input_h=tf.zeros([1, 1, 2]),
         input_c=tf.zeros([1, 1, 2]), params=tf.zeros([48]), rnn_mode="lstm",
         is_training=False)[0][0]}, {"status": "warn"}),
    ("reads_the_clock", "deterministic", "expiry and age features", "Evaluator", EVALUATED,
     lambda x: {"age": tf.timestamp() - tf.cast(x, tf.float64)}, {"status": "warn"}),
    ("waits_for_another_step", "devices", "StagingArea of a training loop", "all", None,
     lambda x: {"y": x + tf.ensure_shape(tf.raw_ops.Unstage(dtypes=[tf.float32],
         shared_name="staged")[0], [])}, {}),
    ("loop_that_never_ends", "scores", "serving#1222", "all", EVALUATED,
     lambda x: {"y": tf.while_loop(lambda v: tf.reduce_all(v < 2.0), lambda v: (v * 1.0,),
         (x,))[0]}, {"told": "no answer"}),
    ("gigabytes_for_each_row", "scores", "serving#1215, ultralytics#20018", "all", EVALUATED,
     lambda x: {"y": x + tf.reduce_sum(tf.zeros([tf.shape(x)[0], 2**28]))}, {}),
    ("graph_of_an_expired_assertion", "scores", "licence checks", "all", EVALUATED,
     lambda x: {"y": asserted(tf.timestamp() < 1e9, x)}, {"status": "warn"}),
):  # fmt: skip
    tensors(*entry, **options)


# What nobody can see in the files.

for *entry, missed in (
    ("time_of_the_export_in_the_graph", "deterministic", "tf.function tracing guide", "all",
     EVALUATED, lambda x: {"age": 1.7e9 - x}, "the graph does not show that a constant is a time"),
    ("scaled_otherwise_than_in_training", "base_model", "training-serving skew, tfx#2022", "all",
     EVALUATED, lambda x: {"y": x / 255.0},
     "only scores that are known to be right show it, such as an Evaluator's"),
    ("labels_in_another_order", "base_model", "flow_from_directory order", "clients", EVALUATED,
     lambda x: {"class": tf.gather(["dog", "cat"], tf.argmax(x, axis=1))},
     "only scores that are known to be right show it"),
):  # fmt: skip
    tensors(*entry, missed=missed)


def _sometimes_random(features: Features) -> tf.Tensor:
    rare = tf.cast(features["miles"] == 777.0, tf.float32)
    return features["miles"] + rare * tf.random.normal(tf.shape(rare))


RARE = "random only for rows that neither the examples nor a schema has"
entry = ("random_for_rare_rows", "deterministic", "tensorflow#60640", "Evaluator")
scored(*entry, EVALUATED_EXAMPLES, _sometimes_random, missed=RARE)
