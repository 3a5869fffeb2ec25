"""`Distribution`: on how many workers to train, what they need, and who starts them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.launchers._options import RayOptions, TFJobOptions

__all__ = ["Distribution"]

LauncherName = Literal["in_process", "local", "ray", "tfjob"]
_LAUNCHERS = ("in_process", "local", "ray", "tfjob")
# Name of the engine → the class of its options.
_OPTIONS = {"ray": RayOptions, "tfjob": TFJobOptions}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distribution:
    """On how many workers to train, what each of them needs, and who starts them.

    ::

        Distribution(launcher="local")                  # a process of its own on this machine
        Distribution(launcher="local", num_workers=2, env={"TF_USE_LEGACY_KERAS": "1"})
        Distribution(launcher="ray", num_workers=4, gpus_per_worker=1,
                     ray=RayOptions(address="ray://head:10001"))

    1. `run_fn` finds its cluster in `TF_CONFIG`, and `training.get_strategy()` the strategy for it.
    2. Without parameter servers, every worker calls `run_fn`; the first one is the chief.
    3. With parameter servers, a chief beside the workers calls `run_fn` and sends them their work.
    4. A lost or preempted worker is replaced: all of them start again from the last checkpoint.
       Nothing else that fails is tried again.

    Attributes:
        num_workers: processes that train.
        parameter_servers: processes that hold variables, for `ParameterServerStrategy`.
        launcher: `"in_process"` trains where the executor runs; `"local"` in child processes,
            which give back their GPU memory and can crash without harm; `"ray"` on a Ray cluster;
            `"tfjob"` in the pods of a Kubeflow TFJob.
        cpus_per_worker: processors of each worker.
        gpus_per_worker: GPUs of each worker; None leaves it all that it sees, 0 hides them.
        gpu_type: what GPUs are called where the pods run: the name of the resource in Kubernetes,
            and on Vertex AI that of the accelerator, such as "NVIDIA_TESLA_T4".
        memory_mb_per_worker: memory of each worker in MiB. A worker that takes more is stopped.
        max_failures: how often a lost or preempted worker is made up for.
        preemption_grace_s: how long workers may take, in seconds, from SIGTERM until they have
            saved a checkpoint and ended.
        timeout_s: limit for the whole training, all attempts together, in seconds.
        heartbeat_s: a worker that uses no processor for so many seconds hangs: its threads' stacks
            are logged and the run fails. None lets workers wait for ever.
        require_gpu: whether a worker that sees no GPU fails instead of training without.
        env: environment variables of the workers.
        ray: where Ray is.
        tfjob: where and as whom Kubernetes runs the workers.

    Raises:
        ConfigurationError: values are wrong or contradict each other; all of them are listed.
    """

    num_workers: int = 1
    parameter_servers: int = 0
    launcher: LauncherName = "in_process"
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    gpu_type: str = "nvidia.com/gpu"
    memory_mb_per_worker: int | None = None
    max_failures: int = 3
    preemption_grace_s: float = 25.0
    timeout_s: float | None = None
    heartbeat_s: float | None = 600.0
    require_gpu: bool = False
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ray: RayOptions | None = None
    tfjob: TFJobOptions | None = None

    def __post_init__(self) -> None:
        problems = [*_wrong_values(self), *_contradictions(self)]
        raise_problems(ConfigurationError, "Distribution", problems)

    @property
    def num_processes(self) -> int:
        """Workers, parameter servers, and the chief that these need."""
        return self.num_workers + (self.parameter_servers + 1 if self.parameter_servers else 0)

    @property
    def is_cluster(self) -> bool:
        """Whether there is a `TF_CONFIG` to be set."""
        return self.num_processes > 1

    def to_json(self) -> str:
        """Returns the distribution as a JSON object, without what has its default value."""
        return json.dumps(_given(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Distribution:
        """Reads what `to_json` wrote.

        Raises:
            ConfigurationError: the text is not a distribution.
        """
        try:
            values = dict(json.loads(text))
            options = {
                name: kind(**values.pop(name)) for name, kind in _OPTIONS.items() if name in values
            }
            return cls(**values, **options)
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                f"Expected what Distribution.to_json has written, but got {text!r} ({error})."
            ) from error


def _given(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults, as plain values."""
    given = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if held != default:
            given[field.name] = _given(held) if dataclasses.is_dataclass(held) else held
    return given


def _wrong_values(given: Distribution) -> Iterator[str]:
    if given.launcher not in _LAUNCHERS:
        yield f"launcher must be one of {_LAUNCHERS}, got {given.launcher!r}"
    for name, least in (("num_workers", 1), ("parameter_servers", 0), ("max_failures", 0)):
        value = getattr(given, name)
        if not _is_number(value) or value != int(value) or value < least:
            yield f"{name} must be a whole number of at least {least}, got {value!r}"
    for name in ("cpus_per_worker", "memory_mb_per_worker", "timeout_s", "heartbeat_s"):
        value = getattr(given, name)
        if value is not None and not (_is_number(value) and value > 0):
            yield f"{name} must be a positive number or None, got {value!r}"
    for name in ("gpus_per_worker", "preemption_grace_s"):
        value = getattr(given, name)
        if not (_is_number(value) and value >= 0) and (value, name) != (None, "gpus_per_worker"):
            yield f"{name} must be a number of at least 0, got {value!r}"
    if not isinstance(given.require_gpu, bool):
        yield f"require_gpu must be True or False, got {given.require_gpu!r}"
    yield from _wrong_options(given)


def _wrong_options(given: Distribution) -> Iterator[str]:
    if not _is_text_mapping(given.env):
        yield f"env must be a dict of texts, got {given.env!r}"
    elif "TF_CONFIG" in given.env:
        yield "env must not hold TF_CONFIG, which the launcher sets for each worker"
    for name, kind in _OPTIONS.items():
        value = getattr(given, name)
        if value is not None and not isinstance(value, kind):
            yield f"{name} must be {kind.__name__}(...), got {value!r}"
    if isinstance(given.tfjob, TFJobOptions):
        for name in ("volumes", "node_selector", "labels"):
            if not _is_text_mapping(getattr(given.tfjob, name)):
                yield f"tfjob.{name} must be a dict of texts, got {getattr(given.tfjob, name)!r}"


def _contradictions(given: Distribution) -> Iterator[str]:
    if given.launcher == "in_process":
        for name, neutral in (("num_workers", 1), ("parameter_servers", 0), ("timeout_s", None)):
            if getattr(given, name) != neutral:
                yield (
                    f"{name}={getattr(given, name)!r} needs a launcher that starts workers, such "
                    "as launcher='local', but launcher is 'in_process'"
                )
        if given.env:
            yield "env is for the workers that a launcher starts, but launcher is 'in_process'"
    for name in _OPTIONS:
        if getattr(given, name) is not None and given.launcher != name:
            yield f"{name}=... is for launcher={name!r}, but launcher is {given.launcher!r}"
    if given.launcher == "tfjob" and not getattr(given.tfjob, "image", None):
        yield (
            "launcher='tfjob' needs tfjob=TFJobOptions(image=...), the container image of its pods"
        )
    if given.require_gpu and given.gpus_per_worker == 0:
        yield "require_gpu=True contradicts gpus_per_worker=0"
    gpus = given.gpus_per_worker
    if given.launcher in ("local", "tfjob") and _is_number(gpus) and gpus != int(gpus or 0):
        yield f"gpus_per_worker must be a whole number except on Ray, got {gpus!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(part, str) for item in value.items() for part in item
    )
