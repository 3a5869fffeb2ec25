"""Runs of `fit`, each in a process of its own, which may be told to kill itself.

Called with: file of examples, "endless" or "finite", the Keras to use ("tensorflow.keras", "keras"
or "tf_keras"), and for each run its checkpoint directory and the batch at whose end to kill it (0:
not). The runs are forked once TensorFlow is imported, which takes longest. Prints for each its exit
code, the weights' digest and the history, as JSON.
"""

import hashlib
import importlib
import json
import os
import signal
import sys
import traceback
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


def fit(path: str, kind: str, package: str, directory: str, batch: str) -> Any:
    """Returns the weights' digest and the history."""
    keras = tf.keras if package == "tensorflow.keras" else importlib.import_module(package)
    model = compiled_model(keras)
    resume = resume_callbacks(
        fn_args(directory),
        callbacks=[keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0)],
        every_steps=EVERY_STEPS,
    )
    kill = at_batch(keras, int(batch), lambda: os.kill(os.getpid(), signal.SIGKILL))
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
    return hashlib.sha256(weights).hexdigest(), logs


def forked(*arguments: str) -> Any:
    """Returns the exit code of a process that calls `fit`, and its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.write(writing, json.dumps(fit(*arguments)).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as result:
        found = json.loads(result.read() or "null")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), found


def main(path: str, kind: str, package: str, *runs: str) -> None:
    pairs = zip(runs[::2], runs[1::2], strict=True)
    print(json.dumps([forked(path, kind, package, *run) for run in pairs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
