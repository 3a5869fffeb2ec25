"""Trains under a strategy on two logical CPUs and exports: a program, because of the CPUs.

Usage: ``python -m tests.training.export.train_distributed STRATEGY DIRECTORY KERAS``; it
writes ``DIRECTORY/<keras>``, by that Keras (a module's name), and its own predictions beside it.
"""

import importlib
import json
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.training import export_model, keras_2_left_alone
from tests.processes import free_ports
from tests.training.export import taxi


def strategy_called(name: str) -> tf.distribute.Strategy:
    """Returns a strategy over two replicas in this process."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    address = f"localhost:{free_ports(1)[0]}"
    task = {"type": "worker", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": task})
    return tf.distribute.MultiWorkerMirroredStrategy()


def build(keras: Any) -> Any:
    """A model with statistics kept per replica, and with a device in its own code."""

    class Pinned(keras.layers.Layer):
        @tf.function
        def inner(self, inputs: tf.Tensor) -> tf.Tensor:
            with tf.device("/CPU:1"):
                return tf.sin(inputs)

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            with tf.device("/CPU:1"):
                return self.inner(2.0 * inputs)

    inputs = {"miles": keras.Input((1,), name="miles")}
    hidden = keras.layers.BatchNormalization(synchronized=True)(inputs["miles"])
    hidden = keras.layers.Dense(4)(Pinned()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def main(strategy_name: str, directory: str, name: str) -> None:
    """Trains, exports within the strategy's scope, and predicts."""
    strategy = strategy_called(strategy_name)
    columns = taxi.rows(8)
    miles, tips = (tf.constant(columns[name])[:, tf.newaxis] for name in ("miles", "tips"))
    data = tf.data.Dataset.from_tensor_slices(({"miles": miles}, tips)).batch(4)
    with strategy.scope(), keras_2_left_alone():  # as in a `run_fn`
        model = build(importlib.import_module(name))
        model.fit(data, epochs=2, verbose=0)
        export_model(model, os.path.join(directory, name), schema=taxi.schema())
    np.save(os.path.join(directory, f"{name}.npy"), model({"miles": miles}, training=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
