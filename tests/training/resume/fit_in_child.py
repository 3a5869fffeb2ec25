"""A run of `fit` in a process of its own, which may be told to kill itself.

Called with: checkpoint directory, file of examples, "endless" or "finite", batch at whose end to
send a signal (0: none), number of the signal, and the Keras to use: "tensorflow.keras", "keras" or
"tf_keras". Prints the weights' digest and the history as JSON.
"""

import hashlib
import importlib
import json
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.keras import is_keras_3
from generic_trainer.data import TensorFlowDatasetOptions, make_dataset_factory
from generic_trainer.training import keras_2_left_alone, resume_callbacks
from tests import helpers
from tests.training.resume.fits import at_batch, fn_args

STEPS_PER_EPOCH, EPOCHS, EVERY_STEPS = 10, 4, 4


def dataset(path: str, kind: str) -> tf.data.Dataset:
    options = TensorFlowDatasetOptions(
        batch_size=10, num_epochs=None if kind == "endless" else 1, label_key="y"
    )
    examples = make_dataset_factory(seed=5)([path], options, helpers.read_schema())
    return examples.map(lambda features, label: (features["x"], label))


def compiled_model(keras: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            *(layers.Dense(8, activation="relu"), layers.BatchNormalization()),
            *(dropout_with_generator(keras), layers.Dense(1)),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def dropout_with_generator(keras: Any) -> Any:
    """Returns a Dropout whose random state can be saved."""
    if is_keras_3(keras.layers.Dropout(0.2)):
        return keras.layers.Dropout(0.2)
    keras.backend.experimental.enable_tf_random_generator()
    try:
        return keras.layers.Dropout(0.2)
    finally:
        keras.backend.experimental.disable_tf_random_generator()


def main(directory: str, path: str, kind: str, batch: str, number: str, package: str) -> None:
    keras = tf.keras if package == "tensorflow.keras" else importlib.import_module(package)
    model = compiled_model(keras)
    resume = resume_callbacks(
        fn_args(directory),
        callbacks=[keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0)],
        every_steps=EVERY_STEPS,
    )
    kill = at_batch(keras, int(batch), lambda: os.kill(os.getpid(), int(number)))
    steps = STEPS_PER_EPOCH if kind == "endless" else None
    with keras_2_left_alone():  # as in a `run_fn`
        history = model.fit(
            dataset(path, kind),
            epochs=EPOCHS,
            steps_per_epoch=steps,
            verbose=0,
            callbacks=[*resume, kill],
        )
    weights = b"".join(np.asarray(each).tobytes() for each in model.get_weights())
    logs = {name: [float(each) for each in values] for name, values in history.history.items()}
    print(json.dumps([hashlib.sha256(weights).hexdigest(), logs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
