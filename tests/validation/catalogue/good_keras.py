"""Good models of the Keras that is active, exported as its guides say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation.catalogue.good_graphs import SERVED, add

WORDS = ["cash", "card", "none"]


def keras() -> Any:
    """The Keras that is active."""
    return tf.keras


def _is_keras_2() -> bool:
    return "tf_keras" in keras().Model.__module__


def exported(model: Any, folder: Path) -> None:
    """Exports as the guide of this Keras says."""
    if _is_keras_2():
        model.save(str(folder), save_format="tf")
    else:
        model.export(str(folder), verbose=False)


def network(
    name: str,
    build: Callable[[Any, Any], Any],
    shape: tuple[int | None, ...] = (4,),
    dtype: str = "float32",
) -> None:
    """Registers a network of one input; `build` gets the layers and the input."""

    def make(folder: Path) -> None:
        inputs = keras().Input(list(shape), dtype=dtype, name="x")
        exported(keras().Model(inputs, build(keras().layers, inputs)), folder)

    add(f"keras_{name}", make)


def _adapted(layer: Any, values: Any) -> Any:
    layer.adapt(tf.constant(values))
    return layer


IMAGE, ANY_IMAGE = (16, 16, 3), (None, None, 3)
TEXT: dict[str, Any] = {"shape": (1,), "dtype": "string"}
ONE_ID, IDS = ({"shape": (size,), "dtype": "int64"} for size in (1, 5))
network("dense", lambda k, x: k.Dense(1)(x))
network("two_heads", lambda k, x: {"a": k.Dense(1)(x), "b": k.Dense(2, "softmax")(x)})
network("dropout", lambda k, x: k.Dropout(0.5)(k.Dense(4)(x)))
network("batch_normalisation", lambda k, x: k.BatchNormalization()(x))
network("layer_normalisation", lambda k, x: k.LayerNormalization()(x))
network("noise_in_training", lambda k, x: k.GaussianNoise(0.1)(x))
network("activations", lambda k, x: k.PReLU()(k.LeakyReLU()(k.ELU()(x))))
network("lambda_layer", lambda k, x: k.Lambda(lambda v: v * 2.0, output_shape=(4,))(x))
network("shared_layer", lambda k, x: (lambda dense: k.Add()([dense(x), dense(x)]))(k.Dense(2)))
network("convolution", lambda k, x: k.GlobalAveragePooling2D()(k.Conv2D(4, 3)(x)), IMAGE)
network(
    "images_of_any_size", lambda k, x: k.GlobalMaxPooling2D()(k.Conv2D(2, 3)(x)), (None, None, 3)
)
network(
    "rescaled_and_resized", lambda k, x: k.Resizing(8, 8)(k.Rescaling(1 / 255.0)(x)), (16, 16, 3)
)
network(
    "augmented_in_training",
    lambda k, x: k.RandomRotation(0.1)(k.RandomFlip()(x, training=False), training=False),
    (8, 8, 3),
)
network("lstm", lambda k, x: k.LSTM(4)(x), (6, 2))
network("attention", lambda k, x: k.MultiHeadAttention(2, 2)(x, x), (6, 4))
network("masked", lambda k, x: k.LSTM(4)(k.Masking(-1.0)(x)), (6, 2))
network("embedding", lambda k, x: k.GlobalAveragePooling1D()(k.Embedding(9, 4)(x)), **IDS)
network("embedding_with_mask", lambda k, x: k.LSTM(2)(k.Embedding(9, 4, mask_zero=True)(x)), **IDS)
network("string_lookup", lambda k, x: k.StringLookup(vocabulary=WORDS)(x), **TEXT)
network("integer_lookup", lambda k, x: k.IntegerLookup(vocabulary=[3, 5, 7])(x), **ONE_ID)
network(
    "text_vectorised",
    lambda k, x: k.TextVectorization(vocabulary=WORDS, output_sequence_length=4)(x),
    **TEXT,
)
network(
    "text_as_tf_idf",
    lambda k, x: _adapted(k.TextVectorization(output_mode="tf_idf"), ["cash or card", "card"])(x),
    **TEXT,
)
network("hashed", lambda k, x: k.Hashing(8)(x), **TEXT)
network("discretised", lambda k, x: k.Discretization([0.2, 0.5])(x))
network(
    "normalised",
    lambda k, x: _adapted(k.Normalization(), [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 5.0]])(x),
)
network("category_encoding", lambda k, x: k.CategoryEncoding(9, "multi_hot")(x), **IDS)


@lambda make: add("keras_sequential", make)
def _sequential(folder: Path) -> None:
    k = keras()
    exported(k.Sequential([k.Input([4]), k.layers.Dense(3, "relu"), k.layers.Dense(1)]), folder)


@lambda make: add("keras_several_inputs", make)
def _several_inputs(folder: Path) -> None:
    k = keras()
    inputs = {"miles": k.Input([1], name="miles"), "age": k.Input([1], name="age")}
    both = k.layers.Concatenate()([inputs["miles"], inputs["age"]])
    exported(k.Model(inputs, k.layers.Dense(1)(both)), folder)


@lambda make: add("keras_crossed_features", make)
def _crossed(folder: Path) -> None:
    k = keras()
    inputs = [k.Input([1], name="a", dtype="string"), k.Input([1], name="b", dtype="string")]
    exported(k.Model(inputs, k.layers.HashedCrossing(8)(tuple(inputs))), folder)


@lambda make: add("keras_subclassed", make)
def _subclassed(folder: Path) -> None:
    k = keras()

    class Own(k.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = k.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.dense(x)

    model = Own()
    model(tf.zeros([2, 4]))
    exported(model, folder)


@lambda make: add("keras_trained_with_adam", make)
def _trained(folder: Path) -> None:
    k = keras()
    model = k.Sequential([k.Input([4]), k.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(tf.zeros([4, 4]), tf.zeros([4, 1]), verbose=0)
    exported(model, folder)


@lambda make: add("keras_fixed_batch", make, SERVED)
def _fixed(folder: Path) -> None:
    k = keras()
    inputs = k.Input(batch_shape=[2, 4], name="x")
    exported(k.Model(inputs, k.layers.Dense(1)(inputs)), folder)
