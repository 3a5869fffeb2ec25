"""
An EstimatorTrial with a convolutional model_fn, as the guides of Determined 0.13 had it.
"""

import logging
import os
import tempfile
from collections.abc import Callable
from typing import Any

import determined as det
import numpy as np
import tensorflow as tf
from determined.estimator import (
    EstimatorTrial,
    EstimatorTrialContext,
    RunHook,
    ServingInputReceiverFn,
)

IMAGE_SIZE = 8
NUM_CLASSES = 10


def make_records(directory: str) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    for name, part in (("train", slice(360, None)), ("validation", slice(360))):
        path = os.path.join(directory, name + ".tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for image, label in zip(images[part], labels[part], strict=False):
                raw = (image / 16.0).astype(np.float32).tobytes()
                feature = {
                    "image_raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


def parse_mnist_tfrecord(serialized_example: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    raw = tf.io.parse_example(
        serialized=serialized_example,
        features={"image_raw": tf.io.FixedLenFeature([], tf.string)},
    )
    image = tf.io.decode_raw(raw["image_raw"], tf.float32)
    label_dict = tf.io.parse_example(
        serialized=serialized_example, features={"label": tf.io.FixedLenFeature(1, tf.int64)}
    )
    return {"image": image}, label_dict["label"]


class LearningRateHook(RunHook):
    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context
        self.steps = 0

    def before_run(self, run_context):
        return tf.compat.v1.train.SessionRunArgs(tf.compat.v1.train.get_global_step())

    def after_run(self, run_context, run_values):
        self.steps += 1
        if run_values.results > 10000:
            run_context.request_stop()

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        with open(os.path.join(checkpoint_dir, "steps")) as fp:
            self.steps = int(fp.read())

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        with open(os.path.join(checkpoint_dir, "steps"), "w") as fp:
            fp.write(str(self.steps))

    def on_trial_close(self) -> None:
        logging.info("closing after %d steps", self.steps)


def weighted_accuracy(batches: list[Any]) -> float:
    return float(np.mean(np.concatenate(batches)))


class MNistTrial(EstimatorTrial):
    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context
        self.download_directory = tempfile.mkdtemp()
        make_records(self.download_directory)
        logging.info(
            "rank %d of %d", context.distributed.get_rank(), context.distributed.get_size()
        )

    def model_fn(self, features, labels, mode, params):
        image = tf.reshape(features["image"], [-1, IMAGE_SIZE, IMAGE_SIZE, 1])
        net = tf.compat.v1.layers.conv2d(image, params["n_filters"], 3, activation=tf.nn.relu)
        net = tf.compat.v1.layers.max_pooling2d(net, 2, 2)
        net = tf.compat.v1.layers.flatten(net)
        net = tf.compat.v1.layers.batch_normalization(
            net, training=mode == tf.estimator.ModeKeys.TRAIN
        )
        net = tf.compat.v1.layers.dropout(
            net, self.context.get_hparam("dropout"), training=mode == tf.estimator.ModeKeys.TRAIN
        )
        logits = tf.compat.v1.layers.dense(net, NUM_CLASSES)
        predictions = {
            "classes": tf.argmax(input=logits, axis=1),
            "probabilities": tf.nn.softmax(logits, name="softmax_tensor"),
        }
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions)

        labels = tf.reshape(labels, [-1])
        loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
        correct = tf.cast(tf.equal(predictions["classes"], labels), tf.float32)
        tf.compat.v1.summary.scalar("train_accuracy", tf.reduce_mean(correct))

        if mode == tf.estimator.ModeKeys.TRAIN:
            learning_rate = tf.compat.v1.train.exponential_decay(
                self.context.get_hparam("learning_rate"),
                tf.compat.v1.train.get_or_create_global_step(),
                decay_steps=100,
                decay_rate=0.9,
            )
            tf.compat.v1.summary.scalar("learning_rate", learning_rate)
            optimizer = self.context.wrap_optimizer(
                tf.compat.v1.train.AdamOptimizer(learning_rate=learning_rate)
            )
            update_ops = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
            with tf.control_dependencies(update_ops):
                train_op = optimizer.minimize(
                    loss=loss, global_step=tf.compat.v1.train.get_global_step()
                )
            return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)

        return tf.estimator.EstimatorSpec(
            mode=mode,
            loss=loss,
            eval_metric_ops={
                "accuracy": tf.compat.v1.metrics.accuracy(
                    labels=labels, predictions=predictions["classes"]
                ),
                "reduced_accuracy": self.context.experimental.make_metric(
                    correct, weighted_accuracy, np.float32
                ),
            },
        )

    def build_estimator(self) -> tf.estimator.Estimator:
        return tf.estimator.Estimator(
            model_fn=self.model_fn,
            params={"n_filters": self.context.get_hparam("n_filters")},
            config=tf.estimator.RunConfig(tf_random_seed=self.context.get_trial_seed()),
        )

    def _input_fn(self, name: str, shuffle: bool = False) -> Callable:
        def _fn() -> tf.data.TFRecordDataset:
            files = [os.path.join(self.download_directory, name + ".tfrecord")]
            dataset = tf.data.TFRecordDataset(files)
            # Call `wrap_dataset` immediately after creating your dataset.
            dataset = self.context.wrap_dataset(dataset)
            if shuffle:
                dataset = dataset.apply(tf.data.experimental.shuffle_and_repeat(1000))
            dataset = dataset.batch(self.context.get_per_slot_batch_size())
            dataset = dataset.map(parse_mnist_tfrecord)
            return dataset

        return _fn

    def build_train_spec(self) -> tf.estimator.TrainSpec:
        return tf.estimator.TrainSpec(
            self._input_fn("train", shuffle=True), hooks=[LearningRateHook(self.context)]
        )

    def build_validation_spec(self) -> tf.estimator.EvalSpec:
        return tf.estimator.EvalSpec(self._input_fn("validation"), steps=None)

    def build_serving_input_receiver_fns(self) -> dict[str, ServingInputReceiverFn]:
        input_column = tf.feature_column.numeric_column(
            "image", shape=(IMAGE_SIZE, IMAGE_SIZE, 1), dtype=tf.float32
        )
        feature_spec = tf.feature_column.make_parse_example_spec([input_column])
        return {
            "mnist_parsing": tf.estimator.export.build_parsing_serving_input_receiver_fn(
                feature_spec
            )
        }


if __name__ == "__main__":
    det.experimental.create(
        trial_def=MNistTrial,
        config={
            "description": "mnist_estimator",
            "hyperparameters": {
                "global_batch_size": det.Constant(64),
                "learning_rate": det.Log(-4.0, -2.0, 10),
                "n_filters": det.Integer(4, 8),
                "dropout": det.Double(0.2, 0.3),
            },
            "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 200}},
        },
        local=True,
        test=True,
    )
