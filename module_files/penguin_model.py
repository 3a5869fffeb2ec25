"""The small classifier of the penguin module files, and how those train it that use `fit`."""

from __future__ import annotations

import tensorflow as tf
from penguin_features import FEATURE_WIDTHS, SPECIES, read_batches
from tfx.components.trainer.fn_args_utils import FnArgs

EPOCHS = 10


def build_model(hidden_layers: int = 1, learning_rate: float = 1e-2) -> tf.keras.Model:
    """Builds and compiles a dense network.

    Args:
        hidden_layers: Number of layers of 16 units.
        learning_rate: Of Adam.

    Returns:
        A model from the transformed features (a dict) to probabilities float32 [N, 3].
    """
    inputs = {name: tf.keras.Input((width,), name=name) for name, width in FEATURE_WIDTHS.items()}
    hidden = tf.keras.layers.Concatenate()(list(inputs.values()))
    for _ in range(hidden_layers):
        hidden = tf.keras.layers.Dense(16, activation="relu")(hidden)
    probabilities = tf.keras.layers.Dense(len(SPECIES), activation="softmax")(hidden)
    model = tf.keras.Model(inputs, probabilities)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def train(model: tf.keras.Model, fn_args: FnArgs) -> None:
    """Trains for `fn_args.train_steps` batches, split into epochs, and logs for TensorBoard."""
    model.fit(
        read_batches(fn_args, fn_args.train_files),
        epochs=EPOCHS,
        steps_per_epoch=max(1, fn_args.train_steps // EPOCHS),
        validation_data=read_batches(fn_args, fn_args.eval_files, once=True),
        callbacks=[tf.keras.callbacks.TensorBoard(fn_args.model_run_dir, write_graph=False)],
        verbose=2,
    )
