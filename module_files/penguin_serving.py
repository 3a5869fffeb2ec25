"""How every penguin module file writes its model: raw penguins in, a species out."""

from __future__ import annotations

import tensorflow as tf
from penguin_features import LABEL, SPECIES
from tfx.components.trainer.fn_args_utils import FnArgs

from generic_trainer.training import export_model


def export_for_serving(model: tf.keras.Model, fn_args: FnArgs) -> None:
    """Writes `model` as a SavedModel with its signatures to `fn_args.serving_model_dir`.

    `serving_default` takes serialized tf.Examples with raw features; their label is neither needed
    nor looked at. The Evaluator calls `transform_features` for the transformed label.
    """
    export_model(model, fn_args, label_keys=(LABEL,), postprocess=_with_species)


def _with_species(probabilities: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns ``probabilities`` float32 [N, 3] as they come, and ``species`` string [N]."""
    species = tf.gather(tf.constant(SPECIES), tf.argmax(probabilities, axis=1))
    return {"probabilities": probabilities, "species": species}
