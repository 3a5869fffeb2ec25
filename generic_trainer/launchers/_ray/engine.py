"""Engine of the launcher `ray`: places and starts an actor for each task, and watches them."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from generic_trainer._core.cluster import Task, make_tf_config
from generic_trainer.errors import ConfigurationError, WorkerLostError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job, pack
from generic_trainer.launchers._ray.actors import actor_class
from generic_trainer.launchers._ray.connection import (
    connected,
    no_room,
    placement_timeout_s,
    resources_per_worker,
    room_for,
)
from generic_trainer.launchers._ray.last_lines import LastLines
from generic_trainer.launchers._supervisor import Engine
from generic_trainer.launchers._worker_end import WorkerEnd

_ACTORS = f"{__package__}.actors"
_POLL_S = 1.0
# How long a number of workers above the fewest may take to be placed.
_MORE_S = 5.0
# How long killed actors may take to end.
_END_S = 10.0


class RayEngine(Engine):
    """Actors on a Ray cluster; all attempts share its connection, as long as that lasts.

    1. `check` finds nothing: each actor watches its own task.
    2. `stop` ends all actors: Ray has no signal that lets them save.
    3. `diagnose` returns nothing: the stacks of the workers are on their nodes.
    """

    def __init__(self, job: Job) -> None:
        """Makes the engine; the first attempt connects."""
        self._job = job
        self._distribution = job.distribution
        self._connection = contextlib.ExitStack()
        self._last_lines = LastLines()
        self._number = 0  # of the attempt, from 1
        self._attempt = contextlib.ExitStack()
        self._ray: Any = None
        self._pending: dict[Any, Task] = {}  # Ray's reference to a result → its task
        self._ends: list[WorkerEnd] = []

    def start(self) -> None:
        """Places and starts all tasks.

        Raises:
            ConfigurationError: Ray cannot be used, has no room, or its nodes lack this package.
            ModuleFileError: the user's code cannot be read.
            WorkerLostError: a worker or the connection was lost meanwhile.
        """
        self._ends = []
        self._number += 1
        self._last_lines.forget()
        if self._ray is None:
            self._connection.enter_context(self._last_lines.watched())
            self._ray = self._connection.enter_context(connected(self._distribution))
        try:
            with self._losses():
                self._start()
        except ImportError as error:
            cause = getattr(error, "cause", error)  # Ray adds the node's traceback, in colours
            raise ConfigurationError(
                f"The nodes of the Ray cluster cannot run the job: {cause}. Install the same "
                "release of generic-trainer[ray] there as here, in the image of the cluster or "
                "with RayOptions(runtime_env={'pip': ['generic-trainer[ray]']})."
            ) from error

    def poll(self) -> Sequence[WorkerEnd]:
        """Waits a moment for the next end, and returns all of this attempt.

        Raises:
            WorkerLostError: the connection was lost.
        """
        with self._losses():
            for reference in self._ray.wait([*self._pending], timeout=_POLL_S)[0]:
                task = self._pending.pop(reference)
                try:
                    end = self._ray.get(reference)
                    self._last_lines.expect(task.name, self._number)
                except Exception as error:
                    end = end_of_actor(task, error)
                self._ends.append(end)
        return self._ends

    def running(self) -> Sequence[Task]:
        """Returns the tasks that have not ended."""
        return [*self._pending.values()]

    def kill(self) -> None:
        """Ends all actors, and with them their children; gives back their room."""
        try:
            self._attempt.close()
            if self._pending:
                self._ray.wait([*self._pending], num_returns=len(self._pending), timeout=_END_S)
        except Exception:  # the connection is lost, which ends the actors too
            self._disconnect()
        self._pending = {}

    def close(self) -> None:
        """Disconnects, when the last lines of the workers are shown."""
        if self._ray is not None:
            self._last_lines.wait()
        self._disconnect()

    def _start(self) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group, count = self._attempt.enter_context(placed(self._ray, self._distribution))
        size = count - self._distribution.num_processes + self._distribution.max_workers
        distribution = dataclasses.replace(self._distribution, num_workers=size)
        all_tasks = tasks(distribution)
        resources = resources_per_worker(self._distribution)
        # The bundles are alike, so it does not matter which of them an actor gets.
        worker = self._ray.remote(actor_class()).options(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            memory=resources.get("memory"),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group),
        )
        actors = [worker.remote(task.name) for task in all_tasks]
        for actor in actors:
            self._attempt.callback(self._ray.kill, actor)
        reserved = [actor.call.remote(f"{_ACTORS}:reserve_address") for actor in actors]
        addresses = dict(zip(all_tasks, self._ray.get(reserved), strict=True))
        packed = self._ray.put(pack(dataclasses.replace(self._job, distribution=distribution)))
        for number, (task, actor) in enumerate(zip(all_tasks, actors, strict=True)):
            config = make_tf_config(task, addresses) if len(all_tasks) > 1 else ""
            place = (number, config, self._number)
            reference = actor.call.remote(f"{_ACTORS}:run", packed, *place)
            self._pending[reference] = task

    @contextlib.contextmanager
    def _losses(self) -> Iterator[None]:
        """Reports a loss of the connection, or of a worker that does not train yet."""
        from ray.exceptions import RayError

        try:
            yield
        except ImportError:  # raised by an actor, which makes it a RayError too
            raise
        except (RayError, ConnectionError) as error:
            raise WorkerLostError(f"Ray lost a worker or the connection: {error}") from error

    def _disconnect(self) -> None:
        self._ray = None
        with contextlib.suppress(Exception):  # of a connection that is lost
            self._connection.close()


@contextlib.contextmanager
def placed(ray: Any, distribution: Distribution) -> Iterator[tuple[Any, int]]:
    """Yields a placement group with a bundle for each task, and their number; removes it on exit.

    Of a number of workers that may vary it takes as many as the cluster has room for.

    Raises:
        ConfigurationError: the fewest workers cannot be placed in time.
    """
    from ray.util import placement_group, remove_placement_group

    fewest = distribution.min_processes
    bundle = resources_per_worker(distribution)
    timeout_s = placement_timeout_s(distribution)
    tried: set[int] = set()
    # The second is asked late: at first it lacks what the attempt before has just given back.
    for room in (ray.cluster_resources, ray.available_resources, dict):
        number = max(fewest, min(distribution.num_processes, room_for(distribution, room())))
        if number in tried:
            continue
        tried.add(number)
        group = placement_group([bundle] * number)
        try:
            if group.wait(timeout_s if number == fewest else _MORE_S):
                yield group, number
                return
        finally:
            remove_placement_group(group)
    raise ConfigurationError(no_room(distribution, ray.cluster_resources(), timeout_s))


def end_of_actor(task: Task, error: Exception) -> WorkerEnd:
    """Returns how a task ended whose actor has not returned its end.

    Args:
        task: the task.
        error: what Ray raises instead.
    """
    from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

    if isinstance(error, RayTaskError) or not isinstance(error, RayError):
        return WorkerEnd.of(error, task.name)
    if isinstance(error, OutOfMemoryError):
        failure = Failure.MEMORY
        message = "Ray stopped this worker: its node ran out of memory."
    else:
        failure = Failure.LOST
        message = "this worker was lost, with its process or its node."
    return WorkerEnd(task=task.name, failure=failure, message=message, traceback=str(error))
