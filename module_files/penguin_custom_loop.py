"""A training loop of one's own: `tf.GradientTape` instead of `fit`.

Shows that GenericTrainer asks nothing of the module but `run_fn`, and that scalars written with
`tf.summary` become metrics of the Model artifact.
"""

from __future__ import annotations

import tensorflow as tf
from penguin_features import preprocessing_fn, read_batches
from penguin_model import build_model
from penguin_serving import export_for_serving
from tfx.components.trainer.fn_args_utils import FnArgs

__all__ = ["preprocessing_fn", "run_fn"]

STEPS_PER_REPORT = 20


def run_fn(fn_args: FnArgs) -> None:
    """Takes `fn_args.train_steps` gradient steps, reports now and then, and exports the model."""
    model = build_model()
    train_step = _make_train_step(model)
    train_loss = tf.keras.metrics.Mean()
    writer = tf.summary.create_file_writer(fn_args.model_run_dir)
    batches = read_batches(fn_args, fn_args.train_files).take(fn_args.train_steps)
    for step, (features, label) in enumerate(batches, start=1):
        train_loss.update_state(train_step(features, label))
        if step % STEPS_PER_REPORT == 0 or step == fn_args.train_steps:
            accuracy = _accuracy(model, fn_args)
            print(f"step {step}: loss {train_loss.result():.4f}, accuracy {accuracy:.4f}")
            with writer.as_default(step):
                tf.summary.scalar("train/loss", train_loss.result())
                tf.summary.scalar("validation/accuracy", accuracy)
            train_loss.reset_state()
    writer.close()
    export_for_serving(model, fn_args)


def _make_train_step(model: tf.keras.Model) -> tf.types.experimental.PolymorphicFunction:
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf.keras.optimizers.Adam(1e-2)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def train_step(features: dict[str, tf.Tensor], label: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_fn(label, model(features, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return train_step


def _accuracy(model: tf.keras.Model, fn_args: FnArgs) -> float:
    metric = tf.keras.metrics.SparseCategoricalAccuracy()
    for features, label in read_batches(fn_args, fn_args.eval_files).take(fn_args.eval_steps):
        metric.update_state(label, model(features, training=False))
    return float(metric.result())
