"""A line by a premade estimator without a trial class, as release 0.12 had it."""

import numpy as np
import tensorflow as tf
from determined.experimental.estimator import init

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer("points", 8, "points of the line")


def main(argv):
    context = init(
        config={
            "hyperparameters": {"global_batch_size": 8},
            "batches_per_step": 10,
            "searcher": {"name": "single", "metric": "average_loss", "max_steps": 3},
        },
        context_dir=".",
    )

    def line():
        x = np.arange(FLAGS.points, dtype=np.float32) / FLAGS.points
        data = context.wrap_dataset(tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)))
        return data.batch(context.get_per_slot_batch_size())

    context.train_and_evaluate(
        tf.estimator.LinearRegressor(
            [tf.feature_column.numeric_column("x")],
            optimizer=context.wrap_optimizer(tf.train.GradientDescentOptimizer(0.05)),
        ),
        tf.estimator.TrainSpec(line),
        tf.estimator.EvalSpec(line, steps=None),
    )


if __name__ == "__main__":
    tf.app.run(main)
