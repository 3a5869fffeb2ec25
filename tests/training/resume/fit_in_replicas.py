"""Fits on two replicas, straight, and ended and resumed: a program, because of its devices.

Called with a directory, and the step to end at. Prints both results of either Keras as JSON. Each
variable is of another dtype than the steps compute with, of several replicas, and so wrapped twice.
"""

import contextlib
import importlib
import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.training import resume_callbacks
from tests.training.resume.fits import Ended, ending, fn_args, plain, values

EPOCHS, STEPS = 2, 5


def fit(keras: Any, directory: str | None, end: int = 0) -> Any:
    """Returns weights and history; statistics and metrics are each replica's own."""
    tf.keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy("mixed_float16")
    # The default reduction waits for ever on several CPU devices.
    reduction = tf.distribute.ReductionToOneDevice()
    devices = ["CPU:0", "CPU:1"]
    with tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction).scope():
        layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = plain(keras)(layers)
        model.compile("adam", "mse", metrics=["mae"])
    x = np.linspace(0, 1, EPOCHS * STEPS * 6, dtype=np.float32)[:, None]
    x = x[np.random.RandomState(1).permutation(len(x))]
    callbacks = []
    if directory:
        callbacks = [*resume_callbacks(fn_args(directory), every_steps=1), ending(keras, end)]
    data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).batch(6).repeat()
    history = model.fit(
        data, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0, callbacks=callbacks
    ).history
    history = {name: [float(each) for each in values] for name, values in history.items()}
    return values(model), history


def both(name: str, directory: str, end: int) -> tuple[Any, Any]:
    """Returns the results of a fit that is straight, and of one that is ended and resumed."""
    keras = importlib.import_module(name)
    straight = fit(keras, None)
    with contextlib.suppress(Ended):
        fit(keras, directory, end)
    return straight, fit(keras, directory)


def main(directory: str, end: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    names = "keras", "tf_keras"
    print(json.dumps({name: both(name, f"{directory}/{name}", int(end)) for name in names}))


if __name__ == "__main__":
    main(*sys.argv[1:])
