"""Engine of the launcher `vertex`: makes, watches and cancels a custom job for each attempt."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterator
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._options import VertexOptions
from generic_trainer.launchers._packing import JobFolder
from generic_trainer.launchers._remote.engine import RemoteEngine
from generic_trainer.launchers._remote.log import PublishedLog
from generic_trainer.launchers._remote.service import JobStatus, TaskStatus
from generic_trainer.launchers._vertex.custom_job import custom_job, pools_of

_TIMEOUT_S = 60.0
# Codes of google.rpc for which the same job would fail again: INVALID_ARGUMENT, NOT_FOUND,
# PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED.
_FINAL_CODES = (3, 5, 7, 9, 12, 16)
# What Vertex AI says of a replica: nothing else tells how it has ended.
_EXITED = re.compile(r"workerpool(\d)-(\d+) exited with a non-zero status of (\d+)", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"workerpool(\d)-(\d+)[^.]*out[ -]of[ -]memory", re.IGNORECASE)
# States of jobs that are over, after JOB_STATE_.
_DONE = ("SUCCEEDED", "PARTIALLY_SUCCEEDED")
_GIVEN_UP = ("CANCELLED", "EXPIRED", "FAILED")

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def vertex_engine(job: Job) -> Iterator[RemoteEngine]:
    """Opens the engine.

    Raises:
        ConfigurationError: the client is not installed, or there are no credentials.
    """
    yield RemoteEngine(job, VertexService(job.distribution))


class VertexService:
    """Custom jobs of Vertex AI; see `RemoteService`."""

    kind = "custom job"
    folder_name = ".vertex"
    poll_s = 2.0
    hopeless = ()
    remedy = ""

    def __init__(self, distribution: Distribution) -> None:
        """Connects the client.

        Raises:
            ConfigurationError: the client is not installed, or there are no credentials.
        """
        self._options = distribution.vertex or VertexOptions()
        self._tasks, self._pools = tasks(distribution), pools_of(distribution)
        self._client = job_client(self._options.region)
        self._names: dict[str, str] = {}  # ours → Vertex AI's
        self._log: PublishedLog | None = None
        self._has_ended = False

    def mounts(self) -> Collection[str]:
        """Returns where Vertex AI mounts the buckets of the project."""
        return ["/gcs"]

    def create(self, name: str, distribution: Distribution, folder: JobFolder, digest: str) -> None:
        """Makes a custom job."""
        from google.cloud.aiplatform_v1.types import CustomJob

        place = f"projects/{self._options.project}/locations/{self._options.region}"
        try:
            wanted = CustomJob(custom_job(distribution, name, [folder.path, digest]))
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                f"vertex.custom_job is no CustomJob of Vertex AI: {error}. Its fields are those of "
                "google.cloud.aiplatform_v1.types.CustomJob."
            ) from error
        try:
            made = self._client.create_custom_job(
                parent=place, custom_job=wanted, timeout=_TIMEOUT_S
            )
        except Exception as error:
            raise ConfigurationError(
                f"Vertex AI did not make the custom job in {place}: {error}. The account of this "
                "process needs aiplatform.customJobs.create, get and cancel, and may act as the "
                "service account of the job."
            ) from error
        self._names[name] = made.name
        self._has_ended = False
        _logger.info(
            "https://console.cloud.google.com/vertex-ai/training/custom-jobs/locations/%s/jobs/%s "
            "has the logs of all replicas.",
            *(self._options.region, made.name.rpartition("/")[2]),
        )

    def look(self, name: str, folder: JobFolder) -> JobStatus | None:
        """Returns the state of a custom job, and of its replicas what they have noted themselves.

        Raises:
            ConfigurationError: the job was given up for what was asked for.
        """
        job = self._get(name)
        if job is None:
            return None
        state = job.state.name.removeprefix("JOB_STATE_")
        self._has_ended = state in (*_DONE, *_GIVEN_UP)
        if state in _DONE:
            ended = {task: TaskStatus(task.name, "succeeded") for task in self._tasks}
            return JobStatus("succeeded", tasks=ended)
        if state in _GIVEN_UP:
            return self._given_up(job, state, folder)
        phase: Any = "running" if state in ("RUNNING", "UPDATING", "CANCELLING") else "waiting"
        reason = "" if phase == "running" else state
        failed = self._failed(folder)
        alive = {task: TaskStatus(task.name, phase, reason=reason) for task in self._tasks}
        return JobStatus(
            "suspended" if state == "PAUSED" else "active",
            tasks=alive | failed,
            progress=state.lower(),
        )

    def delete(self, name: str) -> None:
        """Cancels a custom job; one that has ended stays in Vertex AI's list."""
        if not self._has_ended:
            self._client.cancel_custom_job(name=self._names[name], timeout=_TIMEOUT_S)

    def has_ended(self, name: str) -> bool:
        """Returns whether no replica is left."""
        job = self._get(name)
        return job is None or bool(job.end_time)

    def log(self, name: str, task: Task, folder: JobFolder) -> tuple[str, Iterator[str]]:
        """Returns the lines that the first replica has put into the folder so far."""
        if self._log is None or self._log.folder != folder:
            self._log = PublishedLog(folder, task)
        return folder.path, self._log.lines()

    def delete_command(self, name: str) -> str:
        """Returns that of gcloud."""
        return (
            f"gcloud ai custom-jobs cancel {self._names.get(name, name)} "
            f"--region={self._options.region}"
        )

    def _get(self, name: str) -> Any:
        from google.api_core.exceptions import NotFound

        try:
            return self._client.get_custom_job(name=self._names[name], timeout=_TIMEOUT_S)
        except NotFound:
            return None

    def _failed(self, folder: JobFolder) -> dict[Task, TaskStatus]:
        """Returns the tasks that have noted that they failed."""
        return {
            task: TaskStatus(task.name, "failed")
            for task in self._tasks
            if (end := folder.end(task)) is not None and end.failure is not None
        }

    def _given_up(self, job: Any, state: str, folder: JobFolder) -> JobStatus:
        message = f"{state.lower()}: {job.error.message}" if job.error.message else state.lower()
        failed = self._failed(folder)
        for pattern, reason in ((_OUT_OF_MEMORY, "OOMKilled"), (_EXITED, "")):
            for found in pattern.finditer(job.error.message):
                task = self._pools[int(found[1])][int(found[2])]
                code = int(found[3]) if found.re is _EXITED else None
                failed.setdefault(task, TaskStatus(task.name, "failed", code, reason))
        if not failed and job.error.code in _FINAL_CODES:
            raise ConfigurationError(
                f"Vertex AI gave up the custom job {job.name}: {job.error.message}"
            )
        return JobStatus("failed", message, failed)


def job_client(region: str) -> Any:
    """Returns the client of Vertex AI's jobs in a region.

    Raises:
        ConfigurationError: it is not installed, or there are no credentials.
    """
    try:
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
    except ImportError as error:
        raise ConfigurationError(
            "launcher='vertex' needs Google's client, which is not installed here: "
            f"pip install google-cloud-aiplatform, or GenericTrainer's extra `vertex` ({error})."
        ) from error
    try:
        return JobServiceClient(
            client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"}
        )
    except DefaultCredentialsError as error:
        raise ConfigurationError(
            "launcher='vertex' finds no credentials of Google Cloud: run it as a service account, "
            f"or `gcloud auth application-default login` ({error})."
        ) from error
