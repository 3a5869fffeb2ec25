"""Every field of a `Distribution` changes something in every engine, or is refused by it."""

import dataclasses
import functools
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from generic_trainer._core.cluster import Task
from generic_trainer._core.machine import Usage
from generic_trainer.errors import ConfigurationError, WorkerHangError, WorkerLostError
from generic_trainer.launchers import (
    Distribution,
    Job,
    RayOptions,
    TFJobOptions,
    TrainJobOptions,
    VertexOptions,
)
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._job import pack
from generic_trainer.launchers._kubernetes.operators import TFJobs, TrainJobs
from generic_trainer.launchers._local.resources import Limits, own_environment, own_processors
from generic_trainer.launchers._ray import connection, driver
from generic_trainer.launchers._supervisor import supervise, supervise_task
from generic_trainer.launchers._task import train
from generic_trainer.launchers._vertex import custom_job
from tests.launchers.fake_engine import FakeEngine, job_for, lost, succeeded, terminate

ENGINES = ("in_process", "local", "ray", "tfjob", "trainjob", "vertex")
FIRST = Task("worker", 0)
DEFAULT_OPTIONS: dict[str, dict[str, Any]] = {
    "tfjob": {"tfjob": TFJobOptions(image="a/b:1")},
    "trainjob": {"trainjob": TrainJobOptions(image="a/b:1")},
    "vertex": {"vertex": VertexOptions(image="a/b:1", project="p", region="r")},
}


def supervised(distribution: Distribution) -> Any:
    """Returns how often lost workers are replaced, and how long is waited for the others."""
    seen: list[Any] = []
    scripts: dict[str, Any] = {
        "losses": [[lost()]] * 9,
        "time": [[None] * 99 + [succeeded()]],
        "stop": [[terminate]],
        "late": [[succeeded()]],
    }
    for name, script in scripts.items():
        engine = FakeEngine(*script, obeys=False)
        try:
            supervise(job_for(distribution), engine.open, clock=engine.clock)
        except (WorkerHangError, WorkerLostError) as error:
            seen.append(type(error))
        seen += [name, engine.calls.count("start"), engine.now_s]
    return seen


def names(distribution: Distribution) -> Any:
    return [task.name for task in tasks(distribution)]


def step(distribution: Distribution) -> Any:
    pytest.importorskip("kfp")
    pytest.importorskip("tfx")
    from generic_trainer.components._compile import step_resources

    return str(step_resources(distribution))


def environment(distribution: Distribution) -> Any:
    gpus = [str(number) for number in range(8)]
    found = own_environment(distribution, FIRST, {FIRST: "a:1"}, gpus)
    return found.get("CUDA_VISIBLE_DEVICES"), found.get("CHANGED")


processors = functools.partial(own_processors, number=0)
ray_resources = connection.resources_per_worker


def limits(distribution: Distribution) -> Any:
    now = [0.0]
    usage = Usage(cpu_s=1.0, resident_mb=2048.0)
    watch = Limits(distribution, {FIRST: 1}, clock=lambda: now[0], usage_of=lambda _: usage)
    seen = []
    for seconds in (1.0, 100.0, 500.0):
        now[0] += seconds
        watch.look({FIRST: 1})
        seen.append((watch.over_memory(), watch.all_idle([FIRST])))
    return seen


def require_gpu(distribution: Distribution) -> Any:
    """Returns whether a worker without a GPU refuses to train."""
    try:
        with pytest.MonkeyPatch.context() as patch:  # one that looked before the tests may see some
            patch.setattr(tf.config, "list_physical_devices", lambda kind: [])
            train(job_for(distribution))
    except ConfigurationError as error:
        return str(error)
    except Exception:
        return ""


def alone(distribution: Distribution) -> Any:
    """Returns what a worker is told that another engine has put on its machine."""
    engine = FakeEngine([succeeded()])
    supervise_task(job_for(distribution), FIRST, engine.open)
    return engine.job.distribution.to_json()


def packed(distribution: Distribution) -> Any:
    return Job.from_json(pack(job_for(distribution))["job"]).distribution.env.get("CHANGED")


def ray_driver(distribution: Distribution) -> Any:
    """Returns the time limit of the process that is connected to Ray."""
    watched: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "supervise", lambda job, _: watched.append(job.distribution))
        driver.launch_on_ray(job_for(distribution))
    return watched


def ray_options(distribution: Distribution) -> Any:
    """Returns what `ray.init` is called with, and how long the address is tried."""

    calls: list[Any] = []

    class Ray:
        def init(self, **arguments: Any) -> None:
            calls.append((arguments["address"], arguments["runtime_env"]))

        shutdown = staticmethod(lambda: None)
        cluster_resources = staticmethod(lambda: {"CPU": 99.0})

    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        patch.setitem(sys.modules, "ray", Ray())
        patch.setattr(connection, "check_reachable", lambda *tried: calls.append(tried))
        with connection.connected(distribution):
            return calls


def pods(distribution: Distribution) -> Any:
    """Returns the objects of a job."""
    kind = {"tfjob": TFJobs, "trainjob": TrainJobs}[distribution.launcher]
    return json.dumps(kind.manifests(distribution, "name", "gs://bucket/folder", "digest"))


def vertex(distribution: Distribution) -> Any:
    return json.dumps(custom_job(distribution, "name", ["gs://bucket/folder"]))


def vertex_place(distribution: Distribution) -> Any:
    """Returns where a custom job is made."""
    options = distribution.vertex
    return options and (options.project, options.region)


REFUSED = None
Effect = Callable[[Distribution], Any] | None
# Field → a value that is not the default, and for each engine the function whose result changes.
FIELDS: dict[str, tuple[Any, tuple[Effect, ...]]] = {
    "num_workers": (3, (REFUSED, names, names, pods, pods, vertex)),
    "parameter_servers": (1, (REFUSED, names, names, pods, pods, vertex)),
    "chief": (True, (REFUSED, names, names, pods, pods, names)),
    "cpus_per_worker": (0.5, (step, processors, ray_resources, pods, pods, REFUSED)),
    "gpus_per_worker": (2, (step, environment, ray_resources, pods, pods, vertex)),
    "gpu_type": ("amd.com/gpu", (step, step, REFUSED, pods, pods, vertex)),
    "memory_mb_per_worker": (1024, (step, limits, ray_resources, pods, pods, alone)),
    "max_failures": (5, (REFUSED, *[supervised] * 5)),
    "preemption_grace_s": (40.0, (REFUSED, supervised, alone, pods, pods, alone)),
    "worker_grace_s": (9.0, (REFUSED, supervised, supervised, REFUSED, supervised, REFUSED)),
    "timeout_s": (9.0, (REFUSED, supervised, ray_driver, *[supervised] * 3)),
    "heartbeat_s": (90.0, (REFUSED, limits, alone, alone, alone, alone)),
    "require_gpu": (True, (require_gpu, require_gpu, ray_resources, pods, pods, vertex)),
    "env": ({"CHANGED": "1"}, (REFUSED, environment, packed, pods, pods, vertex)),
    "ray": (RayOptions(runtime_env={"pip": []}), (*[REFUSED] * 2, ray_options, *[REFUSED] * 3)),
    "tfjob": (TFJobOptions(image="c/d:2"), (*[REFUSED] * 3, pods, *[REFUSED] * 2)),
    "trainjob": (TrainJobOptions(image="c/d:2"), (*[REFUSED] * 4, pods, REFUSED)),
    "vertex": (VertexOptions("c/d:2", "p", "r"), (*[REFUSED] * 5, vertex)),
    "launcher_options": ({"partition": "gpu"}, (REFUSED,) * 6),  # for others: `test_registry.py`
}
# What shows only together with another field.
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    **{("gpu_type", engine): {"gpus_per_worker": 1} for engine in ENGINES},
    **{(name, "vertex"): {"gpu_type": "T4"} for name in ("gpus_per_worker", "require_gpu")},
    ("gpu_type", "vertex"): {"gpus_per_worker": 1, "gpu_type": "T4"},
    **{("worker_grace_s", engine): {"num_workers": 2} for engine in ("local", "ray", "trainjob")},
}
KUBERNETES = {
    "image": "c/d:2",
    "namespace": "team",
    "service_account": "trainer",
    "volumes": {"claim": "/data"},
    "node_selector": {"gpu": "a100"},
    "labels": {"cost": "research"},
}
VERTEX = {
    "image": "c/d:2",
    "machine_type": "n1-standard-8",
    "spot": True,
    "service_account": "trainer",
    "labels": {"cost": "research"},
    "custom_job": {"encryption_spec": {"kms_key_name": "key"}},
}
OPTIONS: dict[str, tuple[str, Any, Callable[[Distribution], Any]]] = {
    "RayOptions.address": ("ray", "ray://head:10001", ray_options),
    "RayOptions.connect_timeout_s": ("ray", 7.0, ray_options),
    "RayOptions.runtime_env": ("ray", {"pip": ["x"]}, ray_options),
    **{f"TFJobOptions.{name}": ("tfjob", value, pods) for name, value in KUBERNETES.items()},
    **{f"TrainJobOptions.{name}": ("trainjob", value, pods) for name, value in KUBERNETES.items()},
    **{f"VertexOptions.{name}": ("vertex", value, vertex) for name, value in VERTEX.items()},
    "VertexOptions.project": ("vertex", "q", vertex_place),
    "VertexOptions.region": ("vertex", "s", vertex_place),
}


def distribution(engine: str, **fields: Any) -> Distribution:
    return Distribution(launcher=engine, **{**DEFAULT_OPTIONS.get(engine, {}), **fields})  # type: ignore


def test_every_field_has_an_entry() -> None:
    fields = {field.name for field in dataclasses.fields(Distribution)} - {"launcher"}
    assert FIELDS.keys() == fields
    assert all(len(effects) == len(ENGINES) for _, effects in FIELDS.values())
    options = {
        f"{kind.__name__}.{field.name}"
        for kind in (RayOptions, TFJobOptions, TrainJobOptions, VertexOptions)
        for field in dataclasses.fields(kind)
    }
    assert OPTIONS.keys() == options


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FIELDS)
def test_field_shows_or_is_refused(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    value, effects = FIELDS[name]
    together = TOGETHER.get((name, engine), {})
    effect = effects[ENGINES.index(engine)]
    usual = distribution(engine, **together)
    if effect is REFUSED:
        with pytest.raises(ConfigurationError, match=name):
            distribution(engine, **together, **{name: value})
        return
    changed = distribution(engine, **{**together, name: value})
    assert effect(changed) != effect(usual)


@pytest.mark.parametrize("name", OPTIONS)
def test_option_shows(name: str) -> None:
    engine, value, effect = OPTIONS[name]
    base = {"ray": RayOptions(address="head:6379"), **DEFAULT_OPTIONS.get(engine, {})}[engine]
    options = dataclasses.replace(base, **{name.partition(".")[2]: value})  # type: ignore[type-var]
    usual = distribution(engine, **{engine: base})
    assert effect(dataclasses.replace(usual, **{engine: options})) != effect(usual)


@pytest.mark.parametrize("engine", ENGINES)
def test_defaults_are_never_refused(engine: str) -> None:
    usual = Distribution()
    fields = {name: getattr(usual, name) for name in FIELDS}
    assert distribution(engine, **{**fields, **DEFAULT_OPTIONS.get(engine, {})})


def test_what_training_in_process_comes_up_to_is_not_refused() -> None:
    assert Distribution(max_failures=0, heartbeat_s=None)
