"""A convolutional `model_fn`: a hook, a reduced metric, and a native main."""

from pathlib import Path

import determined as det
import numpy as np
import tensorflow as tf
from determined.estimator import (
    EstimatorTrial,
    EstimatorTrialContext,
    RunHook,
    ServingInputReceiverFn,
)
from sklearn.datasets import load_digits

v1 = tf.compat.v1
SIDE = 8
PIXELS = {"pixels": tf.io.FixedLenFeature([SIDE, SIDE, 1], tf.float32)}


def digits(rows):
    found = load_digits()
    pixels = (found.images[rows, ..., None] / 16).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"pixels": pixels}, found.target[rows]))


class CountSteps(RunHook):
    """Keeps its count in the checkpoints."""

    limit = 10_000

    def __init__(self) -> None:
        self.steps = 0

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(v1.train.get_global_step())

    def after_run(self, run_context, run_values):
        self.steps += 1
        if run_values.results > self.limit:
            run_context.request_stop()

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "count").write_text(str(self.steps))

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        self.steps = int(Path(checkpoint_dir, "count").read_text())

    def on_trial_close(self) -> None:
        print("closed after", self.steps)


def share(batches):
    return float(np.concatenate(batches).mean())


class StrokesTrial(EstimatorTrial):
    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context

    def model_fn(self, features, labels, mode, params):
        training = mode == tf.estimator.ModeKeys.TRAIN
        net = v1.layers.conv2d(features["pixels"], params["filters"], 3, activation=tf.nn.relu)
        net = v1.layers.flatten(v1.layers.max_pooling2d(net, 2, 2))
        net = v1.layers.batch_normalization(net, training=training)
        net = v1.layers.dropout(net, self.context.get_hparam("dropout"), training=training)
        logits = v1.layers.dense(net, 10)
        answer = tf.argmax(logits, axis=1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            scores = tf.nn.softmax(logits)
            return tf.estimator.EstimatorSpec(mode, {"digit": answer, "scores": scores})
        right = tf.cast(tf.equal(answer, labels), tf.float32)
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        if not training:
            metrics = {
                "accuracy": v1.metrics.accuracy(labels, answer),
                "share": self.context.experimental.make_metric(right, share, np.float32),
            }
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(self.context.get_hparam("learning_rate"), step, 100, 0.9)
        v1.summary.scalar("right", tf.reduce_mean(right))
        v1.summary.scalar("rate", rate)
        optimizer = self.context.wrap_optimizer(v1.train.AdamOptimizer(rate))
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def build_estimator(self) -> tf.estimator.Estimator:
        return tf.estimator.Estimator(
            self.model_fn,
            config=tf.estimator.RunConfig(tf_random_seed=self.context.get_trial_seed()),
            params={"filters": self.context.get_hparam("filters")},
        )

    def build_train_spec(self) -> tf.estimator.TrainSpec:
        def input_fn():
            data = self.context.wrap_dataset(digits(slice(360, None)))
            data = data.apply(tf.data.experimental.shuffle_and_repeat(1000))
            return data.batch(self.context.get_per_slot_batch_size())

        return tf.estimator.TrainSpec(input_fn, hooks=[CountSteps()])

    def build_validation_spec(self) -> tf.estimator.EvalSpec:
        def input_fn():
            data = self.context.wrap_dataset(digits(slice(360)))
            return data.batch(self.context.get_per_slot_batch_size())

        return tf.estimator.EvalSpec(input_fn, steps=None)

    def build_serving_input_receiver_fns(self) -> dict[str, ServingInputReceiverFn]:
        parsing = tf.estimator.export.build_parsing_serving_input_receiver_fn(PIXELS)
        return {"strokes": parsing}


if __name__ == "__main__":
    hyperparameters = {
        "global_batch_size": det.Constant(64),
        "learning_rate": det.Log(-4.0, -2.0, 10),
        "filters": det.Integer(4, 8),
        "dropout": det.Double(0.2, 0.3),
    }
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 200}}
    det.experimental.create(
        trial_def=StrokesTrial,
        config={"hyperparameters": hyperparameters, "searcher": searcher},
        local=True,
        test=True,
    )
