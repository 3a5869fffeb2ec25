"""A line by a premade estimator without a trial class, as release 0.12 had it."""

import numpy as np
import tensorflow as tf
from determined.experimental.estimator import init

X = np.arange(8, dtype=np.float32) / 8

context = init(
    config={
        "hyperparameters": {"global_batch_size": 8},
        "batches_per_step": 10,
        "searcher": {"name": "single", "metric": "average_loss", "max_steps": 3},
    },
    context_dir=".",
)


def line():
    data = context.wrap_dataset(tf.data.Dataset.from_tensor_slices(({"x": X}, 2 * X)))
    return data.batch(context.get_per_slot_batch_size())


context.train_and_evaluate(
    tf.estimator.LinearRegressor(
        [tf.feature_column.numeric_column("x")],
        optimizer=context.wrap_optimizer(tf.train.GradientDescentOptimizer(0.05)),
    ),
    tf.estimator.TrainSpec(line),
    tf.estimator.EvalSpec(line, steps=None),
)
