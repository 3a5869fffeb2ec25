"""`tf.contrib.learn`'s Experiment on handwritten digits: Estimator, Experiment and Dataset.

The layout is the one in which such programs were written: hyperparameters, an `experiment_fn`, a
model function, and input functions whose iterators a hook initialises in the session. What they ran
by ``learn_runner.run(experiment_fn, run_config, "train_and_evaluate", hparams)`` is `run_fn` here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from generic_trainer.estimator import tf
from generic_trainer.trials.experiment import (
    Experiment,
    HParams,
    RunConfig,
    run_fn_from_experiment,
)

__all__ = ["experiment_fn", "run_fn"]

_SIDE = 8
_DARKEST = 16.0
_HELD_OUT = 360
_BATCH_SIZE = 64
HPARAMS = HParams(learning_rate=0.002, n_classes=10, train_steps=400, min_eval_frequency=100)


def experiment_fn(run_config: RunConfig, params: HParams) -> Experiment:
    """Returns estimator, data, and when to evaluate."""
    run_config = run_config.replace(save_checkpoints_steps=params.min_eval_frequency)
    train_input_fn, train_input_hook = _inputs(slice(_HELD_OUT, None), training=True)
    eval_input_fn, eval_input_hook = _inputs(slice(_HELD_OUT), training=False)
    return Experiment(
        estimator=tf.estimator.Estimator(model_fn, params=params, config=run_config),
        train_input_fn=train_input_fn,
        eval_input_fn=eval_input_fn,
        train_steps=params.train_steps,
        min_eval_frequency=params.min_eval_frequency,
        train_monitors=[train_input_hook],
        eval_hooks=[eval_input_hook],
        eval_steps=None,
        export_strategies=[tf.estimator.FinalExporter("digits", receive_images)],
    )


def model_fn(features: Any, labels: Any, mode: str, params: HParams) -> Any:
    """A small convolutional network; features are float32 [N, 8, 8, 1]."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    logits = _layers(features, params.n_classes, is_training)
    predictions = {"class": tf.argmax(logits, axis=-1), "scores": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf.compat.v1.metrics.accuracy(labels, predictions["class"], name="acc_op")
    tf.compat.v1.summary.scalar("accuracy", accuracy[1])
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=_train_op(loss, params.learning_rate) if is_training else None,
        eval_metric_ops={"accuracy": accuracy},
    )


def receive_images() -> Any:
    """Takes float32 [N, 8, 8, 1] in [0, 1] in the exported model."""
    images = tf.compat.v1.placeholder(tf.float32, [None, _SIDE, _SIDE, 1], name="images")
    return tf.estimator.export.TensorServingInputReceiver(images, {"images": images})


class IteratorInitializerHook(tf.compat.v1.train.SessionRunHook):
    """Initialises a Dataset's iterator when the session is there."""

    def __init__(self) -> None:
        """Starts with nothing to do; the input function sets it."""
        self.iterator_initializer_func: Callable[[Any], Any] | None = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Feeds the arrays to the placeholders."""
        assert self.iterator_initializer_func is not None
        self.iterator_initializer_func(session)


def _layers(images: Any, n_classes: int, is_training: bool) -> Any:
    layers = tf.compat.v1.layers
    hidden = layers.conv2d(images, 16, 3, padding="same", activation=tf.nn.relu, name="conv")
    hidden = layers.flatten(layers.max_pooling2d(hidden, 2, 2, name="pool"))
    hidden = layers.dense(hidden, 64, activation=tf.nn.relu, name="hidden")
    hidden = layers.dropout(hidden, rate=0.25, training=is_training)
    return layers.dense(hidden, n_classes, name="logits")


def _train_op(loss: Any, learning_rate: float) -> Any:
    counter = tf.compat.v1.train.get_global_step()
    rate = tf.compat.v1.train.exponential_decay(learning_rate, counter, 200, 0.9)
    return tf.compat.v1.train.AdamOptimizer(rate).minimize(loss, counter)


def _inputs(part: slice, *, training: bool) -> tuple[Callable[[], Any], IteratorInitializerHook]:
    """Returns an input function, and the hook that initialises its iterator."""
    hook = IteratorInitializerHook()

    def input_fn() -> Any:
        images, labels = _digits(part)
        fed = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in (images, labels)]
        data = tf.data.Dataset.from_tensor_slices(tuple(fed))
        if training:
            data = data.shuffle(len(labels)).repeat()
        iterator = tf.compat.v1.data.make_initializable_iterator(data.batch(_BATCH_SIZE))
        feed = dict(zip(fed, (images, labels), strict=True))
        hook.iterator_initializer_func = lambda session: session.run(iterator.initializer, feed)
        return iterator.get_next()

    return input_fn, hook


def _digits(part: slice) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    shape = (-1, _SIDE, _SIDE, 1)
    return (
        (images[part] / _DARKEST).astype(np.float32).reshape(shape),
        labels[part].astype(np.int64),
    )


run_fn = run_fn_from_experiment(experiment_fn, HPARAMS)
