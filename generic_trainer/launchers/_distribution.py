"""`Distribution`: the workers, the needs of each, and their launcher with its options."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pydantic

from generic_trainer._core.cluster import Task
from generic_trainer._core.options import (
    AtLeastZero,
    Count,
    Expected,
    Options,
    Positive,
    PositiveWhole,
    Text,
    options,
    reported,
)
from generic_trainer._core.texts import describe, shown
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.launchers._registry import find_launcher

_AbsolutePath = Annotated[
    str, pydantic.Field(pattern="^/"), Expected("an absolute path, such as '/pipelines'")
]
DEFAULT_GPU_TYPE = "nvidia.com/gpu"
# Each process has a port, and a connection to all others.
_AT_MOST = pydantic.Field(le=10_000)
_Workers = Annotated[PositiveWhole, _AT_MOST]
_Installed = Annotated[str, pydantic.AfterValidator(lambda name: find_launcher(name) and name)]
# They ask for nothing, so a launcher may refuse other values of these fields only.
_OFF = (("max_failures", 0), ("heartbeat_s", None))


@options(frozen=True)
class RayOptions(Options):
    """The Ray cluster, and settings of its nodes.

    Attributes:
        address: address of the cluster: `"auto"`, `"ray://head:10001"`, `"head:6379"`. None starts
            a Ray on this machine, for the time of the run.
        connect_timeout_s: how long, in seconds, to wait for the cluster to answer, and then for the
            workers to be placed. None waits 20 s for the one and 300 s for the other.
        runtime_env: packages etc. for Ray to install, such as `{"pip": ["generic-trainer"]}`.
    """

    address: str | None = None
    connect_timeout_s: Positive | None = None
    runtime_env: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@options(frozen=True)
class KubernetesOptions(Options):
    """Location and account of workers on Kubernetes.

    Attributes:
        image: container image with this package and TensorFlow. The pipeline root must be reachable
            from it, under the same path.
        namespace: namespace of the job.
        service_account: account of the pods; None takes the namespace's default.
        volumes: name of a PersistentVolumeClaim → path at which it is mounted, such as
            `{"pipelines": "/pipelines"}`.
        node_selector: labels that the nodes must have.
        labels: labels of the job and its pods, such as the one that names a queue of Kueue.
    """

    image: Text
    namespace: str = "default"
    service_account: str | None = None
    volumes: Mapping[str, _AbsolutePath] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@options(frozen=True)
class TFJobOptions(KubernetesOptions):
    """Location and account of the pods of a TFJob; see `KubernetesOptions`."""


@options(frozen=True)
class TrainJobOptions(KubernetesOptions):
    """Location and account of the pods of a TrainJob; see `KubernetesOptions`."""


@options(frozen=True)
class VertexOptions(Options):
    """Location and account of workers on Vertex AI.

    Attributes:
        image: container image with this package and TensorFlow.
        project: the Google Cloud project.
        region: such as `"us-central1"`.
        machine_type: machines of the workers, such as `"n1-standard-8"`, with their processors and
            memory. The number of accelerators is `gpus_per_worker`, their type `gpu_type`.
        spot: whether to use Spot VMs, which cost less and may be preempted.
        service_account: account of the workers; None takes the project's default.
        labels: labels of the custom job.
        custom_job: other fields of the `CustomJob`, with the names of its proto, such as
            `{"display_name": "penguins", "job_spec": {"network": ..., "scheduling": {...},
            "worker_pool_specs": [{"disk_spec": {"boot_disk_size_gb": 200}}]}}`.
    """

    image: Text
    project: Text
    region: Text
    machine_type: str = "n1-standard-4"
    spot: bool = False
    service_account: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    custom_job: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def needed_client(launcher: str, requirement: str, extra: str) -> Iterator[None]:
    """Explains that the client of a launcher's service cannot be imported.

    Args:
        launcher: name of the launcher.
        requirement: the argument of `pip install`.
        extra: the extra of this package with that requirement.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"launcher={launcher!r} needs a client that is not installed here: "
            f"pip install {requirement}, or GenericTrainer's extra `{extra}` ({error})."
        ) from error


def _environment(variables: Mapping[str, str]) -> Mapping[str, str]:
    if "TF_CONFIG" in variables:
        raise ValueError("must not hold TF_CONFIG, which the launcher sets for each worker")
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(
                f"must have names without '=' and no NUL characters, got {describe(name)}"
            )
    return variables


@options(frozen=True, kw_only=True)
class Distribution(Options):
    """The number of workers, the needs of each, and the launcher that starts them.

    ::

        Distribution(launcher="local")                  # a separate process on this machine
        Distribution(launcher="local", num_workers=2)
        Distribution(launcher="ray", num_workers=4, gpus_per_worker=1,
                     ray=RayOptions(address="ray://head:10001"))

    1. `run_fn` finds its cluster in `TF_CONFIG`, and `training.get_strategy()` the strategy for it.
    2. Without parameter servers, every worker calls `run_fn`, and worker 0 acts as the chief, as in
       TensorFlow's own guides, Ray Train and Kubeflow. `chief=True` makes it a task of that type.
    3. With parameter servers, a chief beside the workers calls `run_fn` and sends them their work.
    4. A lost or preempted worker is replaced: all of them start again from the last checkpoint.
       Other failures end the run.
    5. A launcher refuses a setting that it cannot keep, unless it is the default: `"in_process"`
       starts no workers, and so refuses the fields about them (`num_workers`, `parameter_servers`,
       `chief`, `max_failures`, `preemption_grace_s`, `worker_grace_s`, `timeout_s`,
       `heartbeat_s`, `env`). There processors, GPUs and memory are those of a step on Kubeflow or
       Vertex; elsewhere they limit nothing.

    Attributes:
        num_workers: processes that train. On Ray it may also be the fewest and the most of them,
            such as `(2, 4)`: an attempt starts as many as the cluster has room for.
        parameter_servers: processes that hold variables, for `ParameterServerStrategy`.
        chief: whether the first of the workers is the task `chief` of `TF_CONFIG`, which code of
            estimators expects, and the others are worker 0, 1, ... A cluster with parameter servers
            always has one.
        launcher: `"in_process"` trains where the executor runs; `"local"` in child processes,
            which free their GPU memory and can crash without harm; `"ray"` on a Ray cluster;
            `"tfjob"` and `"trainjob"` in the pods of a TFJob or a TrainJob of Kubeflow; `"vertex"`
            as a custom job of Vertex AI. Other distributions may register more.
        cpus_per_worker: processors of each worker.
        gpus_per_worker: GPUs of each worker; None leaves it all visible ones, or an equal share
            if the workers of one machine have at least one each; 0 hides them.
        gpu_type: name of the GPUs in the pods: that of the resource in Kubernetes,
            such as "amd.com/gpu", and on Vertex AI that of the accelerator, such as
            "NVIDIA_TESLA_T4". Ray, which knows its nodes' GPUs itself, refuses any but the default.
        memory_mb_per_worker: memory of each worker in MiB. A worker that uses more is stopped.
        max_failures: how many lost or preempted workers are replaced before the run fails.
        preemption_grace_s: how long workers may take, in seconds, from SIGTERM until they have
            saved a checkpoint and ended.
        worker_grace_s: how long the other workers may go on, in seconds, when the chief has ended;
            of `launcher="local"`, `"ray"` and `"trainjob"`. A TFJob and Vertex AI end all with the
            chief.
        timeout_s: limit for the whole training, all attempts together, in seconds. None is the
            default, as only you know how long is too long; it alone ends a loop that computes for
            ever.
        heartbeat_s: a worker that neither computes, reads nor writes for so many seconds hangs: its
            threads' stacks are logged and the run fails. Sleeping and polling is not progress. None
            lets workers wait for ever.
        require_gpu: whether a worker that sees no GPU fails instead of training without.
        env: environment variables of the workers.
        ray: address of Ray, and settings of its nodes.
        tfjob: image, namespace and volumes of the pods of a TFJob.
        trainjob: the same for the pods of a TrainJob.
        vertex: project, image and machines of a custom job of Vertex AI.
        launcher_options: options of a launcher of another distribution.

    Raises:
        ConfigurationError: values are wrong or contradict each other; all of them are listed.
    """

    num_workers: Annotated[
        _Workers | tuple[_Workers, _Workers],
        Expected("a whole number from 1 to 10000, or the fewest and the most"),
    ] = 1
    parameter_servers: Annotated[Count, _AT_MOST] = 0
    chief: bool = False
    launcher: _Installed = "in_process"
    cpus_per_worker: Positive | None = None
    gpus_per_worker: AtLeastZero | None = None
    gpu_type: Text = DEFAULT_GPU_TYPE
    memory_mb_per_worker: PositiveWhole | None = None
    max_failures: Count = 3
    preemption_grace_s: AtLeastZero = 25.0
    worker_grace_s: AtLeastZero = 60.0
    timeout_s: Positive | None = None
    heartbeat_s: Positive | None = 600.0
    require_gpu: bool = False
    env: Annotated[Mapping[str, str], pydantic.AfterValidator(_environment)] = dataclasses.field(
        default_factory=dict
    )
    ray: RayOptions | None = None
    tfjob: TFJobOptions | None = None
    trainjob: TrainJobOptions | None = None
    vertex: VertexOptions | None = None
    launcher_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _compare(self) -> Distribution:
        raise_problems(ConfigurationError, "Distribution", [*_contradictions(self)])
        return self

    @property
    def options(self) -> Any:
        """The options of the launcher, of its own class; None if it has none."""
        kind = find_launcher(self.launcher).options
        given = getattr(self, self.launcher, None)
        return given if given or kind is None else kind(**self.launcher_options)

    @property
    def runs_here(self) -> bool:
        """Whether the workers run on this machine."""
        return bool(find_launcher(self.launcher).runs_here)

    @property
    def min_workers(self) -> int:
        """The fewest processes that train."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        """The most processes that train."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def num_processes(self) -> int:
        """The most workers, with the parameter servers and the chief that these need."""
        return self.max_workers + (self.parameter_servers + 1 if self.parameter_servers else 0)

    @property
    def min_processes(self) -> int:
        """The fewest processes that a run starts with."""
        return self.num_processes - self.max_workers + self.min_workers

    @property
    def is_cluster(self) -> bool:
        """Whether the processes need a `TF_CONFIG`."""
        return self.num_processes > 1


def tasks(distribution: Distribution) -> tuple[Task, ...]:
    """Returns all processes; the first one acts as the chief.

    Without parameter servers it is one of the `num_workers`; with them it is an additional process
    that does not train itself.
    """
    if not distribution.parameter_servers:
        chief = [Task("chief", 0)] if distribution.chief else []
        workers = distribution.max_workers - len(chief)
        return (*chief, *(Task("worker", index) for index in range(workers)))
    counts = {"worker": distribution.max_workers, "ps": distribution.parameter_servers}
    servers = [Task(name, index, True) for name, count in counts.items() for index in range(count)]
    return (Task("chief", 0), *servers)


def _contradictions(wanted: Distribution) -> Iterator[str]:
    name = wanted.launcher
    launcher = find_launcher(name)
    for field in dataclasses.fields(wanted):
        value = getattr(wanted, field.name)
        make = field.default_factory
        default = field.default if make is dataclasses.MISSING else make()
        reason = launcher.refused.get(field.name)
        if reason and value != default and (field.name, value) not in _OFF:
            yield f"{field.name}={shown(value)} {reason}, but launcher is {name!r}"
    if isinstance(wanted.num_workers, tuple):
        if wanted.min_workers > wanted.max_workers:
            yield f"num_workers must be the fewest and the most, got {wanted.num_workers}"
        if not launcher.takes_ranges:
            yield (
                f"num_workers={shown(wanted.num_workers)} is for launcher='ray', but launcher is "
                f"{name!r}, which starts a fixed number: give one number"
            )
        if wanted.parameter_servers:
            yield (
                f"num_workers={shown(wanted.num_workers)} contradicts parameter_servers="
                f"{shown(wanted.parameter_servers)}, whose chief knows its workers: give one number"
            )
    yield from launcher.problems(wanted)
    yield from _wrong_options(wanted, launcher.options)
    if wanted.require_gpu and wanted.gpus_per_worker == 0:
        yield "require_gpu=True contradicts gpus_per_worker=0"
    gpus = wanted.gpus_per_worker
    if not launcher.takes_fractions and gpus and gpus != int(gpus):
        yield f"gpus_per_worker must be a whole number except on Ray, got {gpus!r}"


def _wrong_options(wanted: Distribution, kind: Any) -> Iterator[str]:
    launcher = wanted.launcher
    fields = [field.name for field in dataclasses.fields(wanted)]
    for name in fields:
        if isinstance(getattr(wanted, name), Options) and name != launcher:
            yield f"{name}=... is for launcher={name!r}, but launcher is {launcher!r}"
    if wanted.launcher_options and (kind is None or launcher in fields):
        yield (
            f"launcher_options={shown(wanted.launcher_options)} is for launchers of other "
            f"distributions that have options, but launcher is {launcher!r}"
        )
    elif launcher not in fields:
        try:
            with reported(kind, "launcher_options"):
                _ = wanted.options
        except (TypeError, ValueError) as error:
            yield from getattr(error, "problems", ()) or [f"launcher_options: {error}"]
    elif getattr(wanted, launcher) is None:
        its_fields = getattr(kind, "__pydantic_fields__", {}).items()
        required = [f"{name}=..." for name, field in its_fields if field.is_required()]
        if required:
            yield (
                f"launcher={launcher!r} needs {launcher}={kind.__name__}({', '.join(required)}), "
                "the place and the image of the workers"
            )
