"""Workers as the replicas of a Vertex AI custom job; see `_remote`.

1. Worker pool 0 is the one replica that acts as the chief, pool 1 the other workers, and pool 2 the
   parameter servers, as Vertex AI has it. The job ends with the first replica.
2. A replica finds its place in `CLUSTER_SPEC`, of which its program makes `TF_CONFIG`.
3. Vertex AI describes the end of a replica in a single sentence. Workers write details into the
   folder of the job. Their logs are in Vertex AI's console, to which the log of the run has a link.
4. A new job follows one that was preempted, and goes on from the last checkpoint; Vertex AI's own
   retries are off.
5. Tested with the real client against a stand-in that speaks gRPC; not yet on Vertex AI.

Source: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs
"""

import functools
import itertools
import json
import logging
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.cluster import TF_CONFIG, Task, make_tf_config
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import (
    DEFAULT_GPU_TYPE,
    Distribution,
    VertexOptions,
    needed_client,
    tasks,
)
from generic_trainer.launchers._job import JobFolder
from generic_trainer.launchers._launch import Launcher
from generic_trainer.launchers._remote.engine import run_by_service
from generic_trainer.launchers._remote.service import (
    ENDS_WITH_CHIEF,
    PROGRAM,
    JobStatus,
    RemoteService,
    TaskStatus,
    gpus_of,
    variables,
)
from generic_trainer.launchers._worker_end import WorkerEnd

CLUSTER_SPEC = "CLUSTER_SPEC"
# Label with this package's name of a job, by which a job is found if the answer was lost.
LABEL = "generic_trainer_job"
_POOL = "workerpool"
_TIMEOUT_S = 60.0
# Codes of google.rpc for which the same job would fail again: INVALID_ARGUMENT, NOT_FOUND,
# PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED.
_FINAL_CODES = (3, 5, 7, 9, 12, 16)
# Vertex AI describes the end of a replica by these sentences alone.
_EXITED = re.compile(r"workerpool(\d)-(\d+) exited with a non-zero status of (\d+)", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"workerpool(\d)-(\d+)[^.]*out[ -]of[ -]memory()", re.IGNORECASE)
# State of a job, after JOB_STATE_ → its phase.
_PHASES: dict[str, Any] = {
    "CANCELLED": "cancelled",
    "CANCELLING": "cancelled",
    "EXPIRED": "expired",
    "FAILED": "failed",
    "PARTIALLY_SUCCEEDED": "succeeded",
    "PAUSED": "suspended",
    "SUCCEEDED": "succeeded",
}

_logger = logging.getLogger(__name__)


def pools_of(distribution: Distribution) -> list[list[Task]]:
    """Returns the tasks of each worker pool."""
    first, *others = tasks(distribution)
    workers = [task for task in others if task.type != "ps"]
    servers = [task for task in others if task.type == "ps"]
    return [pool for pool in ([first], workers, servers) if pool]


def custom_job(distribution: Distribution, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the `CustomJob`, with the fields of its proto.

    Args:
        distribution: the distribution, with the workers' environment in `env`.
        name: of the job.
        arguments: of the program; see `_remote.program`.

    Raises:
        ConfigurationError: the options contradict the distribution.
    """
    options: Any = distribution.vertex  # which the launcher requires
    scheduling: dict[str, Any] = {"disable_retries": True}
    if options.spot:
        scheduling["strategy"] = "SPOT"
    if distribution.timeout_s is not None:  # in case this process is killed
        scheduling["timeout"] = {"seconds": math.ceil(distribution.timeout_s)}
    pools = pools_of(distribution)
    spec: dict[str, Any] = {
        "worker_pool_specs": [_pool(distribution, options, pool[0]) for pool in pools],
        "scheduling": scheduling,
    }
    if options.service_account is not None:
        spec["service_account"] = options.service_account
    job: dict[str, Any] = _merged(
        {"display_name": name, "labels": dict(options.labels), "job_spec": spec}, options.custom_job
    )
    job["labels"][LABEL] = name
    # Users may change all but the program and the number of its replicas.
    specs = job["job_spec"]["worker_pool_specs"]
    if len(specs) != len(pools):
        raise ConfigurationError(
            f"vertex.custom_job: expected {len(pools)} worker pools for num_workers="
            f"{distribution.num_workers} and parameter_servers={distribution.parameter_servers}, "
            f"found {len(specs)}. Leave worker_pool_specs out, or give the same number."
        )
    for pool, pool_spec in zip(pools, specs, strict=True):
        pool_spec["replica_count"] = len(pool)
        pool_spec["container_spec"]["command"] = ["python", "-m", PROGRAM]
        pool_spec["container_spec"]["args"] = list(arguments)
    return job


def cluster_variables(distribution: Distribution) -> dict[str, str]:
    """Returns the `TF_CONFIG` of this replica, made of its `CLUSTER_SPEC`; empty if it is alone.

    Raises:
        ConfigurationError: the replicas are not those of the distribution.
    """
    text = os.environ.get(CLUSTER_SPEC)
    if not distribution.is_cluster or not text:
        return {}
    spec = json.loads(text)
    pools = pools_of(distribution)
    hosts = [spec["cluster"].get(f"{_POOL}{number}", []) for number in range(len(pools))]
    if [*map(len, hosts)] != [*map(len, pools)]:
        raise ConfigurationError(
            f"{CLUSTER_SPEC}: expected pools of the sizes {[*map(len, pools)]}, found {text}."
        )
    chained = itertools.chain.from_iterable
    addresses = dict(zip(chained(pools), chained(hosts), strict=True))
    place = spec["task"]
    task = pools[int(place["type"].removeprefix(_POOL))][int(place["index"])]
    # TensorFlow expects the addresses in the order of their indices.
    return {
        TF_CONFIG: make_tf_config(task, {peer: addresses[peer] for peer in tasks(distribution)})
    }


def _pool(distribution: Distribution, options: VertexOptions, task: Task) -> dict[str, Any]:
    machine: dict[str, Any] = {"machine_type": options.machine_type}
    if gpus := gpus_of(distribution, task):
        machine |= {"accelerator_type": distribution.gpu_type, "accelerator_count": gpus}
    return {
        "machine_spec": machine,
        "container_spec": {"image_uri": options.image, "env": variables(distribution)},
    }


def _merged(ours: Any, theirs: Any) -> Any:
    """Returns ours, changed by theirs: objects field by field, pools one by one, `env` added."""
    if theirs is None:
        return ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        changed = {
            name: [*ours.get(name, ()), *value] if name == "env" else _merged(ours.get(name), value)
            for name, value in theirs.items()
        }
        return {**ours, **changed}
    if isinstance(ours, list) and isinstance(theirs, Sequence):
        return [_merged(*both) for both in itertools.zip_longest(ours, theirs)]
    return theirs


class CustomJobs(RemoteService):
    """Custom jobs of Vertex AI; see `RemoteService`."""

    provider = "Vertex AI"
    kind = "custom job"
    poll_s = 2.0
    has_logs = False  # another service of Google's has them
    permissions = (
        "aiplatform.customJobs.create, get, list and cancel, and may act as the service account "
        "of the job"
    )

    def __init__(self, distribution: Distribution) -> None:
        """Connects the client.

        Raises:
            ConfigurationError: the client is not installed, or has no credentials.
        """
        options: Any = distribution.vertex  # which the launcher requires
        self._options: VertexOptions = options
        self._tasks = tasks(distribution)
        self._pools = pools_of(distribution)
        self._client = job_client(options.region)
        self._parent = f"projects/{options.project}/locations/{options.region}"
        self._names: dict[str, str | None] = {}  # ours → Vertex AI's; None if the answer was lost

    def mounts(self) -> Collection[str]:
        """Returns the directory at which Vertex AI mounts the buckets of the project."""
        return ["/gcs"]

    def create(self, name: str, distribution: Distribution, folder: JobFolder, digest: str) -> None:
        """Makes a custom job, unless an earlier call has made it already."""
        from google.cloud.aiplatform_v1.types import CustomJob

        if name in self._names and self._jobs(name):
            return
        fields = custom_job(distribution, name, [folder.path, digest])
        try:
            job = CustomJob(fields)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"vertex.custom_job is not a CustomJob of Vertex AI: {error}. Its fields are those "
                "of google.cloud.aiplatform_v1.types.CustomJob."
            ) from error
        self._names[name] = None
        made = self._client.create_custom_job(
            parent=self._parent, custom_job=job, timeout=_TIMEOUT_S
        )
        self._names[name] = made.name
        _logger.info(
            "https://console.cloud.google.com/vertex-ai/training/custom-jobs/locations/%s/jobs/%s "
            "has the logs of all replicas.",
            self._options.region,
            made.name.rpartition("/")[2],
        )

    def look(self, name: str, folder: JobFolder) -> JobStatus:
        """Returns the state of a custom job, and the ends that its replicas have written.

        Raises:
            ConfigurationError: Vertex AI has given the job up because of its specification.
        """
        job = next(iter(self._jobs(name)), None)
        written = {task: WorkerEnd.read(folder.end_of(task)) for task in self._tasks}
        ends = {task: end for task, end in written.items() if end is not None}
        failed = {
            task: TaskStatus(task.name, "failed")
            for task, end in ends.items()
            if end.failure is not None
        }
        if failed:  # without fault if the job was cancelled in between
            job = next(iter(self._jobs(name)), None)
        if job is None:
            return JobStatus("deleted")
        state = job.state.name.removeprefix("JOB_STATE_")
        phase = _PHASES.get(state, "active")
        message = ": ".join(filter(None, [state.lower(), job.error.message]))
        if phase in ("active", "suspended"):
            task_phase: Any = "running" if state in ("RUNNING", "UPDATING") else "waiting"
            alive = {task: TaskStatus(task.name, task_phase, reason=state) for task in self._tasks}
            # Vertex AI may call a chief running that has exported: its peers, which miss it, then
            # fail, and spoil nothing.
            succeeded = {task: TaskStatus(task.name, "succeeded") for task in ends}
            return JobStatus(phase, message, alive | succeeded | failed)
        if phase == "succeeded":
            return JobStatus(phase, message, {t: TaskStatus(t.name, phase) for t in self._tasks})
        for pattern, reason in ((_OUT_OF_MEMORY, "OOMKilled"), (_EXITED, "")):
            for match in pattern.finditer(job.error.message):
                task = self._pools[int(match[1])][int(match[2])]
                code = int(match[3]) if match[3] else None
                status = TaskStatus(task.name, "failed", code, reason, job.error.message)
                failed.setdefault(task, status)
        if phase == "failed" and not failed and job.error.code in _FINAL_CODES:
            raise ConfigurationError(
                f"Vertex AI gave up the custom job {job.name}: {job.error.message}"
            )
        return JobStatus(phase, message, failed)

    def delete(self, name: str) -> None:
        """Cancels a custom job; one that has ended stays in Vertex AI's list."""
        for job in self._jobs(name):
            if not job.end_time:
                self._client.cancel_custom_job(name=job.name, timeout=_TIMEOUT_S)

    def has_ended(self, name: str) -> bool:
        """Returns whether no replica is left."""
        return all(job.end_time for job in self._jobs(name))

    def delete_command(self, name: str) -> str:
        """Returns the command of gcloud."""
        return self._command("cancel", name)

    def workers_command(self, name: str) -> str:
        """Returns the command of gcloud."""
        return self._command("describe", name)

    def _command(self, verb: str, name: str) -> str:
        known = self._names.get(name) or f"JOB (label {LABEL}={name})"
        return f"gcloud ai custom-jobs {verb} {known} --region={self._options.region}"

    def _jobs(self, name: str) -> list[Any]:
        """Returns the job of a name; none if it was deleted, or never made."""
        from google.api_core.exceptions import NotFound

        if name not in self._names:
            return []
        known = self._names[name]
        if known is None:  # the answer that names it was lost
            query = {"parent": self._parent, "filter": f'labels.{LABEL}="{name}"'}
            jobs = list(self._client.list_custom_jobs(request=query, timeout=_TIMEOUT_S))
            if jobs:
                self._names[name] = jobs[0].name
            return jobs
        try:
            return [self._client.get_custom_job(name=known, timeout=_TIMEOUT_S)]
        except NotFound:
            return []


def job_client(region: str) -> Any:
    """Returns the client of Vertex AI's jobs in a region.

    Raises:
        ConfigurationError: it is not installed, or has no credentials.
    """
    with needed_client("vertex", "google-cloud-aiplatform", "vertex"):
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
    try:
        return JobServiceClient(
            client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"}
        )
    except DefaultCredentialsError as error:
        raise ConfigurationError(
            "launcher='vertex' finds no credentials of Google Cloud: run it as a service account, "
            f"or `gcloud auth application-default login` ({error})."
        ) from error


def _problems(wanted: Distribution) -> Iterator[str]:
    asks_for_gpus = wanted.gpus_per_worker or wanted.require_gpu
    if asks_for_gpus and wanted.gpu_type == DEFAULT_GPU_TYPE:
        yield (
            f"gpu_type={wanted.gpu_type!r} is that of Kubernetes, but launcher is 'vertex': give "
            'the name of the accelerator there, such as "NVIDIA_TESLA_T4"'
        )


def _set_tf_config(wanted: Distribution) -> None:
    os.environ.pop(TF_CONFIG, None)  # Vertex AI's own has other types of tasks
    os.environ.update(cluster_variables(wanted))


VERTEX = Launcher(
    run=functools.partial(run_by_service, CustomJobs),
    options=VertexOptions,
    refused={
        "worker_grace_s": ENDS_WITH_CHIEF,
        "cpus_per_worker": "contradicts the machine type of VertexOptions(machine_type=...)",
    },
    problems=_problems,
    set_tf_config=_set_tf_config,
)
