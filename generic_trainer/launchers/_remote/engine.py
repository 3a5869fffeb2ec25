"""Engine of the launchers whose workers a service runs: one job of the service per attempt.

Requests and answers can be lost, and a node can be out of reach while its workers still train. So
the engine never takes silence for an end, and two jobs never write the same checkpoints::

    attempt 1   create A         sent, answer lost: `may_exist`, not yet `is_made`
                create A         sent again, as the service makes one job of a name: `is_made`
                look             active .. a node is lost: the service reports a failed worker
    kill        delete A         accepted, but a worker on the lost node does not end
                delete folder A  noted as `_fenced_at_s`; A stays in `_leftovers`
    attempt 2   fence            waits until 15 s have passed since the deletion of folder A
                create B         no worker of A writes: each looks for its folder every 5 s
    close                        asks for A once more, and logs it if it may still run

`_fence` is the only lock between attempts. It needs no answer of the lost node, but relies on the
file system: a worker that cannot see the deletion cannot write checkpoints there either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from generic_trainer._core.cluster import Task
from generic_trainer.errors import (
    ConfigurationError,
    GenericTrainerError,
    TrainingError,
    WorkerHangError,
    WorkerLostError,
)
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._failures import Failure, failure_of_exit_code, signal_name
from generic_trainer.launchers._job import Job, JobFolder, with_carried_environment
from generic_trainer.launchers._remote.service import (
    FENCE_S,
    JobStatus,
    RemoteService,
    TaskStatus,
    TooEarlyError,
    is_refusal,
    shown_log,
)
from generic_trainer.launchers._supervisor import Engine, supervise
from generic_trainer.launchers._worker_end import WorkerEnd

# A service that has never answered for this long is taken for a wrong address.
_FIRST_ANSWER_S = 120.0
# How long a service may not see an object that it has just made.
_EARLY_S = 30.0
# How long deleted workers may take to end, beyond `preemption_grace_s`.
_DELETION_S = 30.0
_ENDED = ("failed", "succeeded")
# Ends of tasks mean nothing in these phases: the service or a person has ended the tasks.
_ENDED_FROM_OUTSIDE = ("cancelled", "deleted", "expired", "suspended")
# Reasons that add nothing to an exit code.
_PLAIN_REASONS = ("", "Completed", "Error")
_UNSEEN = JobStatus()

_logger = logging.getLogger(__name__)


def run_by_service(service: Callable[[Distribution], RemoteService], job: Job) -> None:
    """Runs a job in workers that a service starts.

    Args:
        service: makes the service for a distribution; it raises a `ConfigurationError` if the
            service's client is not installed, or not configured.
        job: the job.
    """
    supervise(job, lambda job: RemoteEngine(job, service(job.distribution)))


@dataclasses.dataclass
class _ServiceJob:
    """The job of one attempt.

    Attributes:
        name: of the service's object.
        label: kind and name, for messages.
        folder: through which the workers get their task.
        digest: of the folder's contents.
        status: what the service has said last.
        state: what is logged of the status.
        may_exist: whether the service may have got the request that makes it.
        is_made: whether the service has said so.
        is_stopped: whether the workers are to save and end.
        is_deleted: whether the service has accepted its deletion; workers may run on.
        silent_since_s: when the service ceased to answer; None if it answers.
        early_since_s: when the service first found the request to be too early.
        next_warning_s: when its silence is next logged.
    """

    name: str
    label: str
    folder: JobFolder
    digest: str = ""
    status: JobStatus = _UNSEEN
    state: str = ""
    may_exist: bool = False
    is_made: bool = False
    is_stopped: bool = False
    is_deleted: bool = False
    silent_since_s: float | None = None
    early_since_s: float | None = None
    next_warning_s: float = -math.inf


class RemoteEngine(Engine):
    """Workers that a service runs; see `Engine`."""

    def __init__(
        self,
        job: Job,
        service: RemoteService,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Starts nothing yet.

        Args:
            job: the job to run.
            service: the service that runs it.
            clock: returns the time in seconds.
            sleep: waits for a number of seconds.
        """
        self._job = with_carried_environment(job)
        self._service = service
        self._clock = clock
        self._sleep = sleep
        self._tasks = tasks(job.distribution)
        self._log = contextlib.ExitStack()
        self._has_answered = False
        self._current: _ServiceJob  # of the attempt: `start` makes it
        self._leftovers: list[_ServiceJob] = []  # whose workers may still run
        self._fenced_at_s = -math.inf

    def start(self) -> None:
        """Writes the folder of the job; the first `poll` makes the job.

        Raises:
            ConfigurationError: workers could not see the pipeline root.
            ModuleFileError: the user's code cannot be read.
        """
        launcher = self._job.distribution.launcher
        run_dir = self._job.request.model_run_dir
        name = f"generic-trainer-{uuid.uuid4().hex[:10]}"
        folder = JobFolder(os.path.join(run_dir, f".{launcher}", name))
        self._current = _ServiceJob(name, f"{self._service.kind} {name}", folder)
        self._current.digest = folder.write(self._job, launcher, self._service.mounts())

    def poll(self) -> Sequence[WorkerEnd]:
        """Makes the job if it does not exist yet, and returns how its workers ended.

        A service that does not answer changes nothing: the supervisor decides how long to wait.

        Raises:
            ConfigurationError: the service refuses the job, or has never answered.
        """
        current = self._current
        if current.is_made or (current.silent_since_s, current.early_since_s) != (None, None):
            self._sleep(self._service.poll_s)
        try:
            if not current.is_made:
                self._make()
            if current.is_stopped:  # the deletion in `stop` may have failed
                self._delete(current)
            self._note(self._service.look(current.name, current.folder))
        except GenericTrainerError:  # an answer, and not a lack of one
            raise
        except TooEarlyError as error:
            self._note_early(error)
        except Exception as error:  # of the network, the service or its client
            self._note_silence(error)
        else:
            if current.silent_since_s is not None:
                _logger.info("%s answers again", self._service.provider)
            current.silent_since_s = None
        return self._ends()

    def running(self) -> Sequence[Task]:
        """Returns the tasks that have not ended."""
        status = self._current.status
        if status.phase == "suspended":  # its workers are gone, and will come back
            return self._tasks
        known = status.tasks
        return [task for task in self._tasks if task in known and known[task].phase not in _ENDED]

    def check(self) -> None:
        """Raises an error if the job cannot end well.

        Raises:
            TrainingError: the job was deleted or cancelled from outside.
            WorkerHangError: the service's own time limit is over.
            WorkerLostError: the service has given the job up.
            ConfigurationError: a worker will never start.
        """
        status, label = self._current.status, self._current.label
        if status.phase in ("cancelled", "deleted"):
            raise TrainingError(
                f"The {label} was {status.phase} from outside, by a person or a policy of "
                f"{self._service.provider}, so it is not made again. {status.message} The next run "
                "of the same inputs, code and hyperparameters goes on from the last checkpoint, if "
                "run_fn writes any."
            )
        if status.phase == "expired":
            raise WorkerHangError(f"The {label} exceeded its time limit. {status.message}")
        if stuck := {task: state for task, state in status.tasks.items() if state.phase == "stuck"}:
            raise ConfigurationError(
                f"The workers cannot start: {_waits(stuck, len(stuck))}. {self._service.remedy}"
            )
        if status.phase == "failed":
            reason = status.message.rstrip(".")
            raise WorkerLostError(
                f"The {label} was given up by {self._service.provider}: {reason}."
            )

    def stop(self) -> None:
        """Deletes the job: its workers save and end."""
        self._current.is_stopped = True
        with contextlib.suppress(Exception):  # the next poll tries again
            self._delete(self._current)

    def diagnose(self) -> str:
        """Returns the cause of the delay of tasks that do not run yet."""
        current = self._current
        if current.silent_since_s is not None:
            silent_s = self._clock() - current.silent_since_s
            return f"{self._service.provider} has not answered for the last {silent_s:.0f} s."
        return f"The {current.label}: {current.state}." if current.state else ""

    def kill(self) -> None:
        """Deletes the job, and waits until none of its workers can write anywhere."""
        current = self._current
        chief = current.status.tasks.get(self._tasks[0])
        if chief is not None and chief.phase in _ENDED:  # else its log ends with the deletion
            self._log.close()
        if current.may_exist and not self._await_end(current):
            _logger.warning("The %s may still run", current.label)
            self._leftovers.append(current)
        self._log.close()
        try:
            current.folder.delete()
            self._fenced_at_s = self._clock()
        except Exception as error:  # no reason to fail a run
            _logger.warning("The folder %s could not be deleted: %s", current.folder.path, error)

    def close(self) -> None:
        """Deletes the jobs that could not be deleted before, and names what may still run."""
        service = self._service
        for left in self._leftovers:
            name = left.name
            if not (self._has_ended(left) if left.is_deleted else self._await_end(left)):
                remedy = (
                    f"The service is ending it. If a node of it does not answer, its workers end "
                    f"when they see that {left.folder.path} is gone. "
                    f"`{service.workers_command(name)}` lists them."
                    if left.is_deleted
                    else f"It can be deleted with `{service.delete_command(name)}`."
                )
                _logger.error("The %s may still run. %s", left.label, remedy)

    def _fence(self) -> None:
        """Ends the jobs of earlier attempts: two must not write the same checkpoints.

        Workers on a node that is lost cannot be ended. They end themselves, because their folder
        was deleted.
        """
        for left in self._leftovers:
            if not left.is_deleted:
                self._delete(left)
                self._await_end(left)
            if not left.folder.is_deleted():
                left.folder.delete()
                self._fenced_at_s = self._clock()
        if self._leftovers and (left_s := self._fenced_at_s + FENCE_S - self._clock()) > 0:
            self._sleep(left_s)

    def _make(self) -> None:
        self._fence()
        service, current = self._service, self._current
        chief = self._tasks[0]
        current.may_exist = True  # before the request: it may be fulfilled and not answered
        try:
            service.create(current.name, self._job.distribution, current.folder, current.digest)
        except Exception as error:
            current.may_exist = not (isinstance(error, GenericTrainerError) or is_refusal(error))
            raise
        current.is_made = self._has_answered = True
        _logger.info("Made the %s", current.label)
        if service.has_logs:
            prefix = f"[{chief.name}] " if self._job.distribution.is_cluster else ""
            self._log.enter_context(shown_log(lambda: service.log(current.name, chief), prefix))

    def _note(self, status: JobStatus) -> None:
        """Keeps the state of the job, and logs it if it has changed."""
        current = self._current
        if current.status.phase == "suspended" != status.phase:
            for task in self._tasks:  # their ends were those of the suspension
                current.folder.forget_end(task)
        current.status = status
        parts = []
        if status.phase == "active":
            parts = [_waits(status.tasks, len(self._tasks)), status.warnings]
        elif status.phase == "suspended":
            parts = ["suspended, waiting to be resumed", status.message]
        state = "; ".join(filter(None, parts))
        if state != current.state:
            current.state = state
            is_blocked = status.phase == "suspended" or status.warnings or "Unschedulable" in state
            level = logging.WARNING if is_blocked else logging.INFO
            _logger.log(level, "%s: %s", current.label, state or "all workers have started")

    def _note_silence(self, error: Exception) -> None:
        """Logs that the service does not answer, ever more rarely.

        Raises:
            ConfigurationError: it has never answered, or never allowed this process to look.
        """
        current = self._current
        now_s = self._clock()
        provider = self._service.provider
        if current.silent_since_s is None:
            current.silent_since_s = current.next_warning_s = now_s
        silent_s = now_s - current.silent_since_s
        is_refused = current.status is _UNSEEN and is_refusal(error)
        if is_refused or (not self._has_answered and silent_s > _FIRST_ANSWER_S):
            said = getattr(error, "body", None) or error
            raise ConfigurationError(
                f"{provider} {'refuses requests' if is_refused else 'does not answer'}: {said}. "
                f"This process needs {self._service.permissions}."
            ) from error
        if now_s >= current.next_warning_s:
            current.next_warning_s = now_s + max(silent_s, self._service.poll_s)
            _logger.warning(
                "%s does not answer; the %s may run and is waited for: %s",
                provider,
                current.label,
                error,
            )

    def _note_early(self, error: TooEarlyError) -> None:
        """Logs that the job is not accepted yet.

        Raises:
            ConfigurationError: it has not been for a while.
        """
        current = self._current
        if current.early_since_s is None:
            current.early_since_s = self._clock()
            _logger.info("The %s is not accepted yet: %s", current.label, error)
        if self._clock() - current.early_since_s > _EARLY_S:
            raise ConfigurationError(
                f"{self._service.provider} has refused the {current.label} for {_EARLY_S:.0f} s, "
                f"though it has made the object that is not found: {error}"
            ) from error

    def _ends(self) -> list[WorkerEnd]:
        # Their workers seem lost, and would be tried again against the will of whoever ended them:
        # `check` raises instead, or waits for a suspended job.
        current = self._current
        if current.status.phase in _ENDED_FROM_OUTSIDE:
            return []
        ends = []
        for task, status in current.status.tasks.items():
            if status.phase == "failed":
                ends.append(_end_of(task, status, WorkerEnd.read(current.folder.end_of(task))))
            elif status.phase == "succeeded":
                ends.append(WorkerEnd(task=task.name))
        if current.status.phase == "succeeded":
            ends.append(WorkerEnd(task=self._tasks[0].name))
        return ends

    def _delete(self, job: _ServiceJob) -> None:
        if not job.is_deleted:
            self._service.delete(job.name)
            job.is_deleted = True

    def _has_ended(self, job: _ServiceJob) -> bool:
        with contextlib.suppress(Exception):  # of the network, the service or its client
            return self._service.has_ended(job.name)
        return False

    def _await_end(self, job: _ServiceJob) -> bool:
        """Deletes a job and waits as long as its workers may take to end; returns if they have."""
        end_s = self._clock() + self._job.distribution.preemption_grace_s + _DELETION_S
        while True:
            with contextlib.suppress(Exception):  # of the network, the service or its client
                self._delete(job)
            if job.is_deleted and self._has_ended(job):
                return True
            if self._clock() >= end_s:
                return False
            self._sleep(self._service.poll_s)


def _end_of(task: Task, status: TaskStatus, written: WorkerEnd | None) -> WorkerEnd:
    """Returns how a worker ended.

    Args:
        task: the worker.
        status: its end, as the service reports it.
        written: its end, as it has written itself.
    """
    details = "" if status.reason in _PLAIN_REASONS and not status.message else status.details
    if written is not None:
        message = f"{written.message} ({details})" if details else written.message
        return dataclasses.replace(written, message=message)
    code = status.exit_code
    name = None if code is None else signal_name(code)
    if status.reason == "OOMKilled":
        failure = Failure.MEMORY
        message = (
            "was killed because it exceeded its memory limit. Give it more (memory_mb_per_worker), "
            "or use smaller batches or a smaller shuffle buffer."
        )
    elif code is None:
        failure = Failure.LOST
        message = f"was lost: {details or 'no reason is given'}."
    else:
        details = f": {details}" if details else ""
        signal = f" ({name})" if name else ""
        failure = failure_of_exit_code(code)
        message = f"exited with exit code {code}{signal} without reporting an error{details}."
    return WorkerEnd(
        task=task.name,
        failure=failure,
        message=f"its container {status.name} {message}",
        fields={"exit_code": code, "signal": name},
    )


def _waits(known: Mapping[Task, TaskStatus], expected: int) -> str:
    """Returns the reasons for which tasks do not run yet; empty if all run.

    Args:
        known: the tasks that exist.
        expected: how many tasks there should be.
    """
    names: dict[str, list[str]] = {}
    for status in known.values():
        if status.phase in ("waiting", "stuck"):
            names.setdefault(status.details or "no reason is given", []).append(status.name)
    reasons = []
    for details, (first, *others) in names.items():
        verb = f"and {len(others)} more wait" if others else "waits"
        reasons.append(f"{first} {verb}: {details}")
    if missing := expected - len(known):
        reasons.append(f"{missing} of {expected} workers do not exist yet")
    return "; ".join(reasons)
