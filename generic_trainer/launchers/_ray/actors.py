"""Actors of a run on Ray, from the inside: the address of a task, and its training."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from generic_trainer._core import internals
from generic_trainer._core.cluster import TF_CONFIG, reserve_port
from generic_trainer._core.files import is_remote
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._job import Job, unpack
from generic_trainer.launchers._local.engine import LocalEngine
from generic_trainer.launchers._ray.last_lines import end_output
from generic_trainer.launchers._supervisor import supervise_task
from generic_trainer.launchers._worker_end import WorkerEnd

# How often each worker asks the head of the cluster, in seconds.
_DRAIN_POLL_S = 2.0

_logger = logging.getLogger(__name__)

_ports: list[socket.socket] = []  # reserved until this process ends


def actor_class() -> type:
    """Returns a class that Ray sends whole, and not by its name: a node may lack this package.

    Then `call` raises an ImportError, which names the module.
    """

    class Worker:
        def __init__(self, name: str) -> None:
            self.name = name

        def __repr__(self) -> str:  # Ray begins the lines of an actor with it
            return self.name

        def call(self, target: str, *arguments: Any) -> Any:
            import importlib

            module, _, function = target.partition(":")
            return getattr(importlib.import_module(module), function)(*arguments)

    return Worker


def reserve_address() -> str:
    """Returns "host:port" for the task of this process."""
    import ray

    _ports.append(reserve_port())
    return f"{ray.util.get_node_ip_address()}:{_ports[-1].getsockname()[1]}"


def run(packed: dict[str, Any], number: int, tf_config: str, attempt: int) -> WorkerEnd:
    """Runs a task and returns its end.

    Args:
        packed: the job, as `pack` returned it.
        number: of the task, among all.
        tf_config: empty for a task that is alone.
        attempt: the number of the attempt, from 1.
    """
    os.environ.pop(TF_CONFIG, None)  # a node may have one
    if tf_config:
        os.environ[TF_CONFIG] = tf_config
    with ScratchFolder("job-") as directory:
        job = unpack(packed, directory)
        task = tasks(job.distribution)[number]
        try:
            _check_storage(job)
            with _sigterm_if_drained():
                return supervise_task(job, task, LocalEngine)
        except Exception as error:
            return WorkerEnd.of(error, task.name)
        finally:
            end_output(task.name, attempt)


@contextlib.contextmanager
def _sigterm_if_drained() -> Iterator[None]:
    """Sends SIGTERM to this process once its node is drained: the workers then save and end.

    A node is drained before a cloud preempts it, or an autoscaler or an operator removes it. Ray
    places nothing more there, but leaves the actors uninformed until the node is gone.
    """
    import ray

    draining_nodes = internals.RAY_DRAINING_NODES.get()
    node = ray.get_runtime_context().get_node_id()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_DRAIN_POLL_S):
            with contextlib.suppress(Exception):  # the head does not answer
                if node in draining_nodes() and not over.is_set():
                    _logger.warning("Ray drains the node of this worker: all workers are to save")
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    threading.Thread(target=watch, name="drain", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _check_storage(job: Job) -> None:
    directory = job.request.model_run_dir
    if not is_remote(directory) and not os.path.isdir(directory):
        raise ConfigurationError(
            f"The pipeline root must be on storage that all nodes share, but {directory} does not "
            "exist on this node of the Ray cluster. Use a bucket (gs://..., s3://...) or a file "
            "system that is mounted everywhere under the same path.",
            path=directory,
        )
