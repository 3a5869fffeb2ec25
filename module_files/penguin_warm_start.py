"""A warm start: training continues from the weights of the latest blessed model.

Needs `GenericTrainer(base_model=...)`; `python -m pipelines.run_local --warm-start` connects it to
the latest blessed model. Without one, as in the first run, or where that is a network of another
shape, training starts from scratch.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from penguin_features import preprocessing_fn
from penguin_model import build_model, train
from penguin_serving import export_for_serving
from tfx.components.trainer.fn_args_utils import FnArgs

__all__ = ["preprocessing_fn", "run_fn"]


def run_fn(fn_args: FnArgs) -> None:
    """Trains on from `fn_args.base_model`, more gently than from scratch, and exports the model."""
    weights = _weights_of(fn_args.base_model) if fn_args.base_model else []
    model = build_model(learning_rate=1e-3 if weights else 1e-2)
    if weights:
        model.set_weights(weights)
    print(f"Starting from {fn_args.base_model if weights else 'scratch'}.")
    train(model, fn_args)
    export_for_serving(model, fn_args)


def _weights_of(base_model: str) -> list[np.ndarray]:
    """Returns the weights for `build_model`, or none where the base is another kind of model."""
    # What `export_model` writes keeps the weights in a list of this name.
    base = tf.saved_model.load(base_model)
    weights = [weight.numpy() for weight in getattr(base, "model_weights", [])]
    expected = [weight.shape for weight in build_model().get_weights()]
    if [weight.shape for weight in weights] == expected:
        return weights
    found = [weight.shape for weight in weights]
    print(f"Expected weights of shapes {expected} in {base_model}, found {found}: not used.")
    return []
