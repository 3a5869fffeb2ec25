"""Digits as a TF1 graph: metrics that count over a validation, and data that are downloaded."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import generic_trainer.trials as pedl
from generic_trainer.trials.tensorflow import TensorFlowTrial

downloads = []


def download_data(experiment_config, hparams):
    assert experiment_config["data"] == {}
    directory = tempfile.mkdtemp()
    downloads.append(directory)
    images, labels = load_digits(return_X_y=True)
    np.savez(os.path.join(directory, "digits.npz"), images=images / 16, labels=labels)
    return directory


def make_data_loaders(experiment_config, hparams):
    read = np.load(os.path.join(pedl.get_download_data_dir(), "digits.npz"))
    images, labels = read["images"].astype(np.float32), read["labels"].astype(np.int64)
    size = hparams["batch_size"]
    training = tf.data.Dataset.from_tensor_slices((images[300:], labels[300:]))
    validation = tf.data.Dataset.from_tensor_slices((images[:300], labels[:300]))
    return training.shuffle(1500, seed=1).batch(size), validation.batch(size)


class DigitsTrial(TensorFlowTrial):
    def __init__(self, hparams):
        self.rate = hparams["learning_rate"]

    def build_graph(self, record, is_training):
        images, labels = record
        logits = tf.matmul(images, tf.get_variable("w", [64, 10])) + tf.get_variable("b", [10])
        predicted = tf.argmax(logits, 1)
        return {
            "loss": tf.losses.sparse_softmax_cross_entropy(labels, logits),
            "accuracy": tf.metrics.accuracy(labels, predicted),
            "mean_accuracy": tf.reduce_mean(tf.cast(tf.equal(labels, predicted), tf.float32)),
            "training": tf.metrics.mean(tf.cast(is_training, tf.float32)),
            "stopped": tf.py_func(self.note, [tf.train.get_global_step()], tf.float32),
        }

    def note(self, step):
        self.stop_requested = bool(step >= 150)
        return np.float32(self.stop_requested)

    def optimizer(self):
        return tf.train.AdamOptimizer(self.rate)

    def training_metrics(self):
        return ["stopped", "training"]

    def validation_metrics(self):
        return ["loss", "accuracy", "mean_accuracy", "training"]
