"""Data-parallel training on several workers, or on the one there is, that survives being killed.

Which workers, and where, is the pipeline's affair: `GenericTrainer(distribution=...)`. Here the
strategy follows from what this process finds, and a run that was killed goes on where it was. It
runs unchanged under Keras 2 and Keras 3.
"""

from __future__ import annotations

import tensorflow as tf
from penguin_features import preprocessing_fn, read_batches
from penguin_model import EPOCHS, build_model
from penguin_serving import export_for_serving
from tfx.components.trainer.fn_args_utils import FnArgs

from generic_trainer import training

__all__ = ["preprocessing_fn", "run_fn"]


def run_fn(fn_args: FnArgs) -> None:
    """Trains with all workers and exports; a batch has as many examples on each of them."""
    strategy = training.get_strategy()
    print(f"Training on {strategy.num_replicas_in_sync} replicas.")
    with strategy.scope():
        model = build_model()
    model.fit(
        read_batches(fn_args, fn_args.train_files),
        epochs=EPOCHS,
        steps_per_epoch=max(1, fn_args.train_steps // EPOCHS),
        validation_data=read_batches(fn_args, fn_args.eval_files, once=True),
        callbacks=training.resume_callbacks(
            fn_args,
            callbacks=[tf.keras.callbacks.TensorBoard(fn_args.model_run_dir, write_graph=False)],
            every_steps=20,
        ),
        verbose=2,
    )
    export_for_serving(model, fn_args)
