"""Both Kerases for the whole room."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from generic_trainer.training import keras_2_left_alone


@pytest.fixture(params=["keras", "tf_keras"], ids=["keras3", "keras2"])
def keras(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Keras 3 and Keras 2, side by side in one process under their own names, as in a `run_fn`."""
    module = importlib.import_module(request.param)
    with keras_2_left_alone():
        yield module
