"""Good models of the Keras that is active, exported as its guides say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation.good import SERVED, add

WORDS = ["cash", "card", "none"]


def exported(model: Any, folder: Path) -> None:
    """Exports as the guide of this Keras says."""
    if "tf_keras" in tf.keras.Model.__module__:
        model.save(str(folder), save_format="tf")
    else:
        model.export(str(folder), verbose=False)


def network(
    name: str,
    build: Callable[[Any, Any], Any],
    *shape: int | None,
    dtype: str = "float32",
    **more: Any,
) -> None:
    """Registers a network of one input; `build` gets the layers and the input."""

    def make(folder: Path) -> None:
        inputs = tf.keras.Input(list(shape or (4,)), dtype=dtype, name="x")
        exported(tf.keras.Model(inputs, build(tf.keras.layers, inputs)), folder)

    add(f"keras_{name}", make, **more)


def _adapted(layer: Any, values: Any) -> Any:
    layer.adapt(tf.constant(values))
    return layer


TEXT: dict[str, Any] = {"dtype": "string"}
IDS: dict[str, Any] = {"dtype": "int64"}
network("dense", lambda k, x: k.Dense(1)(x))
network("two_heads", lambda k, x: {"a": k.Dense(1)(x), "b": k.Dense(2, "softmax")(x)})
network("dropout", lambda k, x: k.Dropout(0.5)(k.Dense(4)(x)))
network("batch_normalisation", lambda k, x: k.BatchNormalization()(x))
network("layer_normalisation", lambda k, x: k.LayerNormalization()(x))
network("unit_normalisation", lambda k, x: k.UnitNormalization()(x))
network("noise_in_training", lambda k, x: k.GaussianNoise(0.1)(x))
network("regularised", lambda k, x: k.Dense(1, kernel_regularizer="l2")(x))
network("activations", lambda k, x: k.PReLU()(k.LeakyReLU()(k.ELU()(x))))
network("residual", lambda k, x: k.Add()([x, k.Dense(4)(x)]))
network("wide_and_deep", lambda k, x: k.Concatenate()([x, k.Dense(2, "relu")(x)]))
network("lambda_layer", lambda k, x: k.Lambda(lambda v: v * 2.0, output_shape=(4,))(x))
network("reshaped", lambda k, x: k.Reshape([2, 2])(x))
network("shared_layer", lambda k, x: (lambda dense: k.Add()([dense(x), dense(x)]))(k.Dense(2)))
network("convolution", lambda k, x: k.GlobalAveragePooling2D()(k.Conv2D(4, 3)(x)), 16, 16, 3)
network("separable_convolution", lambda k, x: k.Flatten()(k.SeparableConv2D(4, 3)(x)), 8, 8, 3)
network("upsampling", lambda k, x: k.UpSampling2D()(k.MaxPooling2D()(x)), 8, 8, 3)
network("transposed_convolution", lambda k, x: k.Conv2DTranspose(2, 3, 2)(x), 8, 8, 3)
network("images_of_any_size", lambda k, x: k.GlobalMaxPooling2D()(k.Conv2D(2, 3)(x)), None, None, 3)
network("convolution_in_time", lambda k, x: k.GlobalMaxPooling1D()(k.Conv1D(4, 3)(x)), 8, 2)
network("rescaled_and_resized", lambda k, x: k.Resizing(8, 8)(k.Rescaling(1 / 255.0)(x)), 16, 16, 3)
network("lstm", lambda k, x: k.LSTM(4)(x), 6, 2)
network("gru", lambda k, x: k.GRU(4)(x), 6, 2)
network("simple_recurrent", lambda k, x: k.SimpleRNN(4)(x), 6, 2)
network("bidirectional", lambda k, x: k.Bidirectional(k.LSTM(2))(x), 6, 2)
network("attention", lambda k, x: k.MultiHeadAttention(2, 2)(x, x), 6, 4)
network("masked", lambda k, x: k.LSTM(4)(k.Masking(-1.0)(x)), 6, 2)
network("discretised", lambda k, x: k.Discretization([0.2, 0.5])(x))
network("category_encoding", lambda k, x: k.CategoryEncoding(9, "multi_hot")(x), 3, **IDS)
network("embedding", lambda k, x: k.GlobalAveragePooling1D()(k.Embedding(9, 4)(x)), 5, **IDS)
network("integer_lookup", lambda k, x: k.IntegerLookup(vocabulary=[3, 5, 7])(x), 1, **IDS)
network("hashed_with_salt", lambda k, x: k.Hashing(8, salt=1234)(x), 1, **IDS)
network("string_lookup", lambda k, x: k.StringLookup(vocabulary=WORDS)(x), 1, **TEXT)
network("hashed", lambda k, x: k.Hashing(8)(x), 1, **TEXT)


def named(*shape: int | None, **options: Any) -> Callable[[Any], Any]:
    """Registers the decorated function as what builds such a network."""
    return lambda build: network(build.__name__, build, *shape, **options)


@named(8, 8, 3)
def augmented_in_training(k: Any, x: Any) -> Any:
    return k.RandomRotation(0.1)(k.RandomFlip()(x, training=False), training=False)


@named(6, 2)
def sequences_returned(k: Any, x: Any) -> Any:
    return k.TimeDistributed(k.Dense(1))(k.LSTM(4, return_sequences=True)(x))


@named(5, **IDS)
def embedding_with_mask(k: Any, x: Any) -> Any:
    return k.LSTM(2)(k.Embedding(9, 4, mask_zero=True)(x))


@named(1, **TEXT)
def string_lookup_one_hot(k: Any, x: Any) -> Any:
    return k.StringLookup(vocabulary=WORDS, output_mode="multi_hot")(x)


@named(1, **IDS)
def string_lookup_inverted(k: Any, x: Any) -> Any:
    return k.StringLookup(vocabulary=WORDS, invert=True)(x)


@named(1, **TEXT)
def text_vectorised(k: Any, x: Any) -> Any:
    return k.TextVectorization(vocabulary=WORDS, output_sequence_length=4)(x)


@named(1, **TEXT)
def text_as_tf_idf(k: Any, x: Any) -> Any:
    return _adapted(k.TextVectorization(output_mode="tf_idf"), ["cash or card", "card"])(x)


@named()
def normalised(k: Any, x: Any) -> Any:
    return _adapted(k.Normalization(), [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 5.0]])(x)


@lambda make: add("keras_sequential", make)
def _sequential(folder: Path) -> None:
    k = tf.keras
    exported(k.Sequential([k.Input([4]), k.layers.Dense(3, "relu"), k.layers.Dense(1)]), folder)


@lambda make: add("keras_several_inputs", make)
def _several_inputs(folder: Path) -> None:
    k = tf.keras
    inputs = {"miles": k.Input([1], name="miles"), "age": k.Input([1], name="age")}
    both = k.layers.Concatenate()([inputs["miles"], inputs["age"]])
    exported(k.Model(inputs, k.layers.Dense(1)(both)), folder)


@lambda make: add("keras_crossed_features", make)
def _crossed(folder: Path) -> None:
    k = tf.keras
    inputs = [k.Input([1], name="a", dtype="string"), k.Input([1], name="b", dtype="string")]
    exported(k.Model(inputs, k.layers.HashedCrossing(8)(tuple(inputs))), folder)


@lambda make: add("keras_subclassed", make)
def _subclassed(folder: Path) -> None:
    k = tf.keras

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
    k = tf.keras
    model = k.Sequential([k.Input([4]), k.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(tf.zeros([4, 4]), tf.zeros([4, 1]), verbose=0)
    exported(model, folder)


@lambda make: add("keras_fixed_batch", make, SERVED)
def _fixed(folder: Path) -> None:
    k = tf.keras
    inputs = k.Input(batch_shape=[2, 4], name="x")
    exported(k.Model(inputs, k.layers.Dense(1)(inputs)), folder)
