"""Which modules have `trainer_fn`, of TFX's first trainer, in place of `run_fn`."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["TRAINER_FN", "has_trainer_fn_instead"]

TRAINER_FN = "trainer_fn"


def has_trainer_fn_instead(function: str, names: Collection[str]) -> bool:
    """Whether a module that defines `names` shall be run by its `trainer_fn`.

    Args:
        function: the function that was asked for; "trainer_fn" itself may be.
        names: what the module defines.
    """
    missing = function == "run_fn" and function not in names
    return TRAINER_FN in names and (missing or function == TRAINER_FN)
