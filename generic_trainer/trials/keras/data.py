"""Sequences of arrays, where PEDL and the first release of Determined 0.12 had them."""

from generic_trainer.trials.keras._sequence import (
    ArrayLikeAdapter,
    InMemorySequence,
    KerasDataAdapter,
)

__all__ = ["ArrayLikeAdapter", "InMemorySequence", "KerasDataAdapter"]
