"""Every good model: those of the default tests, and those of the catalogue."""

from tests.validation.catalogue import good_graphs, good_keras
from tests.validation.good import GOOD, Make, ServingContract

__all__ = ["all_good"]

_MODULES = (good_graphs, good_keras)  # which register what they have


def all_good() -> dict[str, tuple[Make, ServingContract]]:
    """Returns how each is made, and the contract of the pipeline that it is in, by name."""
    return GOOD
