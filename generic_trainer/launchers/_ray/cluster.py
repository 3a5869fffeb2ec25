"""Training on a Ray cluster, from the inside: what directs it, and Ray Train's workers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray import train
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train.backend import Backend, BackendConfig

from generic_trainer._core import internals
from generic_trainer._core.cluster import TF_CONFIG, Task, make_tf_config, reserve_port
from generic_trainer._core.files import is_remote
from generic_trainer._core.forkserver import kept_fork_servers
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError, WorkerLostError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._local.engine import LocalEngine
from generic_trainer.launchers._packing import unpack
from generic_trainer.launchers._ray.attempts import answer, ask
from generic_trainer.launchers._ray.connection import give_back, no_room, scaling
from generic_trainer.launchers._ray.keepers import ask_for_lender
from generic_trainer.launchers._ray.output import end_of_output
from generic_trainer.launchers._supervisor import supervise_task
from generic_trainer.launchers._worker_end import WorkerEnd, WorkerTraceback

# Ray's log monitor takes the name of a process from such a line.
_NAME_LINE = ":actor_name:{}"
# The port of this worker, kept from other programs until the worker ends.
_reserved: list[socket.socket] = []


def train_on_cluster(packed: dict[str, Any], timeout_s: float, room: str) -> list[dict[str, Any]]:
    """Has Ray Train run a job; returns how workers ended, as `WorkerEnd.to_dict`, at least one.

    It is called in the actor that keeps the `Attempts`, which tell of failures before it returns.

    Args:
        packed: the job, as `pack` returned it.
        timeout_s: how long, in seconds, the workers may take to be placed.
        room: the name of the placement group that they are to be in.
    """
    # Ray Train is told these by the environment alone.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(timeout_s)
    os.environ["RAY_TRAIN_METRICS_ENABLED"] = "0"
    job = Job.from_json(packed["job"])
    answer("open")
    with ScratchFolder("ray-train-") as storage:
        try:
            _trainer(job, packed, storage, timeout_s, room).fit()
            end = WorkerEnd(task=tasks(job.distribution)[0].name)
        except train.ControllerError as error:
            end = _end_of_controller(error.controller_failure, job.distribution, timeout_s)
        except RayActorError as error:
            give_back(ray, room)
            end = _end(Failure.LOST, "The process that watches the workers was lost.", error)
    return [end.to_dict()]


def _trainer(job: Job, packed: dict[str, Any], storage: str, timeout_s: float, room: str) -> Any:
    distribution, director = job.distribution, ray.get_runtime_context().current_actor
    if isinstance(distribution.num_workers, tuple):
        internals.RAY_ELASTIC_POLICY.get()
    trainer = internals.RAY_DATA_PARALLEL_TRAINER.get()(
        run_on_worker,
        train_loop_config={"packed": packed, "director": director},
        backend_config=ClusterConfig(distribution.to_json(), director),
        scaling_config=train.ScalingConfig(**scaling(distribution)),
        run_config=train.RunConfig(
            name=f"generic-trainer-{job.request.run_key}",
            storage_path=storage,
            # It replaces workers that are lost, and the supervisor decides whether they train.
            failure_config=train.FailureConfig(max_failures=-1, controller_failure_limit=0),
            callbacks=[_watch(distribution, director, timeout_s, room)],
        ),
    )
    _drop_cleaner(trainer)
    return trainer


def _watch(distribution: Distribution, director: Any, timeout_s: float, room: str) -> Any:
    """Returns what Ray Train's controller calls.

    1. It tells which workers are lost.
    2. It fails where there is no room for the fewest workers in time. With a fixed number of them
       Ray Train does so by itself; for one that may change it waits for ever.
    3. It gives what is reserved a name, by which it is given back should Ray Train be killed.
    """
    base, error = internals.RAY_CONTROLLER_CALLBACK.get(), internals.RAY_STARTUP_TIMEOUT.get()
    all_tasks = tasks(distribution)

    class Watch(base):  # type: ignore[misc, valid-type]
        deadline_s: float | None = None

        def after_controller_start(self, train_run_context: Any) -> None:
            groups = internals.RAY_WORKER_GROUP.get()
            reserve = internals.RAY_PLACEMENT_GROUP.of(groups)
            internals.RAY_PLACEMENT_GROUP.set(groups, functools.partial(reserve, name=room))
            self.wait()

        def before_controller_execute_resize_decision(self, resize_decision: Any) -> None:
            self.deadline_s = None  # there is room

        def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
            failed = getattr(current_state, "training_failed_error", None)
            if isinstance(failed, train.WorkerGroupError):
                failures = failed.worker_failures.items()
                ends = [end_of_worker(all_tasks[rank], failure) for rank, failure in failures]
                ray.get(ask(director, "lost", [end.to_dict() for end in ends]))
                self.wait()
            if self.deadline_s is not None and time.monotonic() > self.deadline_s:
                raise error(distribution.min_workers)

        def wait(self) -> None:
            if isinstance(distribution.num_workers, tuple):
                self.deadline_s = time.monotonic() + timeout_s

    return Watch()


def _drop_cleaner(trainer: Any) -> None:
    """Does without an actor that is to give back what a trainer that is killed has reserved.

    It knows of workers that have started only, and asks Ray's dashboard whether the trainer lives:
    where there is none, it warns once a second.
    """
    make_callbacks = internals.RAY_DEFAULT_CALLBACKS.of(trainer)
    cleaner = internals.RAY_PLACEMENT_GROUP_CLEANER.get()
    internals.RAY_DEFAULT_CALLBACKS.set(
        trainer, lambda: [each for each in make_callbacks() if not isinstance(each, cleaner)]
    )


def end_of_worker(task: Task, failure: Exception) -> WorkerEnd:
    """Returns how a worker ended, as far as it is known.

    Args:
        task: the worker.
        failure: what Ray Train says happened to it.
    """
    if isinstance(failure, WorkerTraceback):
        return failure.end
    no_answer = (internals.RAY_HEALTH_CHECK_FAILED.get(), internals.RAY_HEALTH_CHECK_TIMEOUT.get())
    if not isinstance(failure, no_answer):
        return WorkerEnd.of(failure, task.name)
    reason = getattr(failure, "health_check_failure", failure)
    if isinstance(reason, OutOfMemoryError):
        message = "Ray has stopped this worker because its node ran out of memory."
        return _end(Failure.MEMORY, message, reason, task.name)
    return _end(
        Failure.LOST, "this worker was lost, with its process or its node.", reason, task.name
    )


def _end_of_controller(
    failure: Exception, distribution: Distribution, timeout_s: float
) -> WorkerEnd:
    no_place = (internals.RAY_STARTUP_TIMEOUT.get(), internals.RAY_NO_RESOURCES.get())
    if isinstance(failure, no_place):
        return WorkerEnd(
            failure=Failure.USER_CODE,
            error=ConfigurationError.__name__,
            message=no_room(distribution, ray.cluster_resources(), timeout_s),
            traceback=str(failure),
        )
    if isinstance(failure, internals.RAY_STARTUP_FAILED.get()):
        return _end(Failure.LOST, "A worker was lost while it started.", failure)
    return WorkerEnd.of(failure)


def _end(failure: Failure, message: str, reason: Any, task: str | None = None) -> WorkerEnd:
    return WorkerEnd(task=task, failure=failure, message=message, traceback=str(reason))


@dataclasses.dataclass
class ClusterConfig(BackendConfig):
    """The cluster of a distribution, whose task N is Ray Train's worker of rank N.

    Ray's own `TensorflowConfig` knows neither chiefs nor parameter servers, and importing it
    imports TensorFlow three times in a row, in the driver, the controller and the workers.

    Attributes:
        distribution: as JSON.
        director: the actor that keeps the `Attempts`.
    """

    distribution: str
    director: Any

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray Train calls."""
        return _ClusterBackend


class _ClusterBackend(Backend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        distribution = Distribution.from_json(backend_config.distribution)
        if isinstance(distribution.num_workers, tuple):
            distribution = distribution.with_workers(len(worker_group))
        ray.get(ask(backend_config.director, "gather", len(worker_group)))
        all_tasks = tasks(distribution)
        if len(all_tasks) == 1:
            worker_group.execute(_set_tf_config, value=None)
            return
        addresses = dict(zip(all_tasks, worker_group.execute(_reserve_address), strict=True))
        waits = [
            worker_group.execute_single_async(
                rank, _set_tf_config, value=make_tf_config(task, addresses)
            )
            for rank, task in enumerate(all_tasks)
        ]
        ray.get(waits)


def _reserve_address() -> str:
    _reserved.append(reserve_port())
    return f"{ray.util.get_node_ip_address()}:{_reserved[-1].getsockname()[1]}"


def _set_tf_config(value: str | None) -> None:
    if value is None:  # alone, whatever the node says
        os.environ.pop(TF_CONFIG, None)
    else:
        os.environ[TF_CONFIG] = value


def run_on_worker(config: Mapping[str, Any]) -> None:
    """Runs the task whose number is the rank of this worker of Ray Train, attempt after attempt.

    The processes that train are forked from one that has imported TensorFlow in the first attempt,
    for this worker and those that will replace it on its node.

    Args:
        config: `packed`, the job as `pack` returned it; `director`, the actor that keeps the
            `Attempts`.

    Raises:
        WorkerTraceback: it can only go on in a new worker.
    """
    director = config["director"]
    find_lender = functools.partial(ask_for_lender, director)
    with ScratchFolder("job-") as directory, kept_fork_servers(find_lender):
        job, context = unpack(config["packed"], directory), train.get_context()
        if isinstance(job.distribution.num_workers, tuple):
            there = job.distribution.with_workers(context.get_world_size())
            job = dataclasses.replace(job, distribution=there)
        rank = context.get_world_rank()
        task = tasks(job.distribution)[rank]
        _print_on_both(_NAME_LINE.format(task.name))
        group = ray.get(ask(director, "group"))
        number = ray.get(ask(director, "order", group, rank))
        while number is not None:
            stop = _Stop(ask(director, "wait_for_stop", group, number))
            end = _run(job, task, stop)
            if end.failure is Failure.LOST and job.distribution.parameter_servers:
                raise WorkerTraceback(end)  # servers serve one chief, and end with their worker
            if end.failure not in (None, Failure.LOST) and not stop.wait(0.0):
                _print_on_both(end_of_output(task.name))
            number = ray.get(ask(director, "done", group, rank, number, end.to_dict()))
    if end.failure is None:
        _print_on_both(end_of_output(task.name))


class _Stop:
    """Tells a worker when its attempt is over, though it goes on."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def wait(self, timeout_s: float) -> bool:
        """Returns whether the attempt is over, or is in so many seconds."""
        return bool(ray.wait([self._reference], timeout=timeout_s)[0])

    @contextlib.contextmanager
    def engine(self, job: Job) -> Iterator[LocalEngine]:
        """Opens an engine for the task of one attempt."""
        yield _StoppedEngine(job, self)


class _StoppedEngine(LocalEngine):
    def __init__(self, job: Job, stop: _Stop) -> None:
        super().__init__(job)
        self._stop = stop

    def check(self) -> None:
        if self._stop.wait(0.0):
            raise WorkerLostError("This worker was stopped, as another one was lost.")
        super().check()


def _run(job: Job, task: Task, stop: _Stop) -> WorkerEnd:
    try:
        _check_storage(job)
        if task.is_server:
            from generic_trainer.launchers._task import serve  # imports TensorFlow

            os.environ.update({**job.distribution.env, "TF_GRPC_REUSE_PORT": "1"})
            serve(job)  # until this worker ends, which is when the chief has
            return WorkerEnd(task=task.name)
        return supervise_task(job, task, stop.engine, wait=stop.wait)
    except Exception as error:
        return WorkerEnd.of(error, task.name)


def _check_storage(job: Job) -> None:
    directory = job.request.model_run_dir
    if not is_remote(directory) and not os.path.isdir(directory):
        raise ConfigurationError(
            f"The pipeline root must be on storage that all nodes share, but {directory} is not "
            "there on this node of the Ray cluster. Use a bucket (gs://..., s3://...) or a file "
            "system that is mounted everywhere under the same path.",
            path=directory,
        )


def _print_on_both(line: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"{line}\n")
        stream.flush()
