"""A process that is set up as that of a `run_fn` is."""

import importlib
import sys
from collections.abc import Iterator

import pytest
import tensorflow as tf

from generic_trainer import training


@pytest.fixture(autouse=True)
def _as_in_a_run_fn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A module of the user's may have the name of a standard one.
    monkeypatch.setitem(sys.modules, "this", sys.modules[__name__])
    importlib.import_module("tf_keras")
    tf.random.set_seed(1)  # data are made before models, and shuffles draw from this seed too
    with training.keras_2_left_alone():
        yield
