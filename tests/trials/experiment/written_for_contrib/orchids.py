"""A canned estimator that forwards a key, when TensorFlow 2 was new: in the style of 2019."""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.contrib.estimator import forward_features
from tensorflow.contrib.lookup import index_table_from_file

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string("model_dir", None, "where checkpoints go")
tf.app.flags.DEFINE_string("vocabulary", None, "file with a species in each line")

tf.disable_v2_behavior()


def input_fn():
    widths = np.linspace(0, 1, 12, dtype=np.float32)
    data = {"key": [f"flower {i}" for i in range(12)], "width": widths}
    species = ["red" if width < 0.5 else "white" for width in widths]

    table = index_table_from_file(vocabulary_file=FLAGS.vocabulary)

    def numbered(features, name):
        return features, table.lookup(name)

    return tf.data.Dataset.from_tensor_slices((data, species)).map(numbered).batch(4).repeat()


def serving_input_fn():
    inputs = {"key": tf.placeholder(tf.string, [None]), "width": tf.placeholder(tf.float32, [None])}
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


def main(_):
    tf.logging.info("devices: %s", tf.contrib.eager.list_devices())
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir, tf_random_seed=1)
    estimator = tf.estimator.DNNClassifier(
        [4],
        [tf.feature_column.numeric_column("width")],
        optimizer=tf.train.AdamOptimizer(0.05),
        config=config,
    )
    estimator = forward_features(estimator, "key")
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=20),
        tf.estimator.EvalSpec(
            input_fn, steps=1, exporters=tf.estimator.FinalExporter("orchids", serving_input_fn)
        ),
    )


if __name__ == "__main__":
    tf.app.run(main, argv=sys.argv)
