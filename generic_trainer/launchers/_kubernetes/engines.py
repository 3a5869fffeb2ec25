"""Engines of the launchers `tfjob` and `trainjob`: objects of Kubernetes, made and watched."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._kubernetes import tfjob, trainjob
from generic_trainer.launchers._kubernetes.api import Kind, KubernetesApi, status_of_pod
from generic_trainer.launchers._kubernetes.pods import options_of
from generic_trainer.launchers._packing import JobFolder
from generic_trainer.launchers._remote.engine import RemoteEngine
from generic_trainer.launchers._remote.service import JobStatus, TaskStatus

# A pod that waits for one of these waits for ever.
_HOPELESS = (
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
)


@contextlib.contextmanager
def tfjob_engine(job: Job) -> Iterator[RemoteEngine]:
    """Opens the engine of TFJobs.

    Raises:
        ConfigurationError: the client is not installed, or there is no configuration.
    """
    yield _engine(job, _TFJOBS)


@contextlib.contextmanager
def trainjob_engine(job: Job) -> Iterator[RemoteEngine]:
    """Opens the engine of TrainJobs.

    Raises:
        ConfigurationError: the client is not installed, or there is no configuration.
    """
    yield _engine(job, _TRAINJOBS)


@dataclasses.dataclass(frozen=True)
class _Operator:
    """An operator, and how its jobs are written and read.

    Attributes:
        launcher: its name in a `Distribution`.
        release: what the cluster must have.
        kinds: the objects of a job, in the order in which they are made; the last one is the job.
        manifests: returns them for a distribution, a name, the folder of the job and its digest.
        status_of: what the operator says of the job.
        task_of: the task of a pod, from its metadata.
        job_label: label of the pods with the name of the job.
        container: name of the container that trains.
    """

    launcher: str
    release: str
    kinds: tuple[Kind, ...]
    manifests: Callable[[Distribution, str, str, str], tuple[dict[str, Any], ...]]
    status_of: Callable[[Mapping[str, Any]], JobStatus]
    task_of: Callable[[Any], Task | None]
    job_label: str
    container: str


_TFJOBS = _Operator(
    launcher="tfjob",
    release="Install Kubeflow's training operator (1.x: 2.0 has no TFJobs).",
    kinds=(tfjob.TFJOB,),
    manifests=lambda *wanted: (tfjob.manifest(*wanted),),
    status_of=tfjob.status_of,
    task_of=tfjob.task_of,
    job_label=tfjob.JOB_LABEL,
    container=tfjob.CONTAINER,
)
_TRAINJOBS = _Operator(
    launcher="trainjob",
    release="Install Kubeflow Trainer (2.x: the training operator 1.x has no TrainJobs).",
    kinds=(trainjob.RUNTIME, trainjob.TRAINJOB),
    manifests=lambda distribution, name, *job: (
        trainjob.runtime(distribution, name, *job),
        trainjob.manifest(distribution, name),
    ),
    status_of=trainjob.status_of,
    task_of=trainjob.task_of,
    job_label=trainjob.JOB_LABEL,
    container=trainjob.CONTAINER,
)


def _engine(job: Job, operator: _Operator) -> RemoteEngine:
    options = options_of(job.distribution)
    service = KubernetesService(job.distribution, operator)
    return RemoteEngine(job, service, keep_job=options.keep_job)


class KubernetesService:
    """Jobs of an operator in a cluster; see `RemoteService`."""

    poll_s = 1.0
    hopeless = _HOPELESS

    def __init__(self, distribution: Distribution, operator: _Operator) -> None:
        """Reads the configuration of the cluster.

        Raises:
            ConfigurationError: the client is not installed, or there is no configuration.
        """
        self._options, self._operator = options_of(distribution), operator
        self.kind, self.folder_name = operator.kinds[-1].name, f".{operator.launcher}"
        self.remedy = (
            "Expected an image that the cluster can pull; "
            f"{type(self._options).__name__}(image={self._options.image!r})."
        )
        objects = " and ".join(f"{kind.plural}.{kind.group}" for kind in operator.kinds)
        self._api = KubernetesApi(
            self._options.namespace,
            operator.launcher,
            f"create, get and delete on {objects}, list on pods and get on pods/log",
            operator.release,
        )

    def mounts(self) -> Collection[str]:
        """Returns where the volumes are mounted."""
        return self._options.volumes.values()

    def create(self, name: str, distribution: Distribution, folder: JobFolder, digest: str) -> None:
        """Makes the objects of a job, all or none."""
        made: list[Kind] = []
        manifests = self._operator.manifests(distribution, name, folder.path, digest)
        try:
            for kind, manifest in zip(self._operator.kinds, manifests, strict=True):
                self._api.create(kind, manifest)
                made.append(kind)
        except BaseException:
            for kind in reversed(made):
                with contextlib.suppress(Exception):  # the first error says more
                    self._api.delete(kind, name)
            raise

    def look(self, name: str, folder: JobFolder) -> JobStatus | None:
        """Returns the state of a job and its pods."""
        status = self._status(name)
        if status is None:
            return None
        found = self._tasks(name)
        if any(one.phase == "failed" for one in found.values()):
            # A job that is suspended loses its pods, and is told to be so before they are.
            status = self._status(name) or status
        return dataclasses.replace(status, tasks=found)

    def delete(self, name: str) -> None:
        """Deletes a job with its pods, and what it was made of."""
        for kind in reversed(self._operator.kinds):
            self._api.delete(kind, name)

    def has_ended(self, name: str) -> bool:
        """Returns whether no pod is left."""
        return not self._pods(name)

    def log(self, name: str, task: Task, folder: JobFolder) -> tuple[str, Iterator[str]]:
        """Returns the pod of a task, and the lines of its log."""
        (pod,) = [pod for pod in self._pods(name) if self._operator.task_of(pod.metadata) == task]
        lines = self._api.log(pod.metadata.name, self._operator.container)
        return pod.metadata.uid or pod.metadata.name, lines

    def delete_command(self, name: str) -> str:
        """Returns that of kubectl."""
        return f"kubectl delete {self.kind.lower()} {name} -n {self._options.namespace}"

    def _status(self, name: str) -> JobStatus | None:
        found = self._api.get(self._operator.kinds[-1], name)
        return None if found is None else self._operator.status_of(found)

    def _pods(self, name: str) -> list[Any]:
        return self._api.pods(f"{self._operator.job_label}={name}")

    def _tasks(self, name: str) -> dict[Task, TaskStatus]:
        return {
            task: status_of_pod(pod, self._operator.container)
            for pod in self._pods(name)
            if (task := self._operator.task_of(pod.metadata)) is not None
        }
