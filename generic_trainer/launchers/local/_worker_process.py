"""What a worker does from its first moment on."""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main"]

_PEERS_TIMEOUT_S = 10.0
_POLL_S = 0.02


def main(order: Mapping[str, Any]) -> int:
    """Takes part in the job and returns the exit code.

    Args:
        order: `job`, the job's file; `outcome`, the file to say in how it ended; `stacks`, the
            file for the stacks of a process that crashes; `peers`, the outcomes of all workers that
            train; `environment`, all its variables;
            `processors`, the ones to run on, where it is not free to use all.
    """
    with open(order["stacks"], "w") as stacks:
        faulthandler.enable(stacks, all_threads=True)
        os.environ.clear()
        os.environ.update(order["environment"])
        if order["processors"]:
            os.sched_setaffinity(0, order["processors"])
        _draw_differently()

        from generic_trainer.launchers._job_file import job_from_json
        from generic_trainer.launchers._take_part import outcome_of_part

        job = job_from_json(Path(order["job"]).read_text(encoding="utf-8"))
        outcome = outcome_of_part(job)
        outcome.write(order["outcome"])
        if outcome.failure is None:
            _wait_for(order["peers"])
        faulthandler.disable()  # before the file is closed
        return outcome.exit_code


def _wait_for(peers: Sequence[str]) -> None:
    """Stays until all are done: the chief's process has the service that the others talk to."""
    end_s = time.monotonic() + _PEERS_TIMEOUT_S
    while not all(map(os.path.exists, peers)) and time.monotonic() < end_s:
        time.sleep(_POLL_S)


def _draw_differently() -> None:
    """Gives this process random numbers of its own: it was forked, as its siblings were."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
