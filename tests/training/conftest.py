"""Both Kerases for the whole room."""

import importlib
from typing import Any

import pytest


@pytest.fixture(params=["keras", "tf_keras"], ids=["keras3", "keras2"])
def keras(request: pytest.FixtureRequest) -> Any:
    """Keras 3 and Keras 2, side by side in one process under their own names."""
    return importlib.import_module(request.param)
