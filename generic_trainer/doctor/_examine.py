"""All findings in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer import __version__
from generic_trainer.doctor._machine import keras_and_gpus, machine
from generic_trainer.doctor._packages import optional_packages, required_packages
from generic_trainer.doctor._symptom import Symptom

__all__ = ["examine"]


def examine() -> Iterator[Symptom]:
    """Yields what GenericTrainer needs, what is there of it, and what to do about the rest.

    Takes as long as TensorFlow and TFX take to import, in other processes than this one.
    """
    yield Symptom("GenericTrainer", "ok", __version__)
    yield from machine()
    yield from required_packages()
    yield from keras_and_gpus()
    yield from optional_packages()
