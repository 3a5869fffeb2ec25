"""All checks, in the order in which they run: what is cheap and fundamental comes first."""

from __future__ import annotations

from generic_trainer.validation._check import Check
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation.dynamic._loads import loads
from generic_trainer.validation.static._parses import parses
from generic_trainer.validation.static._presence import presence
from generic_trainer.validation.static._serve_tag import serve_tag
from generic_trainer.validation.static._signatures import signatures_exist

__all__ = ["ANY_FORMAT", "DYNAMIC", "STATIC", "checks_for"]

ANY_FORMAT: tuple[Check, ...] = (presence,)
STATIC: tuple[Check, ...] = (
    presence,
    parses,
    serve_tag,
    signatures_exist,
)
DYNAMIC: tuple[Check, ...] = (loads,)


def checks_for(contract: ServingContract) -> tuple[Check, ...]:
    """Returns the checks that the contract's format calls for."""
    return ANY_FORMAT if contract.format == "any" else STATIC + DYNAMIC
