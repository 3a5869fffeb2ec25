"""Engine of the launchers whose workers a service runs: one job of the service per attempt.

Requests and answers can be lost, and a node can be out of reach while its workers still train. So
the engine never takes silence for an end, and two jobs never write the same checkpoints::

    attempt 1   create A         sent, answer lost: `_may_exist`, not yet `_is_made`
                create A         sent again, as the service makes one job of a name: `_is_made`
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
        self._deleted: set[str] = set()
        # Jobs whose workers may still run, and their folders.
        self._leftovers: dict[str, JobFolder] = {}
        self._fenced_at_s = -math.inf

    def start(self) -> None:
        """Writes the folder of the job; the first `poll` makes the job.

        Raises:
            ConfigurationError: workers could not see the pipeline root.
            ModuleFileError: the user's code cannot be read.
        """
        launcher = self._job.distribution.launcher
        run_dir = self._job.request.model_run_dir
        self._name = f"generic-trainer-{uuid.uuid4().hex[:10]}"
        self._label = f"{self._service.kind} {self._name}"
        self._folder = JobFolder(os.path.join(run_dir, f".{launcher}", self._name))
        self._status = _UNSEEN
        self._may_exist = self._is_made = self._is_stopped = False
        self._silent_since_s: float | None = None
        self._early_since_s: float | None = None
        self._state = ""
        self._digest = self._folder.write(self._job, launcher, self._service.mounts())

    def poll(self) -> Sequence[WorkerEnd]:
        """Makes the job if it does not exist yet, and returns how its workers ended.

        A service that does not answer changes nothing: the supervisor decides how long to wait.

        Raises:
            ConfigurationError: the service refuses the job, or has never answered.
        """
        if self._is_made or (self._silent_since_s, self._early_since_s) != (None, None):
            self._sleep(self._service.poll_s)
        try:
            if not self._is_made:
                self._make()
            if self._is_stopped:  # the deletion in `stop` may have failed
                self._delete(self._name)
            self._note(self._service.look(self._name, self._folder))
        except GenericTrainerError:  # an answer, and not a lack of one
            raise
        except TooEarlyError as error:
            self._note_early(error)
        except Exception as error:  # of the network, the service or its client
            self._note_silence(error)
        else:
            if self._silent_since_s is not None:
                _logger.info("%s answers again", self._service.provider)
            self._silent_since_s = None
        return self._ends()

    def running(self) -> Sequence[Task]:
        """Returns the tasks that have not ended."""
        if self._status.phase == "suspended":  # its workers are gone, and will come back
            return self._tasks
        known = self._status.tasks
        return [task for task in self._tasks if task in known and known[task].phase not in _ENDED]

    def check(self) -> None:
        """Raises an error if the job cannot end well.

        Raises:
            TrainingError: the job was deleted or cancelled from outside.
            WorkerHangError: the service's own time limit is over.
            WorkerLostError: the service has given the job up.
            ConfigurationError: a worker will never start.
        """
        status = self._status
        if status.phase in ("cancelled", "deleted"):
            raise TrainingError(
                f"The {self._label} was {status.phase} from outside, by a person or a policy of "
                f"{self._service.provider}, so it is not made again. {status.message} The next run "
                "of the same inputs, code and hyperparameters goes on from the last checkpoint, if "
                "run_fn writes any."
            )
        if status.phase == "expired":
            raise WorkerHangError(f"The {self._label} exceeded its time limit. {status.message}")
        if stuck := {task: state for task, state in status.tasks.items() if state.phase == "stuck"}:
            raise ConfigurationError(
                f"The workers cannot start: {_waits(stuck, len(stuck))}. {self._service.remedy}"
            )
        if status.phase == "failed":
            reason = status.message.rstrip(".")
            raise WorkerLostError(
                f"The {self._label} was given up by {self._service.provider}: {reason}."
            )

    def stop(self) -> None:
        """Deletes the job: its workers save and end."""
        self._is_stopped = True
        with contextlib.suppress(Exception):  # the next poll tries again
            self._delete(self._name)

    def diagnose(self) -> str:
        """Returns the cause of the delay of tasks that do not run yet."""
        if self._silent_since_s is not None:
            silent_s = self._clock() - self._silent_since_s
            return f"{self._service.provider} has not answered for the last {silent_s:.0f} s."
        return f"The {self._label}: {self._state}." if self._state else ""

    def kill(self) -> None:
        """Deletes the job, and waits until none of its workers can write anywhere."""
        chief = self._status.tasks.get(self._tasks[0])
        if chief is not None and chief.phase in _ENDED:  # else its log ends with the deletion
            self._log.close()
        if self._may_exist and not self._await_end(self._name):
            _logger.warning("The %s may still run", self._label)
            self._leftovers[self._name] = self._folder
        self._log.close()
        try:
            self._folder.delete()
            self._fenced_at_s = self._clock()
        except Exception as error:  # no reason to fail a run
            _logger.warning("The folder %s could not be deleted: %s", self._folder.path, error)

    def close(self) -> None:
        """Deletes the jobs that could not be deleted before, and names what may still run."""
        service = self._service
        for name, folder in self._leftovers.items():
            if not (self._has_ended(name) if name in self._deleted else self._await_end(name)):
                remedy = (
                    f"The service is ending it. If a node of it does not answer, its workers end "
                    f"when they see that {folder.path} is gone. `{service.workers_command(name)}` "
                    "lists them."
                    if name in self._deleted
                    else f"It can be deleted with `{service.delete_command(name)}`."
                )
                _logger.error("The %s %s may still run. %s", service.kind, name, remedy)

    def _fence(self) -> None:
        """Ends the jobs of earlier attempts: two must not write the same checkpoints.

        Workers on a node that is lost cannot be ended. They end themselves, because their folder
        was deleted.
        """
        for name, folder in self._leftovers.items():
            if name not in self._deleted:
                self._delete(name)
                self._await_end(name)
            if not folder.is_deleted():
                folder.delete()
                self._fenced_at_s = self._clock()
        if self._leftovers and (left_s := self._fenced_at_s + FENCE_S - self._clock()) > 0:
            self._sleep(left_s)

    def _make(self) -> None:
        self._fence()
        service = self._service
        name = self._name
        chief = self._tasks[0]
        self._may_exist = True  # before the request: it may be fulfilled and not answered
        try:
            service.create(name, self._job.distribution, self._folder, self._digest)
        except Exception as error:
            self._may_exist = not (isinstance(error, GenericTrainerError) or is_refusal(error))
            raise
        self._is_made = self._has_answered = True
        _logger.info("Made the %s", self._label)
        if service.has_logs:
            prefix = f"[{chief.name}] " if self._job.distribution.is_cluster else ""
            self._log.enter_context(shown_log(lambda: service.log(name, chief), prefix))

    def _note(self, status: JobStatus) -> None:
        """Keeps the state of the job, and logs it if it has changed."""
        if self._status.phase == "suspended" != status.phase:
            for task in self._tasks:  # their ends were those of the suspension
                self._folder.forget_end(task)
        self._status = status
        parts = []
        if status.phase == "active":
            parts = [_waits(status.tasks, len(self._tasks)), status.warnings]
        elif status.phase == "suspended":
            parts = ["suspended, waiting to be resumed", status.message]
        state = "; ".join(filter(None, parts))
        if state != self._state:
            self._state = state
            is_blocked = status.phase == "suspended" or status.warnings or "Unschedulable" in state
            level = logging.WARNING if is_blocked else logging.INFO
            _logger.log(level, "%s: %s", self._label, state or "all workers have started")

    def _note_silence(self, error: Exception) -> None:
        """Logs that the service does not answer, ever more rarely.

        Raises:
            ConfigurationError: it has never answered, or never allowed this process to look.
        """
        now_s = self._clock()
        provider = self._service.provider
        if self._silent_since_s is None:
            self._silent_since_s = self._next_warning_s = now_s
        silent_s = now_s - self._silent_since_s
        is_refused = self._status is _UNSEEN and is_refusal(error)
        if is_refused or (not self._has_answered and silent_s > _FIRST_ANSWER_S):
            said = getattr(error, "body", None) or error
            raise ConfigurationError(
                f"{provider} {'refuses requests' if is_refused else 'does not answer'}: {said}. "
                f"This process needs {self._service.permissions}."
            ) from error
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + max(silent_s, self._service.poll_s)
            _logger.warning(
                "%s does not answer; the %s may run and is waited for: %s",
                provider,
                self._label,
                error,
            )

    def _note_early(self, error: TooEarlyError) -> None:
        """Logs that the job is not accepted yet.

        Raises:
            ConfigurationError: it has not been for a while.
        """
        if self._early_since_s is None:
            self._early_since_s = self._clock()
            _logger.info("The %s is not accepted yet: %s", self._label, error)
        if self._clock() - self._early_since_s > _EARLY_S:
            raise ConfigurationError(
                f"{self._service.provider} has refused the {self._label} for {_EARLY_S:.0f} s, "
                f"though it has made the object that is not found: {error}"
            ) from error

    def _ends(self) -> list[WorkerEnd]:
        # Their workers seem lost, and would be tried again against the will of whoever ended them:
        # `check` raises instead, or waits for a suspended job.
        if self._status.phase in _ENDED_FROM_OUTSIDE:
            return []
        ends = []
        for task, status in self._status.tasks.items():
            if status.phase == "failed":
                ends.append(_end_of(task, status, WorkerEnd.read(self._folder.end_of(task))))
            elif status.phase == "succeeded":
                ends.append(WorkerEnd(task=task.name))
        if self._status.phase == "succeeded":
            ends.append(WorkerEnd(task=self._tasks[0].name))
        return ends

    def _delete(self, name: str) -> None:
        if name not in self._deleted:
            self._service.delete(name)
            self._deleted.add(name)

    def _has_ended(self, name: str) -> bool:
        with contextlib.suppress(Exception):  # of the network, the service or its client
            return self._service.has_ended(name)
        return False

    def _await_end(self, name: str) -> bool:
        """Deletes a job and waits as long as its workers may take to end; returns if they have."""
        end_s = self._clock() + self._job.distribution.preemption_grace_s + _DELETION_S
        while True:
            with contextlib.suppress(Exception):  # of the network, the service or its client
                self._delete(name)
            if name in self._deleted and self._has_ended(name):
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
