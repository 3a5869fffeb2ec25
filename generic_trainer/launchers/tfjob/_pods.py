"""What the state of a pod means for the run."""

from __future__ import annotations

from collections.abc import Iterable

from generic_trainer.launchers._endings import Ending
from generic_trainer.launchers._failures import Failure, failure_of_exit_code, signal_name
from generic_trainer.launchers._members import Member
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.tfjob._api import PodState
from generic_trainer.launchers.tfjob._folder import JobFolder

__all__ = ["ending_of", "waiting_for", "will_never_start"]

# A pod that waits for one of these waits for ever.
_HOPELESS = (
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
)


def ending_of(member: Member, pod: PodState, folder: JobFolder) -> Ending:
    """Returns how the worker in a failed pod ended: what it said itself, else what its pod says."""
    return Ending(folder.outcome(member) or _outcome_of(pod), member.name)


def will_never_start(pod: PodState) -> bool:
    """Whether a pod waits for what will not come."""
    return pod.phase == "Pending" and pod.reason in _HOPELESS


def waiting_for(pods: Iterable[PodState], expected: int) -> str:
    """Returns what the pods wait for that do not run yet, as a sentence; empty when all run.

    Args:
        pods: those that there are.
        expected: how many there should be.
    """
    known = list(pods)
    reasons = [
        f"{pod.name} waits: {pod.reason or 'no reason is given'}"
        + (f" ({pod.message})" if pod.message else "")
        for pod in known
        if pod.phase == "Pending"
    ]
    if len(known) < expected:
        reasons.append(f"{expected - len(known)} of {expected} pods were never made")
    return "; ".join(reasons)


def _outcome_of(pod: PodState) -> Outcome:
    if pod.reason == "OOMKilled":
        return _said_by_pod(
            Failure.MEMORY,
            "its pod was killed because it took more memory than it was given. Give it more "
            "(memory_mb_per_worker), or use smaller batches or a smaller shuffle buffer.",
        )
    if pod.exit_code is None:
        why = ", ".join(filter(None, [pod.reason, pod.message])) or "no reason is given"
        return _said_by_pod(Failure.LOST, f"its pod {pod.name} was lost: {why}.")
    name = signal_name(pod.exit_code)
    return _said_by_pod(
        failure_of_exit_code(pod.exit_code),
        f"its pod {pod.name} ended with exit code {pod.exit_code}"
        f"{f' ({name})' if name else ''} and could not say more.",
    )


def _said_by_pod(failure: Failure, message: str) -> Outcome:
    return Outcome(failure, failure.error.__name__, message)
