"""A line by a graph that asks for configuration, hyperparameters and seed."""

import numpy as np
import tensorflow.compat.v1 as tf
from pedl.frameworks.tensorflow import TensorFlowTrial
from pedl.trial import get_trial_seed
from pedl.util import get_experiment_config, get_hyperparameters

tf.disable_v2_behavior()


def make_data_loaders(experiment_config, hparams):
    assert experiment_config["data"] == get_experiment_config()["data"]
    x = np.arange(experiment_config["data"]["count"], dtype=np.float32)[:, None] / 8
    data = tf.data.Dataset.from_tensor_slices((x, 2 * x))
    mixed = data.shuffle(8, seed=get_trial_seed())
    return mixed.batch(hparams["batch_size"]), data.batch(hparams["batch_size"])


class LineTrial(TensorFlowTrial):
    def build_graph(self, record, is_training):
        x, y = record
        assert x.shape[1].value == 1
        slope = tf.get_variable("slope", [1, 1], initializer=tf.zeros_initializer())
        return {"loss": tf.reduce_mean(tf.square(x @ slope - y)), "slope": tf.reduce_sum(slope)}

    def optimizer(self):
        return tf.train.GradientDescentOptimizer(get_hyperparameters()["rate"])

    def validation_metrics(self):
        return ["loss", "slope"]
