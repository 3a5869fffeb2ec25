"""Every good model: those of the default tests, and those of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from generic_trainer.validation import ServingContract
from tests.validation import good
from tests.validation.catalogue import good_keras
from tests.validation.catalogue.good_graphs import EVALUATED, GOOD

__all__ = ["all_good"]

_MODULES = (good_keras,)  # which registers what it has


def all_good() -> dict[str, tuple[Callable[[Path], Any], ServingContract]]:
    """Returns how each is made, and the contract of the pipeline that it is in, by name."""
    return {**{name: (make, EVALUATED) for name, make in good.RECIPES.items()}, **GOOD}
