"""One member of a cluster, on a machine where another engine has put it."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator

from generic_trainer.errors import WorkerLostError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._members import Member
from generic_trainer.launchers._outcome import Outcome, WorkerTraceback

__all__ = ["outcome_in_child"]

# How long a member that misses another one waits before it says so: that one, or the engine, has
# more to say about it.
_LAST_WORDS_S = 5.0


def outcome_in_child(job: Job, member: Member) -> Outcome:
    """Runs `run_fn` in a child process, as the launcher `local` does, and says how it ended.

    Only from outside can a crash be told from a kill, and a hang from work. `TF_CONFIG` is that of
    this process.
    """
    from generic_trainer.launchers.local import run_local

    try:
        run_local(dataclasses.replace(job, distribution=_alone(job.distribution, member)))
        return Outcome()
    except BaseException as error:
        outcome = _outcome(error)
        if job.distribution.is_cluster and _misses_others(error):
            time.sleep(_LAST_WORDS_S)
            outcome = dataclasses.replace(outcome, lost_its_peers=True)
        return outcome


def _alone(distribution: Distribution, member: Member) -> Distribution:
    """Returns the part of the distribution that is about one process.

    Only a chief that trains itself is watched for doing nothing: the others may well wait for it.
    """
    watched = member.is_chief and not distribution.parameter_servers
    return Distribution(
        launcher="local",
        gpus_per_worker=0 if distribution.gpus_per_worker == 0 else None,  # else as the engine says
        memory_mb_per_worker=distribution.memory_mb_per_worker,
        max_failures=0,
        preemption_grace_s=distribution.preemption_grace_s,
        heartbeat_s=distribution.heartbeat_s if watched else None,
        require_gpu=distribution.require_gpu,
        env=distribution.env,
    )


def _outcome(error: BaseException) -> Outcome:
    outcome = Outcome.of(error)
    for cause in _causes(error):
        if isinstance(cause, WorkerTraceback):  # the child's; what is above it is only ours
            outcome = dataclasses.replace(outcome, trace=cause.args[0])
    return outcome


def _misses_others(error: BaseException) -> bool:
    """Whether TensorFlow raised because it missed other members, or aborted the process."""
    raised = isinstance(error, WorkerLostError) and error.__cause__ is not None
    return raised or signal.SIGABRT.name in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
