"""Services that run jobs: what the engine of remote jobs asks of one, and what it answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, Protocol

from generic_trainer._core.cluster import Task
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._packing import JobFolder


@dataclasses.dataclass(frozen=True)
class TaskStatus:
    """What a service says of a task.

    Attributes:
        name: what it calls the process or its container.
        phase: whether it waits to be started, runs or has ended.
        exit_code: of a container that has ended; None where nobody knows.
        reason: why it waits or has ended, such as `"ImagePullBackOff"` or `"OOMKilled"`.
        message: more about the reason.
    """

    name: str
    phase: Literal["waiting", "running", "succeeded", "failed"]
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """What a service says of a job.

    Attributes:
        phase: whether it waits or runs, was suspended for a while, or is over.
        message: what it says about that.
        tasks: those that there are.
        progress: how far it is, as a sentence for the log; empty where the service does not tell.
    """

    phase: Literal["active", "suspended", "succeeded", "failed"] = "active"
    message: str = ""
    tasks: Mapping[Task, TaskStatus] = dataclasses.field(default_factory=dict)
    progress: str = ""


class RemoteService(Protocol):
    """A service that runs jobs; the engine calls it in one thread, but for `log`.

    A method may raise whatever its client raises when the network or the service fails: what only
    looks is then tried again for a while. Errors of this package end the attempt.

    Attributes:
        kind: what it calls a job, such as `"TFJob"`.
        folder_name: where the files of jobs lie, below the directory of the ModelRun.
        poll_s: how long to wait, in seconds, before it is asked again.
        hopeless: reasons for which a task would wait for ever.
        remedy: what to do when a task does.
    """

    @property
    def kind(self) -> str: ...
    @property
    def folder_name(self) -> str: ...
    @property
    def poll_s(self) -> float: ...
    @property
    def hopeless(self) -> Collection[str]: ...
    @property
    def remedy(self) -> str: ...

    def mounts(self) -> Collection[str]:
        """Returns the local directories that workers see under the same path."""

    def create(self, name: str, distribution: Distribution, folder: JobFolder, digest: str) -> None:
        """Makes a job whose workers run `_remote.program` with the folder and its digest.

        Raises:
            ConfigurationError: the service refuses it or does not answer.
        """

    def look(self, name: str, folder: JobFolder) -> JobStatus | None:
        """Returns what there is of a job; None when it is gone."""

    def delete(self, name: str) -> None:
        """Ends a job; it may be gone already."""

    def has_ended(self, name: str) -> bool:
        """Returns whether no worker of a deleted job is left that could write anywhere."""

    def log(self, name: str, task: Task, folder: JobFolder) -> tuple[str, Iterator[str]]:
        """Returns what writes the log of a task, and its lines from the first one on."""

    def delete_command(self, name: str) -> str:
        """Returns what a person would type to delete a job."""
