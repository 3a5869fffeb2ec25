"""Models of every kind that users export. None of them may be rejected."""

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from generic_trainer.validation import ServingContract
from tests.validation import models, recipes
from tests.validation.catalogue.rows import export_v1
from tests.validation.models import FEATURES, ROWS, SERIALIZED, save, serving
from tests.validation.recipes import EVALUATED

Make = Callable[[Path], Any]
SERVED = ServingContract(signatures=(), consumers=("Pusher",))
TEXT = tf.TensorSpec([None], tf.string, name="text")

# Name → how it is made, and who reads it in its pipeline. The catalogue adds more to it.
GOOD: dict[str, tuple[Make, ServingContract]] = {}


def add(name: str, make: Make, contract: ServingContract = EVALUATED) -> None:
    """Registers a good model."""
    assert name not in GOOD, name
    GOOD[name] = make, contract


def recipe(make: Make) -> Make:
    """Registers a recipe under its function's name."""
    add(make.__name__, make)
    return make


def computes(
    name: str,
    function: Callable[..., Any],
    *specs: tf.TensorSpec,
    contract: ServingContract = EVALUATED,
    **tracked: Callable[[], Any],
) -> None:
    """Registers a model that takes tensors; `tracked` make its variables, tables and the like."""

    def outputs(*args: tf.Tensor, **has: Any) -> dict[str, Any]:
        made = function(*args, **has)
        return made if isinstance(made, dict) else {"y": made}

    make = recipes.model(outputs, *specs, **tracked)
    add(name, lambda folder: make(folder, folder), contract)


def serves(*specs: tf.TensorSpec, **options: Any) -> Callable[[Any], Any]:
    """Registers the decorated function as such a model."""
    return lambda function: computes(function.__name__, function, *specs, **options)


def kernel(*shape: int, dtype: Any = tf.float32) -> Callable[[], tf.Variable]:
    """What makes a variable with some numbers."""
    return lambda: tf.Variable(tf.cast(tf.random.stateless_normal(shape, [1, 2]) / 4, dtype))


@recipe
def module_with_vocabulary(folder: Path) -> None:
    models.good(folder)


@recipe
def vocabulary_of_the_transform_graph(folder: Path) -> None:
    save(models.linear(folder, "payments.txt"), folder)


@recipe
def counts_its_requests(folder: Path) -> None:
    """State that changes with every call, and stays as large as it is."""
    count = tf.Variable(0, dtype=tf.int64)
    seen = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        count.assign_add(tf.size(examples, tf.int64))
        seen.insert(["requests"], [count])
        return {"score": tf.io.parse_example(examples, FEATURES)["miles"]}

    save(serving(serve, SERIALIZED, count=count, seen=seen), folder)


def _scores(model: Any) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Returns a function that calls a network with tf.Examples."""

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        miles = tf.io.parse_example(examples, FEATURES)["miles"]
        return {"outputs": model(tf.stack([miles, miles], axis=1), training=False)}

    return serve


@recipe
def keras_2_save(folder: Path) -> None:
    _network("tf_keras").save(str(folder), save_format="tf")


@recipe
def keras_2_with_serving_function(folder: Path) -> None:
    model = _network("tf_keras")
    serve = tf.function(_scores(model), input_signature=[SERIALIZED])
    model.save(str(folder), save_format="tf", signatures={"serving_default": serve})


@recipe
def keras_3_export(folder: Path) -> None:
    _network("keras").export(str(folder), verbose=False)


@recipe
def keras_3_export_archive(folder: Path) -> None:
    import keras

    model = _network("keras")
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", _scores(model), input_signature=[SERIALIZED])
    archive.add_endpoint("raw", model.call, input_signature=[ROWS])
    archive.write_out(str(folder), verbose=False)


@recipe
def estimator_export(folder: Path) -> None:
    """A premade classifier, with its classify, predict and regress signatures."""
    from generic_trainer.estimator import tf as tf_with_estimator

    columns = [
        tf.feature_column.numeric_column("miles"),
        tf.feature_column.indicator_column(
            tf.feature_column.categorical_column_with_vocabulary_list("payment", models.VOCABULARY)
        ),
    ]
    classifier = tf_with_estimator.estimator.LinearClassifier(columns, str(folder.parent / "run"))
    rows = {"miles": [[1.0], [2.0]], "payment": [[value] for value in models.VOCABULARY[:2]]}
    classifier.train(lambda: tf.data.Dataset.from_tensors((rows, [[0], [1]])), steps=1)
    receive = tf_with_estimator.estimator.export.build_parsing_serving_input_receiver_fn(FEATURES)
    classifier.export_saved_model(str(folder.parent / "export"), receive)
    shutil.move(next((folder.parent / "export").iterdir()), folder)


@recipe
def frozen_session_export(folder: Path) -> None:
    """A V1 graph with a table, and classify and predict signatures, written in a session."""
    vocabulary = folder.parent / "v1_vocabulary.txt"
    vocabulary.write_text("\n".join(models.VOCABULARY) + "\n")

    def build(v1: Any) -> dict[str, Any]:
        examples = v1.placeholder(tf.string, [None], name="input_example_tensor")
        parsed = v1.io.parse_example(examples, FEATURES)
        asset = tf.constant(str(vocabulary))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        table = tf.lookup.StaticVocabularyTable(models.lines_of(asset), 1)
        weight = v1.get_variable("weight", [], initializer=v1.ones_initializer(), use_resource=True)
        row = tf.cast(table.lookup(parsed["payment"]), tf.float32)
        score = tf.sigmoid(weight * parsed["miles"] + row)
        scores = tf.stack([1.0 - score, score], axis=1)
        classes = tf.tile(tf.constant([["0", "1"]]), [tf.shape(score)[0], 1])
        saved, probabilities = v1.saved_model, {"probabilities": scores}
        return {
            "serving_default": saved.classification_signature_def(examples, classes, scores),
            "predict": saved.predict_signature_def({"examples": examples}, probabilities),
        }

    export_v1(folder, build, assets=True)


@recipe
def several_heads_and_strings(folder: Path) -> None:
    module = models.linear(folder)
    module.serve = module.serving(
        lambda score: {
            "score": score,
            "class": tf.where(score[:, 0] > 1.0, "high", "low"),
            "class_id": tf.cast(score[:, 0] > 1.0, tf.int64),
            "embedding": tf.concat([score, -score, score * 2.0], axis=1),
        }
    )
    save(module, folder)


@recipe
def raw_and_serialized_signatures(folder: Path) -> None:
    module = models.linear(folder)
    specs = {
        "miles": tf.TensorSpec([None, 1], tf.float32, name="miles"),
        "payment": tf.TensorSpec([None, 1], tf.string, name="payment"),
    }

    @tf.function(input_signature=[specs])
    def raw(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"score": module.score(features)}

    save(module, folder, {"serving_default": module.serve, "raw": raw})


@serves(TEXT)
def text_classifier(text: tf.Tensor) -> dict[str, tf.Tensor]:
    """One string input that is raw text and no tf.Example."""
    return {"length": tf.cast(tf.strings.length(text), tf.float32)}


@recipe
def vocabulary_in_records(folder: Path) -> None:
    """A V1 graph whose table is filled from a dataset over an asset, as Transform can write it."""
    file = folder.parent / "words.gz"
    with tf.io.TFRecordWriter(str(file), "GZIP") as writer:
        for word in models.VOCABULARY:
            writer.write(word.encode())

    def build(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        text = v1.placeholder(tf.string, [None], name="text")
        asset = tf.constant(str(file))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        words = tf.data.TFRecordDataset(asset, "GZIP").enumerate()
        words = words.map(lambda row, word: (word, row))
        table = tf.lookup.StaticHashTable(tf.data.experimental.DatasetInitializer(words), -1)
        return {"text": text}, {"row": table.lookup(text)}

    export_v1(folder, build, assets=True)


@recipe
def reads_its_own_asset(folder: Path) -> None:
    asset = models.asset(folder.parent / "banner.txt", "hello")

    def serve(text: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"text": tf.strings.join([tf.io.read_file(asset.asset_path), text])}

    save(serving(serve, TEXT, asset=asset), folder)


@serves(TEXT)
def cached_in_memory(text: tf.Tensor) -> dict[str, tf.Tensor]:
    total = tf.data.Dataset.range(3).cache().reduce(tf.constant(0, tf.int64), tf.add)
    return {"text": tf.strings.join([text, tf.strings.as_string(total)])}


@serves()
def no_variables(x: tf.Tensor) -> tf.Tensor:
    return x * 2.0


@serves(tf.TensorSpec([None, 16, 16, 3], tf.float32, name="image"), filters=kernel(3, 3, 3, 4))
def images_in_half_precision(image: tf.Tensor, filters: tf.Variable) -> dict[str, tf.Tensor]:
    pixels = tf.cast(image, tf.bfloat16)
    found = tf.nn.conv2d(pixels, tf.cast(filters, tf.bfloat16), 2, "SAME")
    return {"logits": tf.cast(tf.reduce_mean(found, axis=[1, 2]), tf.float32)}


@serves()
def branches_and_loops(x: tf.Tensor) -> tf.Tensor:
    total = tf.map_fn(lambda row: tf.reduce_sum(row), x)
    steps = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 1.5), (0, total))[1]
    return tf.where(steps > 1.0, steps, tf.zeros_like(steps))


@serves(TEXT)
def sequences_padded_to_the_longest(examples: tf.Tensor) -> dict[str, tf.Tensor]:
    letters = tf.strings.unicode_split(examples, "UTF-8", errors="ignore")
    return {"letters": letters.to_tensor(""), "count": letters.row_lengths()}


def _network(name: str) -> Any:
    """A functional model of this Keras with a BatchNormalization and a Dropout."""
    keras = importlib.import_module(name)
    keras.utils.set_random_seed(1)
    inputs = keras.Input([2], name="x")
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(4, "relu")(inputs))
    outputs = keras.layers.Dense(1)(keras.layers.Dropout(0.5)(hidden))
    return keras.Model(inputs, outputs)


# Those of the default tests.
RECIPES = dict(GOOD)
