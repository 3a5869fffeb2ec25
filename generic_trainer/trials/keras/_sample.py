"""Makes a model's variables, by showing it a batch, so that a checkpoint can be restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["build_for_prediction", "build_for_training"]


def build_for_prediction(model: Any, sample: tuple[Any, ...]) -> None:
    """Makes what predictions need.

    Args:
        model: compiled.
        sample: a batch (x, ...).
    """
    if not model.built or not model.weights:
        model.predict_on_batch(sample[0])


def build_for_training(model: Any, sample: tuple[Any, ...], optimizers: Sequence[Any]) -> None:
    """Makes what training needs, optimizers and metrics included, by a step that is then undone.

    Args:
        model: compiled.
        sample: a batch (x, y) or (x, y, sample_weight).
        optimizers: those of the model.
    """
    model.train_on_batch(*sample)
