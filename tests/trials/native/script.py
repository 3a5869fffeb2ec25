"""Trains one weight by `estimator.init`, with the arguments of the command line."""

from __future__ import annotations

import json
import sys

import numpy as np

from generic_trainer.estimator import tf
from generic_trainer.trials.native import estimator

CONFIG = {
    "description": "one weight",
    "hyperparameters": {"global_batch_size": 1, "rate": 0.05},
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 4}},
}


def examples():
    x = np.array([[1.0], [2.0], [3.0]], np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)).batch(1)


def train(context):
    def model_fn(features, labels, mode):
        w = tf.compat.v1.get_variable("w", [1, 1], initializer=tf.zeros_initializer())
        outputs = features["x"] @ w
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, {"outputs": outputs})
        loss = tf.reduce_mean(tf.square(outputs - labels))
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(context.get_hparam("rate"))
        optimizer = context.wrap_optimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def receive():
        x = tf.compat.v1.placeholder(tf.float32, [None, 1], name="x")
        return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})

    context.serving_input_receiver_fns["plain"] = receive
    return context.train_and_evaluate(
        tf.estimator.Estimator(model_fn),
        tf.estimator.TrainSpec(lambda: context.wrap_dataset(examples())),
        tf.estimator.EvalSpec(examples, steps=None),
    )


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    train(estimator.init({**CONFIG, **arguments.pop("config", {})}, **arguments))
