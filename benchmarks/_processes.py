"""Measurements in a process of their own, and what processes have used."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from typing import Any

__all__ = ["in_new_process", "processor_s"]


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a function returns in a new process, which shares nothing with this one.

    Args:
        function: of a module, which that process imports.
        arguments: of the function; they are pickled, and so is the result.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def processor_s() -> float:
    """Returns the processor seconds of this process and of its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)
