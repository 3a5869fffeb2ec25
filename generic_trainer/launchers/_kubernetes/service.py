"""Jobs of an operator in a Kubernetes cluster, their pods, and the client that watches both.

The template of a pod and its state are those of Kubernetes' core v1.
"""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution, KubernetesOptions, needed_client
from generic_trainer.launchers._job import JobFolder
from generic_trainer.launchers._remote import service

# What a pod may take beyond `preemption_grace_s` to write down how it ended.
_LAST_WORDS_S = 10
# Reasons for which a container has not started and never will.
_STUCK = (
    "ContainerCannotRun",
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "StartError",
)
_POD_PHASES: Any = {"Running": "running", "Succeeded": "succeeded", "Failed": "failed"}
# Seconds to connect, and to answer.
_TIMEOUT_S = (10, 60)
_NOT_FOUND, _CONFLICT = 404, 409
# Condition of a job that holds → its phase.
_PHASES: dict[str, Any] = {"Failed": "failed", "Succeeded": "succeeded", "Complete": "succeeded"}
# Seconds to connect, and to answer: a log may contain nothing new for days. None, for ever, is
# refused by the client's release 37.
_LOG_TIMEOUT_S = (10, 30 * 24 * 3600)


def status_of_pod(pod: Any, container: str) -> service.TaskStatus:
    """Returns the state of a pod.

    The reason of the pod, such as an eviction or a preemption, precedes that of its container,
    whose exit code only follows from it.
    """
    status = cause = pod.status
    phase = _POD_PHASES.get(status.phase, "waiting")
    exit_code = None
    conditions = {
        (condition.type, condition.status): condition for condition in status.conditions or ()
    }
    disruption = conditions.get(("DisruptionTarget", "True"))
    own = [entry.state for entry in status.container_statuses or () if entry.name == container]
    of_container = next(filter(None, (state.terminated or state.waiting for state in own)), None)
    if phase == "failed" and (status.reason or disruption is not None):
        cause = status if status.reason else disruption
    elif of_container is not None:
        cause = of_container
        exit_code = getattr(of_container, "exit_code", None)
        phase = "stuck" if cause.reason in _STUCK else phase
    else:
        cause = conditions.get(("PodScheduled", "False"), status)
    return service.TaskStatus(
        pod.metadata.name, phase, exit_code, cause.reason or "", cause.message or ""
    )


def _resources(distribution: Distribution, task: Task) -> dict[str, dict[str, str]]:
    """Returns requests and limits; GPUs can only be limited."""
    requests = {}
    limits = {}
    if distribution.cpus_per_worker is not None:
        requests["cpu"] = f"{distribution.cpus_per_worker:g}"
    if distribution.memory_mb_per_worker is not None:
        requests["memory"] = limits["memory"] = f"{math.ceil(distribution.memory_mb_per_worker)}Mi"
    if gpus := service.gpus_of(distribution, task):
        limits[distribution.gpu_type] = str(gpus)
    return {"requests": requests, "limits": limits}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A custom resource.

    Attributes:
        name: such as `"TFJob"`.
        group: of its API, such as `"kubeflow.org"`.
        version: of its API.
        plural: its name in addresses.
    """

    name: str
    group: str
    version: str
    plural: str


class KubernetesService(service.RemoteService):
    """Jobs of an operator; see `RemoteService`.

    Attributes:
        release: the operator that knows the kind.
        kinds: the objects of a job, in the order in which they are made; the last one is the job.
        job_label: label of the pods with the name of the job.
        type_label: label with the type of the task.
        index_label: label or annotation with its index.
        container: name of the container that trains.
        unseen: the words with which a job is refused whose other objects are not seen yet.
    """

    provider = "Kubernetes"
    poll_s = 1.0
    release: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    job_label: ClassVar[str]
    type_label: ClassVar[str]
    index_label: ClassVar[str]
    container: ClassVar[str]
    unseen: ClassVar[re.Pattern[str] | None] = None

    def __init__(self, distribution: Distribution) -> None:
        """Reads the configuration of the cluster.

        Raises:
            ConfigurationError: the client is not installed, or not configured.
        """
        options = self._options = distribution.options
        self.kind = self.kinds[-1].name
        self._count = distribution.num_processes
        self.remedy = (
            "Expected an image that the cluster can pull, with python and this package; "
            f"{type(options).__name__}(image={options.image!r})."
        )
        objects = " and ".join(f"{kind.plural}.{kind.group}" for kind in self.kinds)
        self.permissions = (
            f"{self.release} in the cluster, and in namespace {options.namespace!r} the rights to "
            f"create, get and delete {objects}, to list pods and events and to get pods/log"
        )
        self._objects, self._core = connect(distribution.launcher)

    @classmethod
    def specs(
        cls, distribution: Distribution, name: str, arguments: Sequence[str]
    ) -> tuple[dict[str, Any], ...]:
        """Returns the `spec` of each object of a job.

        Args:
            distribution: the distribution, with the workers' environment in `env`.
            name: of the job.
            arguments: of the program; see `_remote.program`.
        """
        raise NotImplementedError

    @classmethod
    def pod_template(
        cls,
        distribution: Distribution,
        task: Task,
        arguments: Sequence[str],
        env: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        """Returns the template of the pods of a type of tasks.

        Args:
            distribution: the distribution, with the workers' environment in `env`.
            task: one of the tasks.
            arguments: of the program; see `_remote.program`.
            env: further variables.
        """
        options: KubernetesOptions = distribution.options
        volumes = [
            (f"volume-{number}", volume) for number, volume in enumerate(options.volumes.items())
        ]
        container: dict[str, Any] = {
            "name": cls.container,
            "image": options.image,
            "command": ["python", "-m", service.PROGRAM, *map(service.literal, arguments)],
            "env": [*service.variables(distribution), *env],
            "resources": _resources(distribution, task),
            "volumeMounts": [{"name": name, "mountPath": path} for name, (_, path) in volumes],
        }
        grace_s = math.ceil(distribution.preemption_grace_s) + _LAST_WORDS_S
        spec: dict[str, Any] = {
            "containers": [container],
            "nodeSelector": dict(options.node_selector),
            "terminationGracePeriodSeconds": grace_s,
            "volumes": [
                {"name": name, "persistentVolumeClaim": {"claimName": claim}}
                for name, (claim, _) in volumes
            ],
        }
        if options.service_account is not None:
            spec["serviceAccountName"] = options.service_account
        # Istio's sidecar, which Kubeflow's namespaces inject, would outlive the training.
        annotations = {"sidecar.istio.io/inject": "false"}
        metadata = {"labels": dict(options.labels), "annotations": annotations}
        return {"metadata": metadata, "spec": spec}

    @classmethod
    def task_of(cls, metadata: Any) -> Task | None:
        """Returns the task of a pod; None for one that the operator has not labelled yet."""
        values = {**(metadata.labels or {}), **(metadata.annotations or {})}
        kind = values.get(cls.type_label, "")
        index = values.get(cls.index_label, "")
        return Task(kind.lower(), int(index)) if kind and index.isdecimal() else None

    @classmethod
    def manifests(
        cls, distribution: Distribution, name: str, folder: str, digest: str
    ) -> list[dict[str, Any]]:
        """Returns the objects of a job.

        Args:
            distribution: the distribution, with the workers' environment in `env`.
            name: of the job.
            folder: of the job, on the pipeline root.
            digest: of the job; see `JobFolder`.
        """
        options = distribution.options
        labels = dict(options.labels)
        specs = cls.specs(distribution, name, [folder, digest])
        return [
            {
                "apiVersion": f"{kind.group}/{kind.version}",
                "kind": kind.name,
                "metadata": {"name": name, "namespace": options.namespace, "labels": labels},
                "spec": spec,
            }
            for kind, spec in zip(cls.kinds, specs, strict=True)
        ]

    @classmethod
    def status_of(cls, job: Mapping[str, Any] | None) -> service.JobStatus:
        """Returns the state of a job, which is None if it was deleted.

        It is deleted, or suspended, as soon as that is asked for: from then on its pods end.
        """
        if job is None or job.get("metadata", {}).get("deletionTimestamp"):
            return service.JobStatus("deleted")
        spec = job["spec"]
        status = job.get("status") or {}
        messages = {
            condition["type"]: condition.get("message", "")
            for condition in status.get("conditions") or []
            if condition.get("status") == "True"
        }
        for condition, phase in _PHASES.items():
            if condition in messages:
                return service.JobStatus(phase, messages[condition])
        if spec.get("runPolicy", spec).get("suspend"):
            return service.JobStatus("suspended", messages.get("Suspended", ""))
        return service.JobStatus()

    def mounts(self) -> Collection[str]:
        """Returns the directories at which the volumes are mounted."""
        return self._options.volumes.values()

    def create(self, name: str, distribution: Distribution, folder: JobFolder, digest: str) -> None:
        """Makes the objects of a job, all or none, unless it is called again."""
        manifests = self.manifests(distribution, name, folder.path, digest)
        for kind, manifest in zip(self.kinds, manifests, strict=True):
            try:
                with _accepting(_CONFLICT):  # an earlier call has made it
                    self._objects.create_namespaced_custom_object(
                        *self._place(kind), manifest, _request_timeout=_TIMEOUT_S
                    )
            except Exception as error:
                words = str(getattr(error, "body", None) or error)
                if self.unseen and name in words and self.unseen.search(words):
                    raise service.TooEarlyError(words) from error
                if service.is_refusal(error):  # else perhaps made: the engine asks again
                    with contextlib.suppress(Exception):  # the first error explains more
                        self.delete(name)
                raise

    def look(self, name: str, folder: JobFolder) -> service.JobStatus:
        """Returns the state of a job and its pods."""
        status = self._status(name)
        tasks = {
            task: status_of_pod(pod, self.container)
            for pod in self._pods(name)
            if (task := self.task_of(pod.metadata)) is not None
        }
        # Pods of a job that was suspended or deleted in between fail without fault.
        if any(task.phase == "failed" for task in tasks.values()):
            status = self._status(name)
        has_all = len(tasks) == self._count or status.phase != "active"
        warnings = "" if has_all else self._warnings(name)
        return dataclasses.replace(status, tasks=tasks, warnings=warnings)

    def delete(self, name: str) -> None:
        """Deletes the objects of a job that exist, and all that their operator made for them."""
        for kind in reversed(self.kinds):
            with _accepting(_NOT_FOUND):
                self._objects.delete_namespaced_custom_object(
                    *self._place(kind),
                    name,
                    propagation_policy="Background",
                    _request_timeout=_TIMEOUT_S,
                )

    def has_ended(self, name: str) -> bool:
        """Returns whether all pods are gone."""
        return not self._pods(name)

    def log(self, name: str, task: Task) -> tuple[str, Iterator[str]]:
        """Returns the pod of a task, and the lines of its log."""
        (pod,) = [pod for pod in self._pods(name) if self.task_of(pod.metadata) == task]
        namespace = self._options.namespace
        return pod.metadata.uid, log_lines(self._core, namespace, pod.metadata.name, self.container)

    def delete_command(self, name: str) -> str:
        """Returns the command of kubectl."""
        return f"kubectl -n {self._options.namespace} delete {self.kind.lower()} {name}"

    def workers_command(self, name: str) -> str:
        """Returns the command of kubectl."""
        return f"kubectl -n {self._options.namespace} get pods -o wide -l {self.job_label}={name}"

    def _place(self, kind: Kind) -> tuple[str, str, str, str]:
        return kind.group, kind.version, self._options.namespace, kind.plural

    def _status(self, name: str) -> service.JobStatus:
        job = None
        with _accepting(_NOT_FOUND):
            job = self._objects.get_namespaced_custom_object(
                *self._place(self.kinds[-1]), name, _request_timeout=_TIMEOUT_S
            )
        return self.status_of(job)

    def _pods(self, name: str) -> list[Any]:
        selector = f"{self.job_label}={name}"
        pods: list[Any] = self._core.list_namespaced_pod(
            self._options.namespace, label_selector=selector, _request_timeout=_TIMEOUT_S
        ).items
        return pods

    def _warnings(self, name: str) -> str:
        """Returns the reasons why pods are not made, such as a quota, by the events of the job.

        They are about the job itself, or about an object that its operator made for it.
        """
        try:
            events = self._core.list_namespaced_event(
                self._options.namespace, field_selector="type=Warning", _request_timeout=_TIMEOUT_S
            ).items
        except Exception:  # a process that may not list events waits without reasons
            return ""
        events.sort(key=lambda event: str(event.last_timestamp or event.event_time))
        latest = {
            event.reason: event.message
            for event in events
            if (event.involved_object.name or "").startswith(name)
        }
        return "; ".join(f"{reason}: {message}" for reason, message in latest.items())


@contextlib.contextmanager
def _accepting(status: int) -> Iterator[None]:
    """Takes a status of HTTP for a success."""
    try:
        yield
    except Exception as error:
        if getattr(error, "status", None) != status:
            raise


def connect(launcher: str) -> tuple[Any, Any]:
    """Returns the client's APIs of custom objects and of pods, connected to the API server.

    It is found by the service account of this pod, or by kubectl's configuration.

    Args:
        launcher: its name, for messages.

    Raises:
        ConfigurationError: the client is not installed, or not configured.
    """
    with needed_client(launcher, "kubernetes", "kubernetes"):
        from kubernetes import client, config
    configuration = client.Configuration()
    # The client's own three retries would treble each timeout.
    configuration.retries = 0
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        path = os.environ.get("KUBECONFIG")
        try:
            config.load_kube_config(path, client_configuration=configuration)
        except config.ConfigException as error:
            raise ConfigurationError(
                f"launcher={launcher!r} finds no Kubernetes cluster: this process is not in a pod "
                f"with a service account, and kubectl's configuration cannot be read ({error})."
            ) from error
    connection = client.ApiClient(configuration)
    return client.CustomObjectsApi(connection), client.CoreV1Api(connection)


def log_lines(core: Any, namespace: str, pod: str, container: str) -> Iterator[str]:
    """Yields the lines of a pod's log, from the first one on, until its container ends."""
    response = core.read_namespaced_pod_log(
        pod,
        namespace,
        container=container,
        follow=True,
        _preload_content=False,
        _request_timeout=_LOG_TIMEOUT_S,
    )
    with contextlib.closing(response):
        for line in response:  # as soon as it arrives
            yield line.decode(errors="replace").removesuffix("\n")
