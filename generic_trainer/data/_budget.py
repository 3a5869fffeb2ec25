"""How much memory columns may take where the code does not say."""

from __future__ import annotations

import os

from generic_trainer._core.machine import free_memory_bytes
from generic_trainer.errors import ConfigurationError

__all__ = ["MEMORY_VARIABLE", "default_budget_bytes"]

# An environment variable, because it belongs to the machine: the same pipeline runs on others. An
# argument of the component or an entry of `custom_config` would be an execution property, so that
# another budget would run the step anew, and `custom_config` is the user's own.
MEMORY_VARIABLE = "GENERIC_TRAINER_READER_MEMORY_MB"

_SHARE_OF_FREE_MEMORY = 4
_MB = 10**6


def default_budget_bytes() -> int:
    """Returns what the environment allows, else a quarter of what is free, in bytes.

    Raises:
        ConfigurationError: the environment variable is no whole number of megabytes.
    """
    text = os.environ.get(MEMORY_VARIABLE, "").strip()
    if not text:
        return free_memory_bytes() // _SHARE_OF_FREE_MEMORY
    if not text.isdecimal():
        raise ConfigurationError(
            f"{MEMORY_VARIABLE}: expected a whole number of megabytes, such as 4000, found {text!r}"
        )
    return int(text) * _MB
