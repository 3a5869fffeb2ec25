"""XOR by an estimator without a trial class or `__main__`, as release 0.13 had it."""

import determined as det
import numpy as np
import tensorflow as tf
from determined import estimator

CORNERS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)

config = {
    "hyperparameters": {"rate": det.Constant(0.05), "hidden": 8, "global_batch_size": 4},
    "searcher": {
        "name": "single",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_length": {"batches": 150},
    },
}
context = estimator.init(config, local=False, test=False, context_dir=".")


def model_fn(features, labels, mode):
    assert features["x"].shape[1].value == 2
    hidden = tf.layers.dense(features["x"], context.get_hparam("hidden"), tf.nn.tanh)
    logits = tf.squeeze(tf.layers.dense(hidden, 1), axis=1)
    odd = tf.cast(logits > 0, tf.int64)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"odd": odd})
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    optimizer = context.wrap_optimizer(tf.train.AdamOptimizer(context.get_hparam("rate")))
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_or_create_global_step()),
        eval_metric_ops={"accuracy": tf.metrics.accuracy(labels, odd)},
    )


def corners():
    labels = np.logical_xor(*CORNERS.T).astype(np.int64)
    data = tf.data.Dataset.from_tensor_slices(({"x": CORNERS}, labels))
    return context.wrap_dataset(data).batch(context.get_per_slot_batch_size())


context.train_and_evaluate(
    tf.estimator.Estimator(model_fn),
    tf.estimator.TrainSpec(corners),
    tf.estimator.EvalSpec(corners, steps=None),
)
