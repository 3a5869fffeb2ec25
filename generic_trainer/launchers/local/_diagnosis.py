"""From how the processes ended to the one error that says why."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from generic_trainer.errors import (
    GenericTrainerError,
    TrainingError,
    WorkerLostError,
    WorkerMemoryError,
)
from generic_trainer.launchers._failures import Failure, failure_of_exit_code, signal_name
from generic_trainer.launchers._members import Member
from generic_trainer.launchers._outcome import Outcome

__all__ = ["End", "cause_of_failure", "quoted"]

_MAX_STACK_LINES = 60


@dataclasses.dataclass(frozen=True)
class End:
    """How a worker ended.

    Attributes:
        member: the worker.
        code: its exit code, -N after signal N.
        outcome: what it said; None when it did not come to that.
        stacks: the stacks of its threads, if it crashed.
        oom_kills: how many processes the kernel killed for want of memory while it ran.
    """

    member: Member
    code: int
    outcome: Outcome | None = None
    stacks: str = ""
    oom_kills: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether it did what it was there for."""
        return self.outcome is not None and self.outcome.failure is None

    @property
    def is_conclusive(self) -> bool:
        """Whether it ended by itself, not because another one had ended."""
        if self.outcome is not None:
            return not self.outcome.lost_its_peers
        # TensorFlow aborts a process that finds its cluster incomplete.
        return self.code != -signal.SIGABRT


def cause_of_failure(ends: Sequence[End], *, named: bool) -> GenericTrainerError:
    """Returns the error for an attempt in which at least one worker failed.

    Args:
        ends: those that have ended, the first one first.
        named: whether there are several workers, so that the message has to tell which one.
    """
    failed = [end for end in ends if not end.succeeded]
    cause = next((end for end in failed if end.is_conclusive), None)
    if cause is not None:
        return _error(cause, named)
    # All that is known is that they missed each other.
    first = failed[0]
    error = _error(first, named)
    if first.outcome is None:
        return error
    lost = WorkerLostError(f"The workers have lost each other. {error}")
    lost.__cause__ = error
    return lost


def _error(end: End, named: bool) -> GenericTrainerError:
    name = end.member.name if named else None
    if end.outcome is not None:
        return end.outcome.to_error(name)
    who = f"The process of {end.member.name}" if named else "The process that trains"
    name = signal_name(end.code)
    if end.code >= 0:
        return _of_exit(end, who)
    if end.code == -signal.SIGKILL and end.oom_kills:
        return WorkerMemoryError(
            f"{who} was killed by the kernel because memory ran out. Give it more, or use smaller "
            "batches, a smaller shuffle buffer or fewer workers on this machine."
        )
    if failure_of_exit_code(end.code) is Failure.LOST:
        return WorkerLostError(
            f"{who} was ended by {name} from outside: somebody stopped it, or the machine did."
        )
    return TrainingError(
        f"{who} crashed: {name} in native code. It was called from here, and everything else goes "
        f"on:\n{quoted(end.stacks)}"
    )


def _of_exit(end: End, who: str) -> GenericTrainerError:
    if failure_of_exit_code(end.code) is Failure.LOST and end.code:
        return WorkerLostError(f"{who} ended itself with exit status {end.code}, as if preempted.")
    return TrainingError(
        f"{who} ended in the middle of run_fn with exit status {end.code}: expected run_fn to "
        "return or raise. Something in it calls os._exit, or ends the process in native code."
    )


def quoted(stacks: str) -> str:
    """Returns the first lines of some stacks, indented."""
    lines = stacks.strip().splitlines() or ["(it left no stack)"]
    shown = lines[:_MAX_STACK_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} lines more in the log")
    return "\n".join(f"    {line}" for line in shown)
