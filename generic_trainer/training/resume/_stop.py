"""When to stop because of SIGTERM: workers that train in step all stop after the same one."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from generic_trainer._core.signals import SigtermNotice

__all__ = ["AgreedStop", "OwnStop", "Stop", "tasks_of"]

_TRAINING_JOBS = ("chief", "worker")
# How long a request may wait for an answer: the service keeps a note of each until the end.
_REQUEST_MS = 30_000
_NEVER = "never"

_fits = itertools.count()


def tasks_of(strategy: Any) -> list[str]:
    """Returns the tasks that train in step under a strategy, such as "worker/0"; [] if alone."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []
    cluster = strategy.cluster_resolver.cluster_spec()
    jobs = [job for job in _TRAINING_JOBS if job in cluster.jobs]
    tasks = [f"{job}/{index}" for job in jobs for index in range(cluster.num_tasks(job))]
    return tasks if len(tasks) > 1 else []


class Stop(Protocol):
    """Tells after each step whether it was the last one."""

    def is_due(self, step: int) -> bool:
        """Whether to save and stop after this step."""

    def close(self) -> None:
        """Stops to listen."""


class OwnStop:
    """Due as soon as this process was told to stop."""

    def __init__(self, notice: SigtermNotice) -> None:
        self._notice = notice

    def is_due(self, step: int) -> bool:
        """See `Stop`."""
        return self._notice.received

    def close(self) -> None:
        """See `Stop`."""


class AgreedStop:
    """Due after the same step on all workers, when any of them was told to stop.

    That worker names the next step to the coordination service of the cluster, and begins it only
    when all workers know. No step ends without every worker, so none of them is past it by then.

    Source: how `tf.distribute.experimental.PreemptionCheckpointHandler` has workers agree.
    """

    def __init__(self, notice: SigtermNotice, strategy: Any) -> None:
        """Starts to listen to the other workers; they must make theirs for the same `fit`."""
        resolver = strategy.cluster_resolver
        self._notice = notice
        self._tasks = tasks_of(strategy)
        self._task = f"{resolver.task_type}/{resolver.task_id}"
        self._name = f"generic_trainer/stop/{next(_fits)}"
        self._step: int | None = None
        self._is_open = True
        threading.Thread(target=self._listen, name=self._name, daemon=True).start()

    def is_due(self, step: int) -> bool:
        """See `Stop`."""
        if self._step is None and self._notice.received:
            self._propose(str(step + 1))
            for task in self._tasks:
                self._service.get_config_key_value(f"{self._name}/knows/{task}")
        return self._step is not None and step >= self._step

    def close(self) -> None:
        """See `Stop`; the other workers have come to the end of `fit` as well."""
        self._is_open = False
        with contextlib.suppress(tf.errors.OpError):  # the others may be gone already
            self._propose(_NEVER)

    def _propose(self, step: str) -> None:
        with contextlib.suppress(tf.errors.AlreadyExistsError):  # another worker was faster
            self._service.set_config_key_value(f"{self._name}/step", step)

    def _listen(self) -> None:
        step = None
        while step is None and self._is_open:
            try:
                step = self._service.get_config_key_value(f"{self._name}/step", _REQUEST_MS)
            except tf.errors.DeadlineExceededError:
                continue
            except tf.errors.OpError:
                return  # the cluster is gone, and with it the training
        if step is not None:
            self._step = None if step == _NEVER else int(step)
            with contextlib.suppress(tf.errors.OpError):
                self._service.set_config_key_value(f"{self._name}/knows/{self._task}", "yes")

    @property
    def _service(self) -> Any:
        return eager_context.context()
