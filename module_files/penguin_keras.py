"""The plain case: a small Keras classifier of penguins, trained with `fit`, ready for a Tuner.

One file serves three components: Transform calls `preprocessing_fn`, Tuner `tuner_fn`,
GenericTrainer `run_fn`. It runs unchanged under Keras 2 and Keras 3.
"""

from __future__ import annotations

import keras_tuner
import tensorflow as tf
from penguin_features import preprocessing_fn, read_batches
from penguin_model import build_model, train
from penguin_serving import export_for_serving
from tfx.components.trainer.fn_args_utils import FnArgs
from tfx.components.tuner.component import TunerFnResult

__all__ = ["preprocessing_fn", "run_fn", "tuner_fn"]


def run_fn(fn_args: FnArgs) -> None:
    """Trains with the hyperparameters that a Tuner found, if any, and exports the model."""
    hyperparameters = _search_space()
    if fn_args.hyperparameters:
        hyperparameters = keras_tuner.HyperParameters.from_config(fn_args.hyperparameters)
    model = _build_model(hyperparameters)
    train(model, fn_args)
    export_for_serving(model, fn_args)


def tuner_fn(fn_args: FnArgs) -> TunerFnResult:
    """Describes the search that TFX's Tuner runs: three random trials over `_search_space`."""
    tuner = keras_tuner.RandomSearch(
        _build_model,
        objective="val_accuracy",
        max_trials=3,
        hyperparameters=_search_space(),
        directory=fn_args.working_dir,
        project_name="penguin",
        seed=1,
    )
    fit_kwargs = {
        "x": read_batches(fn_args, fn_args.train_files),
        "steps_per_epoch": fn_args.train_steps,
        "validation_data": read_batches(fn_args, fn_args.eval_files, once=True),
    }
    return TunerFnResult(tuner=tuner, fit_kwargs=fit_kwargs)


def _search_space() -> keras_tuner.HyperParameters:
    space = keras_tuner.HyperParameters()
    space.Choice("learning_rate", [1e-2, 1e-3], default=1e-2)
    space.Int("hidden_layers", 1, 2, default=1)
    return space


def _build_model(hyperparameters: keras_tuner.HyperParameters) -> tf.keras.Model:
    return build_model(hyperparameters.get("hidden_layers"), hyperparameters.get("learning_rate"))
