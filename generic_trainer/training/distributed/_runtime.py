"""Connection of the worker processes: ranks, agreement on plain values, detection of deadlocks.

Creating a `MultiWorkerMirroredStrategy` makes TensorFlow start the collectives and the coordination
service, a store of keys and values that all workers share. It is only created for that here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import (
    Task,
    answers,
    this_task,
    training_addresses,
)
from generic_trainer._core.machine import visible_gpus
from generic_trainer.errors import ConfigurationError

_logger = logging.getLogger(__name__)

_PREFIX = "generic_trainer/distributed"
# The service keeps a record of each request until the end of the training, so requests wait long
# for their answer instead of being repeated.
_REQUEST_MS = 30_000
# Workers seldom arrive at the same time. One that has waited this long publishes where it waits.
_PATIENCE_MS = 1_000
_POLL_S = 0.2
# How long workers may take to start before the missing ones are logged.
_ABSENT_S = 30.0
_OVER: dict[str, Any] = {}
_END = "at the end of run_fn"

eager_mode = tf.__internal__.eager_context.eager_mode


class Runtime:
    """The connection of this process with the other workers; one object for each process.

    Attributes:
        strategy: the `MultiWorkerMirroredStrategy` that connects the workers.
        tasks: the tasks that train, by rank.
        rank: the number of this worker.
        size: the number of workers.
        device: the device on which this process trains: its first GPU, else its CPU.
        has_own_gpu: whether each worker trains on a GPU that no other worker uses.
        entered: the number of collectives that this process has started; int64 [].
        failure: the reason why the collectives were aborted; None if they were not.
    """

    def __init__(self, addresses: Mapping[Task, str]) -> None:
        self.tasks = tuple(addresses)
        self.rank, self.size = self.tasks.index(this_task()), len(self.tasks)
        self.failure: str | None = None
        self._exchanges = 0  # the number of completed exchanges
        try:
            with _absent_workers_named(addresses):
                self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        except RuntimeError as error:
            raise ConfigurationError(
                "TensorFlow was used before it was connected with the other workers: call "
                "training.get_strategy(), or a function of training.distributed, before anything "
                f"else of TensorFlow ({error})."
            ) from error
        self._service = internals.TF_EAGER_CONTEXT.get()()
        with tf.device("CPU:0"):
            self.entered = tf.Variable(0, dtype=tf.int64, trainable=False, name="entered")
        self.device: str = self.strategy.extended.worker_devices[0]
        threading.Thread(target=self._watch, name=_PREFIX, daemon=True).start()
        self.has_own_gpu = self._all_have_own_gpus()

    def exchange(self, place: str, value: Any) -> list[Any]:
        """Returns, in all workers, the values that each of them passes, by rank.

        It needs no collective: each worker stores its value in the coordination service and reads
        those of the others. It waits until all workers have called it.

        Args:
            place: the point of the training, for messages, such as "at the end of an epoch".
            value: a value that JSON can represent.

        Raises:
            ConfigurationError: the workers called it at different places.
        """
        number = self._exchanges
        note = {"place": place, "rank": self.rank, "entered": self._begun()}
        self.publish(f"{number}/{self.rank}", {"place": place, "value": value})
        entries = [self._wait_for(number, rank, note) for rank in range(self.size)]
        self._exchanges += 1
        self.publish(f"{number}/waiting", _OVER)  # ends the watch of this exchange in all workers
        for entry in entries:
            if "failure" in entry:
                raise ConfigurationError(entry["failure"])
        places = [entry["place"] for entry in entries]
        if len({*places}) > 1:
            raise ConfigurationError(
                f"The workers are at different places: {self._listed(places)}. Expected all of "
                "them to run the same code on data of the same length."
            )
        return [entry["value"] for entry in entries]

    def agree(self, place: str, value: Mapping[Any, Any], describe: Callable[[str], str]) -> None:
        """Raises an error in all workers unless all of them pass equal values.

        Args:
            place: see `exchange`.
            value: fields that JSON can represent; the error reports those that differ.
            describe: returns the error message for a list of the differences.

        Raises:
            ConfigurationError: the values differ.
        """
        values = self.exchange(place, value)
        names = sorted({name for each in values for name in each})
        differ = [name for name in names if any(v.get(name) != values[0].get(name) for v in values)]

        def text(fields: Mapping[str, Any]) -> str:
            return "has " + ", ".join(f"{name} {json.dumps(fields.get(name))}" for name in differ)

        if differ:
            raise ConfigurationError(describe(self._listed([*map(text, values)])))

    def leave(self) -> None:
        """Makes workers fail that wait for this one, now or later, because it has finished.

        It takes the place of this worker in the next exchange, and publishes that this worker will
        not start further collectives.
        """
        note = {"place": _END, "rank": self.rank, "entered": self._begun()}
        self.publish(f"{self._exchanges}/{self.rank}", {"place": _END, "value": None})
        self.publish(f"{self._exchanges}/waiting", note)
        self._exchanges += 1  # of another `run_fn` in these processes

    def _all_have_own_gpus(self) -> bool:
        number = next(iter(visible_gpus()), "?")
        has_gpu = tf.DeviceSpec.from_string(self.device).device_type == "GPU"
        gpu = f"{socket.gethostname()} {number}" if has_gpu else None  # unique among workers
        gpus = self.exchange("about to start", gpu)
        if None in gpus:
            if any(gpus):
                _logger.warning("Not all workers have a GPU: %s.", self._listed([*map(str, gpus)]))
            return False
        if len({*gpus}) < self.size:
            _logger.warning(
                "Workers share a GPU: %s. They exchange tensors through their CPUs, which is "
                "slower. Give each its own GPU with gpus_per_worker=1, or with a different "
                "CUDA_VISIBLE_DEVICES for each.",
                self._listed(gpus),
            )
        return len({*gpus}) == self.size

    def _begun(self) -> int:
        with eager_mode():  # a graph may be under construction
            return int(self.entered)

    def _listed(self, values: Sequence[str]) -> str:
        pairs = zip(self.tasks, values, strict=True)
        return "; ".join(f"{task.name} {value}" for task, value in pairs)

    def _wait_for(self, number: int, rank: int, note: dict[str, Any]) -> dict[str, Any]:
        """Waits without a limit for the entry of a worker in an exchange, and returns it.

        After `_PATIENCE_MS` it publishes where this worker waits; see `_watch`.
        """
        entry = self.published(f"{number}/{rank}", _PATIENCE_MS)
        while entry is None:
            self.publish(f"{number}/waiting", note)
            entry = self.published(f"{number}/{rank}")
        return entry

    def _watch(self) -> None:
        """Aborts the collectives if one can never complete, as another worker is in an exchange.

        A worker that waits in an exchange has completed all the collectives that it has started,
        and publishes their number. If this worker has started more of them, the two are in a
        deadlock: one waits in the exchange, the other in a collective.
        """
        number = 0
        # After an error the cluster no longer exists, and the training has ended as well.
        with contextlib.suppress(tf.errors.OpError):
            while self.failure is None:
                note = self.published(f"{number}/waiting")
                while note and self._exchanges <= number and self.failure is None:
                    if self._begun() > note["entered"]:
                        self._fail(number, note)
                    time.sleep(_POLL_S)
                number = self._exchanges if note is None else number + 1

    def _fail(self, number: int, note: dict[str, Any]) -> None:
        self.failure = (
            f"{self.tasks[note['rank']].name} is {note['place']} and waits for the others, but "
            f"{self.tasks[self.rank].name} has begun one step more. Expected as many batches "
            "on all workers: give all of them the same dataset, of which each trains its share."
        )
        _logger.error("%s", self.failure)
        self.publish(f"{number}/{self.rank}", {"failure": self.failure})
        self._service.abort_collective_ops(tf.errors.FAILED_PRECONDITION, self.failure)

    def publish(self, name: str, value: Any) -> None:
        """Publishes a value for all workers, unless another worker was faster.

        Args:
            name: of the value.
            value: a value that JSON can represent.
        """
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            self._service.set_config_key_value(f"{_PREFIX}/{name}", json.dumps(value))

    def published(self, name: str, timeout_ms: int = _REQUEST_MS) -> Any:
        """Waits for a value to be published and returns it; None after the timeout."""
        try:
            text = self._service.get_config_key_value(f"{_PREFIX}/{name}", timeout_ms)
        except tf.errors.DeadlineExceededError:
            return None
        return json.loads(text)


@functools.cache
def runtime() -> Runtime | None:
    """Returns the connection with the other workers, made on first use; None if there are none.

    Raises:
        ConfigurationError: `TF_CONFIG` is wrong, or TensorFlow has been used before.
    """
    addresses = training_addresses()
    if len(addresses) == 1:
        return None
    with eager_mode():  # code for TensorFlow 1 may have disabled it
        return Runtime(addresses)


@contextlib.contextmanager
def _absent_workers_named(addresses: Mapping[Task, str]) -> Iterator[None]:
    """Logs the workers that do not answer while this one waits to be connected.

    TensorFlow itself waits for an hour without a message.
    """
    are_there = threading.Event()

    def look() -> None:
        while not are_there.wait(_ABSENT_S):
            absent = [f"{task.name} at {at}" for task, at in addresses.items() if not answers(at)]
            if absent and not are_there.is_set():
                _logger.warning(
                    "Waiting for the workers of TF_CONFIG; nothing answers for %s. Start a process "
                    "with its task in TF_CONFIG for each, or correct the addresses.",
                    ", ".join(absent),
                )

    threading.Thread(target=look, name=f"{_PREFIX}/absent", daemon=True).start()
    try:
        yield
    finally:
        are_there.set()


@contextlib.contextmanager
def explained_failures() -> Iterator[None]:
    """Replaces TensorFlow's errors of aborted collectives with one that states the reason.

    Raises:
        ConfigurationError: the collectives were aborted, because one could never complete.
    """
    try:
        yield
    except tf.errors.OpError as error:
        connected = runtime()
        if connected is None or connected.failure is None:
            raise
        raise ConfigurationError(connected.failure) from error


def rank() -> int:
    """Returns the number of this worker; the chief has 0.

    Raises:
        ConfigurationError: `TF_CONFIG` is malformed, or this process does not train.
    """
    tasks = [*training_addresses()]
    return tasks.index(this_task()) if len(tasks) > 1 else 0


def size() -> int:
    """Returns the number of workers that train together; 1 without other workers.

    Raises:
        ConfigurationError: `TF_CONFIG` is malformed, or this process does not train.
    """
    return len(training_addresses())


def barrier(place: str = "at a barrier") -> None:
    """Waits until all workers have called this.

    Args:
        place: the point of the program, for the error if workers are at different places.

    Raises:
        ConfigurationError: the workers are at different places.
    """
    connected = runtime()
    if connected is not None:
        connected.exchange(place, None)


def agree_to_stop(wants: bool) -> bool:
    """Returns, in all workers, whether any of them wants to stop.

    All workers must call it after the same step.

    ::

        for step in range(steps):
            train_step(next(batches))
            if (step + 1) % 100 == 0 and distributed.agree_to_stop(time.time() > end):
                break

    Args:
        wants: whether this worker wants to stop.
    """
    connected = runtime()
    return wants if connected is None else any(connected.exchange("about to stop", bool(wants)))
