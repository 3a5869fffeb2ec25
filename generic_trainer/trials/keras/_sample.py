"""Makes a model's variables, by showing it a batch, so that a checkpoint can be restored."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["as_trained_on", "build_for_prediction", "build_for_training"]


def as_trained_on(sample: tuple[Any, ...], parts: int | None) -> tuple[Any, ...]:
    """Returns a batch of validation data with the sample weights that training data have.

    Args:
        sample: (x, y) or (x, y, sample_weight).
        parts: how many parts a batch of training data has; None if that is not known.
    """
    if parts == 3 and len(sample) == 2:
        return (*sample, tf.ones(tf.shape(tf.nest.flatten(sample[0])[0])[:1]))
    return sample[:parts]


def build_for_prediction(model: Any, sample: tuple[Any, ...]) -> None:
    """Makes what predictions need.

    Args:
        model: compiled, and not built.
        sample: a batch (x, ...).
    """
    model.predict_on_batch(sample[0])


def build_for_training(model: Any, data: Any) -> None:
    """Makes what training needs, by a step whose result is to be overwritten.

    Args:
        model: compiled.
        data: batches as they are trained on, distributed by the model's strategy.
    """
    build_in_strategy(model, data)
    model.make_train_function()
    model.train_function(iter(data))


def build_in_strategy(model: Any, data: Any) -> None:
    """Makes what Keras 3 cannot make in a replica; otherwise does nothing.

    Args:
        model: compiled.
        data: batches, distributed by the model's strategy.
    """
    if tf.distribute.get_strategy() is model.distribute_strategy:
        return
    model.evaluate(data, steps=1, verbose=0)
