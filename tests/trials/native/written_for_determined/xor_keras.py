"""XOR by a Keras model without a trial class, as release 0.12 had it, with a mode."""

import argparse
import pathlib

import numpy as np
import tensorflow as tf
from determined import experimental
from determined.experimental.keras import init

RATE = 0.5


def corners(count):
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * count, np.float32)
    return x, np.logical_xor(*x.T).astype(np.float32)[:, None]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="cluster")
    arguments = parser.parse_args()
    context = init(
        config={
            "hyperparameters": {"hidden": 8, "rate": RATE, "global_batch_size": 4},
            "batches_per_step": 50,
            "searcher": {"name": "single", "metric": "val_loss", "max_steps": 4},
        },
        mode=experimental.Mode(arguments.mode),
        context_dir=str(pathlib.Path.cwd()),
    )
    layers = [
        tf.keras.layers.Dense(context.get_hparam("hidden"), "tanh", input_shape=(2,), name="x"),
        tf.keras.layers.Dense(1, activation="sigmoid", name="odd"),
    ]
    model = context.wrap_model(tf.keras.Sequential(layers))
    optimizer = tf.keras.optimizers.Adam(context.get_hparam("rate") / 10)
    model.compile(optimizer, "binary_crossentropy", ["accuracy"])
    x, y = corners(8)
    model.fit(x, y, validation_data=corners(1), epochs=3)
    raise AssertionError("a script ends where it trains")
