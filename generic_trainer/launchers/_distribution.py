"""`Distribution`: the number of workers, what each of them needs, and who starts them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args

from generic_trainer._core.cluster import Task
from generic_trainer._core.texts import describe, did_you_mean, is_number, parse_json, shown
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.launchers._options import (
    MOST,
    OPTIONS,
    REQUIRED,
    RayOptions,
    TFJobOptions,
    TrainJobOptions,
    VertexOptions,
    is_positive,
    is_text_mapping,
    wrong_options,
)

LauncherName = Literal["in_process", "local", "ray", "tfjob", "trainjob", "vertex"]
_LAUNCHERS = get_args(LauncherName)
# They decide themselves when the other workers end.
_ENDS_ALL_WITH_THE_CHIEF = ("ray", "tfjob", "vertex")
_DEFAULT_GPU_TYPE = "nvidia.com/gpu"
_DEFAULT_WORKER_GRACE_S = 60.0
_MOST_PROCESSES = 10_000  # each has a port, and a connection to all others
# Field → the least and the most that it may be.
_COUNTS = (
    ("num_workers", 1, _MOST_PROCESSES),
    ("parameter_servers", 0, _MOST_PROCESSES),
    ("max_failures", 0, MOST),
)
# Fields that are for the workers which an engine starts → what training in process comes up to
# besides the default.
_FOR_WORKERS: dict[str, tuple[Any, ...]] = {
    "num_workers": (),
    "parameter_servers": (),
    "chief": (),
    "max_failures": (0,),
    "preemption_grace_s": (),
    "worker_grace_s": (),
    "timeout_s": (),
    "heartbeat_s": (None,),
    "env": (),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distribution:
    """On how many workers to train, what each of them needs, and who starts them.

    ::

        Distribution(launcher="local")                  # a process of its own on this machine
        Distribution(launcher="local", num_workers=2)
        Distribution(launcher="ray", num_workers=4, gpus_per_worker=1,
                     ray=RayOptions(address="ray://head:10001"))

    1. `run_fn` finds its cluster in `TF_CONFIG`, and `training.get_strategy()` the strategy for it.
    2. Without parameter servers, every worker calls `run_fn`, and worker 0 acts as the chief, as in
       TensorFlow's own guides, Ray Train and Kubeflow. `chief=True` makes it a task of that type.
    3. With parameter servers, a chief beside the workers calls `run_fn` and sends them their work.
    4. A lost or preempted worker is replaced: all of them start again from the last checkpoint.
       Nothing else that fails is tried again.
    5. What a launcher cannot do is refused unless it is the default: `"in_process"` starts no
       workers, and so refuses what is about them (`num_workers`, `parameter_servers`, `chief`,
       `max_failures`, `preemption_grace_s`, `worker_grace_s`, `timeout_s`, `heartbeat_s`, `env`).

    Attributes:
        num_workers: processes that train. On Ray it may also be the fewest and the most of them,
            such as `(2, 4)`: as many train as the cluster has room for, and when that changes they
            start again, from the last checkpoint.
        parameter_servers: processes that hold variables, for `ParameterServerStrategy`.
        chief: whether the first of the workers is the task `chief` of `TF_CONFIG`, which code of
            estimators expects, and the others are worker 0, 1, ... A cluster with parameter servers
            always has one.
        launcher: `"in_process"` trains where the executor runs; `"local"` in child processes,
            which give back their GPU memory and can crash without harm; `"ray"` on a Ray cluster;
            `"tfjob"` and `"trainjob"` in the pods of a TFJob or a TrainJob of Kubeflow; `"vertex"`
            as a custom job of Vertex AI.
        cpus_per_worker: processors of each worker.
        gpus_per_worker: GPUs of each worker; None leaves it all that it sees, or an equal share
            where the workers of one machine have at least one each; 0 hides them.
        gpu_type: what GPUs are called where the pods run: the name of the resource in Kubernetes,
            such as "amd.com/gpu", and on Vertex AI that of the accelerator, such as
            "NVIDIA_TESLA_T4". Ray, which knows its nodes' GPUs itself, refuses any but the default.
        memory_mb_per_worker: memory of each worker in MiB. A worker that takes more is stopped.
        max_failures: how often a lost or preempted worker is made up for.
        preemption_grace_s: how long workers may take, in seconds, from SIGTERM until they have
            saved a checkpoint and ended.
        worker_grace_s: how long the other workers may go on, in seconds, when the chief has ended;
            of `launcher="local"` and `"trainjob"`. Ray waits for all; a TFJob and Vertex AI end all
            with the chief.
        timeout_s: limit for the whole training, all attempts together, in seconds. None, as only
            you know how long is too long: a loop that computes for ever is found by nothing else.
        heartbeat_s: a worker that does nothing for so many seconds hangs: its threads' stacks are
            logged and the run fails. To compute, to read and to write is to do something; to sleep
            and look again is not. None lets workers wait for ever.
        require_gpu: whether a worker that sees no GPU fails instead of training without.
        env: environment variables of the workers.
        ray: where Ray is.
        tfjob: where and as whom Kubernetes runs the pods of a TFJob.
        trainjob: the same for those of a TrainJob.
        vertex: where and as whom Vertex AI runs the workers.

    Raises:
        ConfigurationError: values are wrong or contradict each other; all of them are listed.
    """

    num_workers: int | tuple[int, int] = 1
    parameter_servers: int = 0
    chief: bool = False
    launcher: LauncherName = "in_process"
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    gpu_type: str = _DEFAULT_GPU_TYPE
    memory_mb_per_worker: int | None = None
    max_failures: int = 3
    preemption_grace_s: float = 25.0
    worker_grace_s: float = _DEFAULT_WORKER_GRACE_S
    timeout_s: float | None = None
    heartbeat_s: float | None = 600.0
    require_gpu: bool = False
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ray: RayOptions | None = None
    tfjob: TFJobOptions | None = None
    trainjob: TrainJobOptions | None = None
    vertex: VertexOptions | None = None

    def __post_init__(self) -> None:
        for name, _, _ in _COUNTS:
            object.__setattr__(self, name, _whole(getattr(self, name)))
        problems = [*_wrong_values(self), *_contradictions(self)]
        raise_problems(ConfigurationError, "Distribution", problems)

    @property
    def min_workers(self) -> int:
        """The fewest processes that train."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        """The most processes that train."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    def with_workers(self, number: int) -> Distribution:
        """Returns the distribution of an attempt for which there was room for so many workers."""
        return dataclasses.replace(self, num_workers=number)

    @property
    def num_processes(self) -> int:
        """Workers, parameter servers, and the chief that these need; the most there may be."""
        return self.max_workers + (self.parameter_servers + 1 if self.parameter_servers else 0)

    @property
    def is_cluster(self) -> bool:
        """Whether there is a `TF_CONFIG` to be set."""
        return self.num_processes > 1

    def to_json(self) -> str:
        """Returns the distribution as a JSON object, without what has its default value."""
        return json.dumps(_changed(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Distribution:
        """Reads what `to_json` wrote.

        Raises:
            ConfigurationError: the text is not a distribution.
        """
        try:
            values = parse_json(text)
            if not isinstance(values, dict):
                raise ValueError("it is no JSON object")
            for name, kind in OPTIONS.items():
                if values.get(name) is not None:
                    values[name] = _made(kind, values[name])
            return _made(cls, values)
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(
                f"Expected what Distribution.to_json has written, but got {shown(text)} ({error})."
            ) from error


_Made = TypeVar("_Made")


def _made(kind: type[_Made], values: Any) -> _Made:
    """Returns an instance of a dataclass; raises `ValueError` where it has no such fields."""
    if not isinstance(values, dict):
        raise ValueError(f"{kind.__name__} must be a JSON object, not {describe(values)}")
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ValueError(
                f"{kind.__name__} has no field {shown(name)}{did_you_mean(name, known)}"
            )
    return kind(**values)


def tasks(distribution: Distribution) -> tuple[Task, ...]:
    """Returns all processes; the first one acts as the chief.

    Without parameter servers it is one of the `num_workers`; with them it trains nothing itself and
    comes in addition.
    """
    if not distribution.parameter_servers:
        chief = [Task("chief", 0)] if distribution.chief else []
        workers = distribution.max_workers - len(chief)
        return (*chief, *(Task("worker", index) for index in range(workers)))
    counts = {"worker": distribution.max_workers, "ps": distribution.parameter_servers}
    servers = [Task(name, index, True) for name, count in counts.items() for index in range(count)]
    return (Task("chief", 0), *servers)


def _whole(value: Any) -> Any:
    """Returns a whole number, or two, as Python has them; JSON may write `[2.0, 4]`."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return tuple(map(_whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _changed(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults, as plain values."""
    changed = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if held != _default(field):
            changed[field.name] = _changed(held) if dataclasses.is_dataclass(held) else held
    return changed


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _wrong_values(wanted: Distribution) -> Iterator[str]:
    if wanted.launcher not in _LAUNCHERS:
        yield f"launcher must be one of {_LAUNCHERS}, got {describe(wanted.launcher)}"
    for name, least, most in _COUNTS:
        value = getattr(wanted, name)
        is_pair = name == "num_workers" and isinstance(value, tuple) and len(value) == 2
        numbers = value if is_pair else (value,)
        if not all(isinstance(n, int) and is_number(n) and least <= n <= most for n in numbers):
            yield (
                f"{name} must be a whole number of at least {least} and at most {most}, got "
                f"{describe(value)}"
            )
        elif list(numbers) != sorted(numbers):
            yield f"{name} must be the fewest and the most, got {describe(value)}"
    for name in ("cpus_per_worker", "memory_mb_per_worker", "timeout_s", "heartbeat_s"):
        value = getattr(wanted, name)
        if value is not None and not is_positive(value):
            yield f"{name} must be a positive number or None, got {describe(value)}"
    for name in ("gpus_per_worker", "preemption_grace_s", "worker_grace_s"):
        value = getattr(wanted, name)
        is_fine = is_positive(value) or (is_number(value) and value == 0)
        if not is_fine and (value, name) != (None, "gpus_per_worker"):
            yield f"{name} must be a number of at least 0, got {describe(value)}"
    if not isinstance(wanted.gpu_type, str) or not wanted.gpu_type:
        yield f"gpu_type must be a text, got {describe(wanted.gpu_type)}"
    for name in ("chief", "require_gpu"):
        if not isinstance(getattr(wanted, name), bool):
            yield f"{name} must be True or False, got {describe(getattr(wanted, name))}"
    yield from _wrong_env(wanted.env)
    yield from _wrong_options(wanted)


def _wrong_env(env: Any) -> Iterator[str]:
    if not is_text_mapping(env):
        yield f"env must be a dict of texts, got {describe(env)}"
        return
    if "TF_CONFIG" in env:
        yield "env must not hold TF_CONFIG, which the launcher sets for each worker"
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            yield f"env must have names without '=' and nothing with a zero, got {describe(name)}"


def _wrong_options(wanted: Distribution) -> Iterator[str]:
    for name, kind in OPTIONS.items():
        value = getattr(wanted, name)
        if isinstance(value, kind):
            yield from wrong_options(name, value)
        elif value is not None:
            yield f"{name} must be {kind.__name__}(...), got {describe(value)}"


def _contradictions(wanted: Distribution) -> Iterator[str]:
    if wanted.launcher == "in_process":
        for field in dataclasses.fields(wanted):
            value = getattr(wanted, field.name)
            enough = _FOR_WORKERS.get(field.name)
            if enough is not None and value not in (_default(field), *enough):
                yield (
                    f"{field.name}={shown(value)} needs a launcher that starts workers, such as "
                    "launcher='local', but launcher is 'in_process'"
                )
    if isinstance(wanted.num_workers, tuple):
        if wanted.launcher != "ray":
            yield (
                f"num_workers={shown(wanted.num_workers)} is for launcher='ray', but launcher is "
                f"{wanted.launcher!r}, which starts as many as it is told: give one number"
            )
        if wanted.parameter_servers:
            yield (
                f"num_workers={shown(wanted.num_workers)} contradicts parameter_servers="
                f"{shown(wanted.parameter_servers)}, whose chief knows its workers: give one number"
            )
    elif isinstance(wanted.ray, RayOptions) and wanted.ray.resize_interval_s is not None:
        yield (
            f"ray.resize_interval_s={shown(wanted.ray.resize_interval_s)} is for a number of "
            f"workers that may change, but num_workers is {shown(wanted.num_workers)}: give the "
            "fewest and the most, or leave it out"
        )
    ends_all = wanted.launcher in _ENDS_ALL_WITH_THE_CHIEF
    if ends_all and wanted.worker_grace_s != _DEFAULT_WORKER_GRACE_S:
        yield (
            f"worker_grace_s={shown(wanted.worker_grace_s)} is for launcher='local', but launcher "
            f"is {wanted.launcher!r}, which decides itself when the other workers end: leave it out"
        )
    if wanted.launcher == "ray" and wanted.gpu_type != _DEFAULT_GPU_TYPE:
        yield (
            f"gpu_type={wanted.gpu_type!r} is for pods, but launcher is 'ray', which calls every "
            "GPU of its nodes 'GPU': leave it out"
        )
    if wanted.launcher == "vertex":
        yield from _not_on_vertex(wanted)
    for name in OPTIONS:
        if getattr(wanted, name) is not None and wanted.launcher != name:
            yield f"{name}=... is for launcher={name!r}, but launcher is {wanted.launcher!r}"
    if required := REQUIRED.get(str(wanted.launcher)):
        options = getattr(wanted, wanted.launcher)
        missing = [name for name in required if not getattr(options, name, None)]
        if missing:
            kind = OPTIONS[wanted.launcher].__name__
            fields = ", ".join(f"{name}=..." for name in missing)
            yield (
                f"launcher={wanted.launcher!r} needs {wanted.launcher}={kind}({fields}): where the "
                "workers run, and in which container image"
            )
    if wanted.require_gpu and wanted.gpus_per_worker == 0:
        yield "require_gpu=True contradicts gpus_per_worker=0"
    gpus = wanted.gpus_per_worker
    if wanted.launcher not in ("in_process", "ray") and is_number(gpus) and gpus != int(gpus or 0):
        yield f"gpus_per_worker must be a whole number except on Ray, got {gpus!r}"


def _not_on_vertex(wanted: Distribution) -> Iterator[str]:
    if wanted.cpus_per_worker is not None:
        yield (
            f"cpus_per_worker={shown(wanted.cpus_per_worker)}, but launcher is 'vertex', where the "
            "machine type decides: vertex=VertexOptions(machine_type=...)"
        )
    if (wanted.gpus_per_worker or wanted.require_gpu) and wanted.gpu_type == _DEFAULT_GPU_TYPE:
        yield (
            f"gpu_type={wanted.gpu_type!r} is that of Kubernetes, but launcher is 'vertex': give "
            'the name of the accelerator there, such as "NVIDIA_TESLA_T4"'
        )
