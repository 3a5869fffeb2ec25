"""The processes that train together: who they are, and what they tell one another beside tensors.

TensorFlow starts the connections between them, the collectives and the coordination service, when a
`MultiWorkerMirroredStrategy` is made: that is all that one is made for here.
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
    training_tasks,
)
from generic_trainer._core.machine import visible_gpus
from generic_trainer.errors import ConfigurationError

_logger = logging.getLogger(__name__)

_PREFIX = "generic_trainer/distributed"
# The service keeps a note of each request until the end, so there are few, and they are long.
_REQUEST_MS = 30_000
# Workers seldom come to the same place at once; one that waits for longer says where it is.
_PATIENCE_MS = 1_000
_POLL_S = 0.2
# How long workers may take to start before it is said which of them are missed.
_ABSENT_S = 30.0
_OVER: dict[str, Any] = {}
_END = "at the end of run_fn"

eager_mode = tf.__internal__.eager_context.eager_mode


class Runtime:
    """What connects this process with the others; one for each process.

    Attributes:
        strategy: the `MultiWorkerMirroredStrategy` that connects them.
        tasks: the processes that train, by rank.
        rank: the number of this one.
        size: how many they are.
        device: what this process trains on: its first GPU, else its processor.
        has_own_gpu: whether each worker trains on a GPU that no other one uses.
        entered: how many collectives this process has begun; int64 [].
        failure: why the collectives were aborted; None if they were not.
    """

    def __init__(self, addresses: Mapping[Task, str]) -> None:
        self.tasks = tuple(addresses)
        self.rank, self.size = self.tasks.index(this_task()), len(self.tasks)
        self.failure: str | None = None
        self._exchanges = 0  # that have ended
        try:
            with _absent_workers_named(addresses):
                self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        except RuntimeError as error:
            raise ConfigurationError(
                "TensorFlow was used before it was connected with the other workers: call "
                "training.get_strategy(), or a function of training.distributed, before anything "
                f"else of TensorFlow ({error})."
            ) from error
        self.resolver = self.strategy.cluster_resolver
        self._service = internals.TF_EAGER_CONTEXT.get()()
        with tf.device("CPU:0"):
            self.entered = tf.Variable(0, dtype=tf.int64, trainable=False, name="entered")
        self.device = _own_device(self.resolver.task_id)
        threading.Thread(target=self._watch, name=_PREFIX, daemon=True).start()
        self.has_own_gpu = self._all_have_own_gpus()

    def exchange(self, place: str, value: Any) -> list[Any]:
        """Gives all workers what each of them has, by rank.

        Args:
            place: where in the training this is, for messages: "at the end of an epoch".
            value: anything that JSON can hold.

        Raises:
            ConfigurationError: the workers have come to different places.
        """
        number = self._exchanges
        entered = self._begun()
        self._set(f"{number}/{self.rank}", {"place": place, "value": value})
        entries = [
            self._wait_for(number, rank, {"place": place, "rank": self.rank, "entered": entered})
            for rank in range(self.size)
        ]
        self._exchanges += 1
        self._set(f"{number}/waiting", _OVER)  # so that who watches goes on to the next
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

    def agree(self, place: str, value: Any, describe: Callable[[str], str]) -> None:
        """Raises an error in all workers unless all of them have the same.

        Args:
            place: see `exchange`.
            value: anything that JSON can hold.
            describe: from the list of what differs to the text of the error.

        Raises:
            ConfigurationError: they have not.
        """
        values = self.exchange(place, value)
        if any(each != values[0] for each in values):
            raise ConfigurationError(describe(self._listed(list(map(_text, _differing(values))))))

    def leave(self) -> None:
        """Has who still waits for this worker, or will, fail: it does no more of the training."""
        note = {"place": _END, "rank": self.rank, "entered": self._begun()}
        self._set(f"{self._exchanges}/{self.rank}", {"place": _END, "value": None})
        self._set(f"{self._exchanges}/waiting", note)

    def _all_have_own_gpus(self) -> bool:
        gpus = self.exchange("about to start", _gpu_of(self.device))
        if None in gpus:
            if gpus != [None] * self.size:
                _logger.warning("Not all workers have a GPU: %s.", self._listed([*map(str, gpus)]))
            return False
        if len({*gpus}) < self.size:
            _logger.warning(
                "Workers share a GPU: %s. What they send one another goes through their processors "
                "then, which is slower; gpus_per_worker=1 gives each its own, as does another "
                "CUDA_VISIBLE_DEVICES for each.",
                self._listed(gpus),
            )
        return len({*gpus}) == self.size

    def _begun(self) -> int:
        with eager_mode():  # also where a graph is being built
            return int(self.entered)

    def _listed(self, values: Sequence[str]) -> str:
        pairs = zip(self.tasks, values, strict=True)
        return "; ".join(f"{task.name} {value}" for task, value in pairs)

    def _wait_for(self, number: int, rank: int, note: dict[str, Any]) -> dict[str, Any]:
        """Returns the entry of a worker in an exchange, however long it takes."""
        entry = self._get(f"{number}/{rank}", _PATIENCE_MS)
        while entry is None:
            self._set(f"{number}/waiting", note)
            entry = self._get(f"{number}/{rank}", _REQUEST_MS)
        return entry

    def _watch(self) -> None:
        """Aborts the collectives if one can never end, as another worker is in an exchange.

        A worker that waits in an exchange has ended all the collectives that it has begun. Where
        this one has begun another, each of the two waits for the other.
        """
        number = 0
        # An error tells that the cluster is gone, and with it the training.
        with contextlib.suppress(tf.errors.OpError):
            while self.failure is None:
                note = self._get(f"{number}/waiting", _REQUEST_MS)
                while note and self._exchanges <= number and self.failure is None:
                    if self._begun() > note["entered"]:
                        self._fail(number, note)
                    time.sleep(_POLL_S)
                number = self._exchanges if note is None else number + 1

    def _fail(self, number: int, note: dict[str, Any]) -> None:
        self.failure = (
            f"{self.tasks[note['rank']].name} is {note['place']}, where it waits for the others, "
            f"and {self.tasks[self.rank].name} has begun one step more. Expected as many batches "
            "on all workers: give all of them the same dataset, of which each trains its share."
        )
        _logger.error("%s", self.failure)
        self._set(f"{number}/{self.rank}", {"failure": self.failure})
        self._service.abort_collective_ops(tf.errors.FAILED_PRECONDITION, self.failure)

    def _set(self, name: str, value: Any) -> None:
        # Another worker's note says as much.
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            self._service.set_config_key_value(f"{_PREFIX}/{name}", json.dumps(value))

    def _get(self, name: str, timeout_ms: int) -> Any:
        """Returns what was set; None if nothing was in time."""
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
    with eager_mode():  # code of TensorFlow 1 turns it off
        return Runtime(addresses)


@contextlib.contextmanager
def _absent_workers_named(addresses: Mapping[Task, str]) -> Iterator[None]:
    """Warns, while this worker waits for the others, of those that nobody seems to have started.

    TensorFlow waits for an hour, and says nothing.
    """
    are_there = threading.Event()

    def look() -> None:
        while not are_there.wait(_ABSENT_S):
            absent = [
                f"{task.name} at {address}"
                for task, address in addresses.items()
                if not answers(address)
            ]
            if absent and not are_there.is_set():
                _logger.warning(
                    "Waiting for the workers of TF_CONFIG; nothing answers for %s. Start a process "
                    "with its place in TF_CONFIG for each, or correct the addresses.",
                    ", ".join(absent),
                )

    threading.Thread(target=look, name=f"{_PREFIX}/absent", daemon=True).start()
    try:
        yield
    finally:
        are_there.set()


@contextlib.contextmanager
def explained_failures() -> Iterator[None]:
    """Has collectives that were aborted, as one can never end, fail with the reason.

    Raises:
        ConfigurationError: they were.
    """
    try:
        yield
    except tf.errors.OpError as error:
        connected = runtime()
        if connected is None or connected.failure is None:
            raise
        raise ConfigurationError(connected.failure) from error


def rank() -> int:
    """Returns the number of this worker, from 0; that of the chief is 0.

    Raises:
        ConfigurationError: `TF_CONFIG` cannot be understood, or this process trains nothing.
    """
    tasks = training_tasks()
    return tasks.index(this_task()) if len(tasks) > 1 else 0


def size() -> int:
    """Returns the number of workers that train together; 1 for a process on its own.

    Raises:
        ConfigurationError: `TF_CONFIG` cannot be understood, or this process trains nothing.
    """
    return len(training_tasks())


def barrier(place: str = "at a barrier") -> None:
    """Waits until all workers have come here.

    Args:
        place: where that is, for the error of workers that are somewhere else.

    Raises:
        ConfigurationError: they have come to different places.
    """
    connected = runtime()
    if connected is not None:
        connected.exchange(place, None)


def agree_to_stop(wants: bool) -> bool:
    """Returns whether any worker wants to stop, in all of them; all call it after the same step.

    ::

        for step in range(steps):
            train_step(next(batches))
            if (step + 1) % 100 == 0 and distributed.agree_to_stop(time.time() > end):
                break

    Args:
        wants: whether this worker does.
    """
    connected = runtime()
    return wants if connected is None else any(connected.exchange("about to stop", bool(wants)))


def _own_device(task_id: int) -> str:
    """Returns the name of this process's first GPU, else that of its processor."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return next(
        device.name
        for device in tf.config.list_logical_devices(kind)
        if tf.DeviceSpec.from_string(device.name).task in (None, task_id)
    )


def _gpu_of(device: str) -> str | None:
    """Returns what tells a first GPU from those of other workers; None for a processor."""
    if tf.DeviceSpec.from_string(device).device_type != "GPU":
        return None
    return f"{socket.gethostname()} {next(iter(visible_gpus()), '?')}"


def _differing(values: Sequence[Any]) -> list[Any]:
    """Returns the values, of dicts only those fields that are not the same in all."""
    if not all(isinstance(value, dict) for value in values):
        return list(values)
    names = sorted({name for value in values for name in value})
    differ = [n for n in names if any(v.get(n) != values[0].get(n) for v in values)]
    return [{name: value.get(name) for name in differ} for value in values]


def _text(value: Any) -> str:
    fields = value.items() if isinstance(value, dict) else [("", value)]
    return "has " + ", ".join(f"{name} {json.dumps(each)}".strip() for name, each in fields)
