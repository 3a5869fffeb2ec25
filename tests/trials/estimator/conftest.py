"""The trial that `open_trial` opens by default."""

from __future__ import annotations

import pytest

from tests.trials.estimator.one_weight import OneWeight


@pytest.fixture
def one_weight() -> type:
    return OneWeight
