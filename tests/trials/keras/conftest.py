"""The trial that `open_trial` opens by default."""

import pytest

from tests.trials.keras.one_weight import OneWeight


@pytest.fixture
def one_weight() -> type:
    return OneWeight
