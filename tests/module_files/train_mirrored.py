"""Trains the mirrored module on two logical CPUs: ``python -m ... EXAMPLES GRAPH SCHEMA FOLDER``.

A process of its own, because a CPU can only be split before TensorFlow uses it.
"""

import sys
from pathlib import Path

import tensorflow as tf

from tests.module_files.training import Inputs, train_module

if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    *uris, folder = sys.argv[1:]
    train_module("penguin_mirrored", Inputs(*uris), Path(folder))
