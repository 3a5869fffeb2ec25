"""Interface between the engine of remote jobs and the services that run them, and shown logs."""

import contextlib
import dataclasses
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, Protocol

from generic_trainer._core.cluster import Task
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._job import JobFolder

JobPhase = Literal["active", "suspended", "succeeded", "failed", "cancelled", "deleted", "expired"]
ENDS_WITH_CHIEF = "is for 'local', 'ray' and 'trainjob'; others end their workers with the chief"
PROGRAM = "generic_trainer.launchers._remote.program"
# Codes of HTTP that a later request may not meet: timeout, conflict, too many, cancelled.
_TRANSIENT_CODES = (408, 409, 429, 499)

# Seconds between two looks of a worker for the folder of its job.
FENCE_POLL_S = 5.0
# Seconds after the deletion of that folder until no worker of the job writes any more.
FENCE_S = 15.0

_LOG_RETRY_S = 1.0
_LAST_LINES_S = 60.0


@dataclasses.dataclass(frozen=True)
class TaskStatus:
    """State of a task, as the service reports it.

    Attributes:
        name: the service's name of the process or its container.
        phase: `"stuck"` means that the task has not started and never will.
        exit_code: of a container that ended by itself; None if it is unknown, or if the service
            took the container away.
        reason: why it waits or has ended, such as `"ImagePullBackOff"` or `"OOMKilled"`.
        message: details of the reason.
    """

    name: str
    phase: Literal["waiting", "stuck", "running", "succeeded", "failed"]
    exit_code: int | None = None
    reason: str = ""
    message: str = ""

    @property
    def details(self) -> str:
        """Reason and message, in the service's words; empty if it gives neither."""
        return ": ".join(filter(None, [self.reason, self.message]))


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """State of a job, as the service reports it.

    Attributes:
        phase: `"cancelled"` and `"deleted"` mean by a person, or by a policy of the service;
            `"expired"` that its time limit is over.
        message: the service's explanation of the phase.
        tasks: the tasks that exist.
        warnings: what keeps tasks from being made, in the service's words.
    """

    phase: JobPhase = "active"
    message: str = ""
    tasks: Mapping[Task, TaskStatus] = dataclasses.field(default_factory=dict)
    warnings: str = ""


class TooEarlyError(Exception):
    """The service does not see an object of the job yet that it has just made."""


class RemoteService(Protocol):
    """A service that runs jobs; the engine calls it in one thread, but for `log`.

    A method may raise any error of its client. The engine then calls it again later, unless the
    error is one of this package, which ends the run.

    Attributes:
        provider: name of the service, such as `"Kubernetes"`.
        kind: its name for a job, such as `"TFJob"`.
        poll_s: seconds between two calls of `look`.
        permissions: what this process needs, for messages.
        has_logs: whether it shows the logs of workers, by `log`.
        remedy: advice for tasks that are stuck.
    """

    provider: str
    kind: str
    poll_s: float
    permissions: str
    has_logs: bool = True
    remedy: str = ""

    def mounts(self) -> Collection[str]:
        """Returns the local directories that workers see under the same path."""

    def create(self, name: str, distribution: Distribution, folder: JobFolder, digest: str) -> None:
        """Makes a job whose workers run `PROGRAM` with the folder and its digest.

        After a call without an answer it may be called again; one job is made in all.

        Raises:
            TooEarlyError: it can be called again in a moment.
        """

    def look(self, name: str, folder: JobFolder) -> JobStatus:
        """Returns the state of a job."""

    def delete(self, name: str) -> None:
        """Ends a job, which may have been deleted already, or never made."""

    def has_ended(self, name: str) -> bool:
        """Returns whether all workers of a deleted job are gone."""

    def log(self, name: str, task: Task) -> tuple[str, Iterator[str]]:
        """Returns the name of the writer of a task's log, and all lines of it."""

    def delete_command(self, name: str) -> str:
        """Returns the command with which a person deletes a job."""

    def workers_command(self, name: str) -> str:
        """Returns the command with which a person lists the workers of a job."""


def is_refusal(error: Exception) -> bool:
    """Returns whether an error is the answer of a service that refuses the request."""
    code = getattr(error, "status", None) or getattr(error, "code", None)
    return isinstance(code, int) and 400 <= code < 500 and code not in _TRANSIENT_CODES


def literal(text: str) -> str:
    """Escapes a string against the expansion of `$(NAME)` and `$$` by Kubernetes and Vertex AI."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def variables(distribution: Distribution) -> list[dict[str, Any]]:
    """Returns the environment variables of containers."""
    return [{"name": name, "value": literal(text)} for name, text in distribution.env.items()]


def gpus_of(distribution: Distribution, task: Task) -> int:
    """Returns the number of GPUs that a task needs."""
    # Parameter servers, and a chief that only coordinates, have no use for GPUs.
    if distribution.parameter_servers and task.type != "worker":
        return 0
    gpus = distribution.gpus_per_worker
    return int(distribution.require_gpu if gpus is None else gpus)


@contextlib.contextmanager
def shown_log(read: Callable[[], tuple[str, Iterator[str]]], prefix: str = "") -> Iterator[None]:
    """Shows lines on standard output, from a thread, until the context closes; then the rest.

    Args:
        read: returns the name of the writer, and all lines from the first one on. It is called
            again if it fails, as while a container is being made, or ends, as a connection may.
            The log of another writer is shown from its start.
        prefix: precedes each line.
    """
    closes = threading.Event()

    def show() -> None:
        shown = 0
        writer = ""
        last = False
        while not last:
            last = closes.wait(_LOG_RETRY_S if shown else 0.1)
            with contextlib.suppress(Exception):  # the next turn tries again
                new_writer, lines = read()
                if new_writer != writer:
                    shown = 0
                    writer = new_writer
                for number, line in enumerate(lines):
                    if number >= shown:
                        sys.stdout.write(f"{prefix}{line}\n")
                        sys.stdout.flush()
                        shown += 1

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closes.set()
        thread.join(_LAST_LINES_S)
