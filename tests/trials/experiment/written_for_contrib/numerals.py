"""A convolutional network by slim, an Experiment and its hooks, as in a blog of 2017."""

import os
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow.contrib.layers as layers
from sklearn.datasets import load_digits
from tensorflow.contrib import slim
from tensorflow.contrib.learn import Experiment, ModeKeys, RunConfig, learn_runner
from tensorflow.contrib.training import HParams

tf.logging.set_verbosity(tf.logging.INFO)

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string(
    flag_name="logs",
    default_value=os.path.join(tempfile.gettempdir(), "numerals"),
    docstring="where checkpoints and event files go",
)
tf.app.flags.DEFINE_integer("steps", 60, "global steps of the training")


def main(argv=None):
    """Runs the experiment that the flags describe."""
    hparams = HParams(rate=0.005, classes=10, every=30, steps=FLAGS.steps)
    config = RunConfig(tf_random_seed=1)
    config = config.replace(model_dir=FLAGS.logs)
    learn_runner.run(
        experiment_fn=make_experiment,
        run_config=config,
        schedule="train_and_evaluate",
        hparams=hparams,
    )


def make_experiment(run_config, params):
    run_config = run_config.replace(save_checkpoints_steps=params.every)
    train_input, train_hook = inputs("training", slice(360, None), 64, shuffled=True)
    eval_input, eval_hook = inputs("evaluation", slice(360), 64, shuffled=False)
    return Experiment(
        estimator=tf.estimator.Estimator(model_fn=model_fn, params=params, config=run_config),
        train_input_fn=train_input,
        eval_input_fn=eval_input,
        train_steps=params.steps,
        min_eval_frequency=params.every,
        train_monitors=[train_hook],
        eval_hooks=[eval_hook],
        eval_steps=None,
    )


def model_fn(features, labels, mode, params):
    logits = network(features, params.classes, mode == ModeKeys.TRAIN)
    numerals = tf.argmax(logits, axis=-1)
    loss, train_op, metrics = None, None, {}
    if mode != ModeKeys.INFER:
        loss = tf.losses.sparse_softmax_cross_entropy(tf.cast(labels, tf.int32), logits)
        train_op = tf.contrib.layers.optimize_loss(
            loss=loss,
            global_step=tf.contrib.framework.get_global_step(),
            optimizer=tf.train.AdamOptimizer,
            learning_rate=params.rate,
        )
        metrics = {"right": tf.metrics.accuracy(labels, numerals, name="right")}
    return tf.estimator.EstimatorSpec(
        mode=mode, predictions=numerals, loss=loss, train_op=train_op, eval_metric_ops=metrics
    )


def network(images, classes, is_training):
    assert images.shape[1].value == 8  # a Dimension, as in TensorFlow 1
    with (
        tf.variable_scope("numerals"),
        slim.arg_scope(
            [slim.conv2d, slim.fully_connected],
            weights_initializer=layers.xavier_initializer(),
            weights_regularizer=slim.l2_regularizer(1e-5),
        ),
    ):
        net = slim.conv2d(images, 16, [3, 3], scope="first")
        net = slim.max_pool2d(net, 2, stride=2, scope="pool")
        height, width, channels = (size.value for size in net.get_shape()[1:])
        net = tf.reshape(net, [-1, height * width * channels])
        net = slim.fully_connected(net, 64, scope="second")
        net = slim.dropout(net, 0.8, is_training=is_training, scope="dropout")
        return slim.fully_connected(net, classes, activation_fn=None, scope="logits")


class InitializeIterator(tf.train.SessionRunHook):
    """Feeds the arrays once the session is there."""

    def __init__(self):
        self.initialize = None

    def after_create_session(self, session, coord):
        self.initialize(session)


def inputs(scope, rows, size, shuffled):
    hook = InitializeIterator()
    digits = load_digits()
    images = (digits.data[rows] / 16).astype(np.float32).reshape([-1, 8, 8, 1])
    labels = digits.target[rows]

    def read():
        with tf.name_scope(scope):
            fed = {tf.placeholder(each.dtype, each.shape): each for each in (images, labels)}
            data = tf.contrib.data.Dataset.from_tensor_slices(tuple(fed))
            if shuffled:
                data = data.repeat(None).shuffle(buffer_size=1000)
            iterator = data.batch(size).make_initializable_iterator()
            hook.initialize = lambda session: session.run(iterator.initializer, fed)
            return iterator.get_next()

    return read, hook


if __name__ == "__main__":
    tf.app.run(main=main)
