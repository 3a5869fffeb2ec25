"""A launcher of another distribution: a service that runs its jobs as processes of this machine."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from generic_trainer.launchers import _registry
from tests import helpers
from tests.house import ROOT

__all__ = ["NAME", "installed"]

NAME = "batch"
_SOURCE = """
import dataclasses
import functools
import json
import os
import socket
import subprocess
import sys

from generic_trainer.launchers import (
    PROGRAM,
    JobStatus,
    Launcher,
    RemoteService,
    TaskStatus,
    run_by_service,
    tasks,
)


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    folder: str
    queue: str = "usual"

    def __post_init__(self):
        if self.queue not in ("usual", "fast"):
            raise ValueError(f"there is no queue {self.queue!r}")


class Batch(RemoteService):
    provider, kind, permissions, poll_s = "Batch", "batch job", "a shell", 0.2

    def __init__(self, distribution):
        self.folder = distribution.options.folder
        self.tasks = tasks(distribution)
        self.jobs = {}

    def mounts(self):
        return [self.folder]

    def create(self, name, distribution, folder, digest):
        if name in self.jobs:
            return
        cluster = {}
        for task in self.tasks:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                cluster.setdefault(task.type, []).append("127.0.0.1:%d" % free.getsockname()[1])
        self.jobs[name] = {}
        for task in self.tasks:
            place = {"cluster": cluster, "task": {"type": task.type, "index": task.index}}
            mine = {"TF_CONFIG": json.dumps(place)} if distribution.is_cluster else {}
            with open(self.log_of(name, task), "wb") as log:
                self.jobs[name][task] = subprocess.Popen(
                    [sys.executable, "-m", PROGRAM, folder.path, digest],
                    env={**os.environ, **distribution.env, **mine},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def look(self, name, folder):
        found = {}
        for task, process in self.jobs[name].items():
            code = process.poll()
            phase = "running" if code is None else "failed" if code else "succeeded"
            found[task] = TaskStatus(task.name, phase, code)
        return JobStatus(tasks=found)

    def delete(self, name):
        for process in self.jobs.get(name, {}).values():
            process.terminate()

    def has_ended(self, name):
        return all(process.poll() is not None for process in self.jobs.get(name, {}).values())

    def log(self, name, task):
        with open(self.log_of(name, task)) as log:
            return name, iter(log.read().splitlines())

    def log_of(self, name, task):
        return os.path.join(self.folder, f"{name}-{task.type}-{task.index}.log")


BATCH = Launcher(
    run=functools.partial(run_by_service, Batch),
    options=BatchOptions,
    refused={"gpu_type": "means nothing to a batch job"},
)
"""


@contextlib.contextmanager
def installed(folder: Path, source: str = _SOURCE) -> Iterator[None]:
    """Installs the distribution, for this process and for its children.

    Args:
        folder: an existing folder.
        source: of its module, with the launcher as `BATCH`.
    """
    site = folder / "site"
    module = f"batch_{abs(hash(folder))}"  # another in each test
    helpers.install(site, module, source, "generic_trainer.launchers", f"{NAME} = {module}:BATCH")
    path = os.pathsep.join([str(ROOT), str(site)])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", path)
        importlib.invalidate_caches()
        _registry.find_launcher.cache_clear()
        yield
    _registry.find_launcher.cache_clear()
