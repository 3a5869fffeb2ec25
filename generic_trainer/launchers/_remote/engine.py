"""Engine of the launchers whose workers are a service's: one job of the service per attempt."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError, GenericTrainerError, WorkerLostError
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._failures import Failure, failure_of_exit_code, signal_name
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._packing import JobFolder, with_carried_environment
from generic_trainer.launchers._remote.log import shown_log
from generic_trainer.launchers._remote.service import JobStatus, RemoteService, TaskStatus
from generic_trainer.launchers._worker_end import WorkerEnd

# How long the service may be away before the run is given up.
_PATIENCE_S = 120.0
# How long deleted workers may take to go, beyond `preemption_grace_s`.
_DELETION_S = 30.0
_ENDED = ("failed", "succeeded")

_logger = logging.getLogger(__name__)


class RemoteEngine:
    """Workers that a service runs; see `Engine`."""

    def __init__(self, job: Job, service: RemoteService, *, keep_job: bool = False) -> None:
        """Starts nothing yet.

        Args:
            job: what to run.
            service: where.
            keep_job: whether a job that is over stays there, for looking at it.
        """
        self._job = with_carried_environment(job)
        self._service = service
        self._keep_job = keep_job
        self._tasks = tasks(job.distribution)
        self._name: str | None = None  # of the job that there is
        self._status: JobStatus | None = None
        self._attempt = contextlib.ExitStack()

    def start(self) -> None:
        """Makes the job.

        Raises:
            ConfigurationError: the service refuses it, or its workers could not see the pipeline
                root.
            ModuleFileError: the user's code cannot be read.
        """
        service, distribution = self._service, self._job.distribution
        name = f"generic-trainer-{uuid.uuid4().hex[:10]}"
        path = os.path.join(self._job.request.model_run_dir, service.folder_name, name)
        folder = self._folder = JobFolder(path)
        self._status = JobStatus()
        self._is_looked_at = self._is_deleted = self._is_gone = False
        self._is_kept = self._keep_job
        self._seen_s = time.monotonic()
        try:
            digest = folder.write(self._job, distribution.launcher, service.mounts())
            service.create(name, distribution, folder, digest)
        except BaseException:
            folder.delete()
            raise
        self._name = name
        _logger.info("Made the %s %s", service.kind, name)
        chief = self._tasks[0]
        prefix = f"[{chief.name}] " if distribution.is_cluster else ""
        self._attempt.enter_context(shown_log(lambda: service.log(name, chief, folder), prefix))

    def poll(self) -> Sequence[WorkerEnd]:
        """Asks the service, which may be away for a while, how the workers are.

        Raises:
            ConfigurationError: the service has given the job up because of how it was asked for.
            WorkerLostError: it is away for too long.
        """
        while True:
            if self._is_looked_at:
                time.sleep(self._service.poll_s)
            self._is_looked_at = True
            try:
                self._note(self._service.look(self._name or "", self._folder))
                return self._ends()
            except GenericTrainerError:
                raise
            except Exception as error:  # of the network, of the service, of the client
                if self._is_deleted:  # nobody waits for it any longer than for the workers
                    return self._ends()
                if time.monotonic() - self._seen_s > _PATIENCE_S:
                    raise WorkerLostError(
                        f"The service that runs the {self._service.kind} {self._name} has not "
                        f"answered for {_PATIENCE_S:g} s; the job may still run. {error}"
                    ) from error
                _logger.warning("What runs the %s does not answer: %s", self._service.kind, error)

    def running(self) -> Sequence[Task]:
        """Returns the tasks that have not ended."""
        if self._status is None:
            return []
        if self._status.phase == "suspended":
            return self._tasks
        known = self._status.tasks
        return [task for task in self._tasks if task in known and known[task].phase not in _ENDED]

    def check(self) -> None:
        """Looks at what the service says of the job and of tasks that have not started.

        Raises:
            WorkerLostError: the job is gone, or was given up.
            ConfigurationError: a worker will never start.
        """
        service, status = self._service, self._status
        if status is None:
            raise WorkerLostError(f"Somebody has deleted the {service.kind} {self._name}.")
        if status.phase == "failed":
            raise WorkerLostError(f"The {service.kind} {self._name} was given up: {status.message}")
        hopeless = {
            task: one
            for task, one in status.tasks.items()
            if one.phase == "waiting" and one.reason in service.hopeless
        }
        if hopeless and status.phase != "suspended":
            waits = _waiting_for(hopeless, len(hopeless))
            raise ConfigurationError(f"The workers cannot start: {waits}. {service.remedy}")

    def stop(self) -> None:
        """Deletes the job, even one that is to be kept: its workers are told to save and end."""
        self._is_kept = False
        self._delete()

    def diagnose(self) -> str:
        """Returns what tasks wait for that do not run yet."""
        if self._status is not None and self._status.phase == "suspended":
            return f"The {self._service.kind} {self._name} is suspended. {self._status.message}"
        waits = _waiting_for(self._status.tasks if self._status else {}, len(self._tasks))
        return f"Not all workers had started: {waits}." if waits else ""

    def kill(self) -> None:
        """Deletes the job, and waits until no worker is left that could write anywhere."""
        if self._name is None:
            return
        known = self._status.tasks if self._status else {}
        chief = known.get(self._tasks[0])
        if chief is None or chief.phase not in _ENDED:  # its log ends with it only
            self._delete_and_wait()
        self._attempt.close()
        self._delete_and_wait()
        if self._is_kept:
            _logger.info("The %s %s stays, as keep_job asks for", self._service.kind, self._name)
        else:
            self._folder.delete()
        self._name = None

    def _note(self, status: JobStatus | None) -> None:
        before, self._status = self._status, status
        self._seen_s = time.monotonic()
        if status is None or before is None:
            return
        if status.progress and status.progress != before.progress:
            _logger.info("%s %s: %s", self._service.kind, self._name, status.progress)
        if (status.phase == "suspended") == (before.phase == "suspended"):
            return
        if status.phase == "suspended":
            _logger.warning(
                "The %s %s is suspended, and is waited for. %s",
                *(self._service.kind, self._name, status.message),
            )
            return
        _logger.info("The %s %s is resumed", self._service.kind, self._name)
        for task in self._tasks:  # how they ended for the time being is no end of the run
            self._folder.forget_end(task)

    def _ends(self) -> list[WorkerEnd]:
        if self._status is None or self._status.phase == "suspended":
            return []
        ends = []
        for task, one in self._status.tasks.items():
            if one.phase == "failed":
                ends.append(self._folder.end(task) or _end_of(task, one))
            elif one.phase == "succeeded":
                ends.append(WorkerEnd(task=task.name))
        if self._status.phase == "succeeded":
            ends.append(WorkerEnd(task=self._tasks[0].name))
        return ends

    def _delete(self) -> None:
        if self._is_deleted or self._is_kept or self._name is None:
            return
        self._is_deleted = True
        try:
            self._service.delete(self._name)
        except Exception as error:
            _logger.warning(
                "The %s %s could not be deleted: %s. `%s` does it.",
                *(self._service.kind, self._name, error, self._service.delete_command(self._name)),
            )

    def _delete_and_wait(self) -> None:
        self._delete()
        if not self._is_deleted or self._is_gone or self._name is None:
            return
        self._is_gone = True
        end_s = time.monotonic() + self._job.distribution.preemption_grace_s + _DELETION_S
        with contextlib.suppress(Exception):  # of the network, of the service, of the client
            while not self._service.has_ended(self._name) and time.monotonic() < end_s:
                time.sleep(self._service.poll_s)


def _end_of(task: Task, status: TaskStatus) -> WorkerEnd:
    """Returns how a worker ended that could not say so itself."""
    code, name = status.exit_code, None
    if status.reason == "OOMKilled":
        failure = Failure.MEMORY
        message = (
            "its container was killed because it took more memory than it was given. Give it more "
            "(memory_mb_per_worker), or use smaller batches or a smaller shuffle buffer."
        )
    elif code is None:
        failure = Failure.LOST
        reason = ", ".join(filter(None, [status.reason, status.message])) or "no reason is given"
        message = f"its container {status.name} was lost: {reason}."
    else:
        failure, name = failure_of_exit_code(code), signal_name(code)
        message = (
            f"its container {status.name} ended with exit code {code}"
            f"{f' ({name})' if name else ''} and could not say more."
        )
    return WorkerEnd(
        task=task.name,
        failure=failure,
        message=message,
        exit_code=code,
        signal=name,
    )


def _waiting_for(known: Mapping[Task, TaskStatus], expected: int) -> str:
    """Returns what the tasks wait for that do not run yet, as a sentence; empty when all run.

    Args:
        known: those that there are.
        expected: how many there should be.
    """
    reasons = [
        f"{one.name} waits: {one.reason or 'no reason is given'}"
        + (f" ({one.message})" if one.message else "")
        for one in known.values()
        if one.phase == "waiting"
    ]
    if len(known) < expected:
        reasons.append(f"{expected - len(known)} of {expected} workers were never made")
    return "; ".join(reasons)
