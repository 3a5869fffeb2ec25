"""Connection of the worker processes: ranks, agreement on plain values, detection of deadlocks.

Creating a `MultiWorkerMirroredStrategy` makes TensorFlow start the collectives and the coordination
service, a store of keys and values that all workers share. It is only created for that here.

Both workers have done 7 collectives. Then worker 0 has no more batches, and worker 1 has one::

    worker 0                                      worker 1
    is at the end of the epoch, exchange 3        begins collective 8 and waits for worker 0
    publishes 3/0 = its logs                      ...
    publishes 3/waiting = {"entered": 7, ...}     ...
    waits for 3/1                                 its `_watch` thread reads 3/waiting: 8 > 7
                                                  publishes 3/1 = {"failure": ...}
    reads 3/1, raises the failure                 aborts its collectives; `explained_failures`
                                                  raises the same failure in its step

TensorFlow alone would let both wait for ever. If worker 1 had died instead, no process would
publish 3/1: TensorFlow's check of its peers, or the supervisor of the workers, ends worker 0.
"""

import contextlib
import functools
import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import Task, answers, this_task, training_addresses
from generic_trainer._core.machine import visible_gpus
from generic_trainer.errors import ConfigurationError

_logger = logging.getLogger(__name__)

_PREFIX = "generic_trainer/distributed"
# The service keeps a record of each request until the end of the training, so requests wait long
# for their answer instead of being repeated.
_REQUEST_MS = 30_000
_POLL_S = 0.2
# How long workers may take to start before the missing ones are logged.
_ABSENT_S = 30.0
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
        self.rank = self.tasks.index(this_task())
        self.size = len(self.tasks)
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
        number = self._arrive(place, value)
        entries = [self.wait_for(f"{number}/{rank}") for rank in range(self.size)]
        self._exchanges += 1  # also before an error: `_watch` must go on to the next
        # Before the places: a failure has none, and is the reason that they differ.
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

    def agree(self, place: str, facts: Sequence[str]) -> None:
        """Raises an error in all workers unless all of them pass equal facts.

        Args:
            place: see `exchange`.
            facts: about the training of this worker, each once; the error lists those that differ.

        Raises:
            ConfigurationError: the facts differ.
        """
        of_all = self.exchange(place, facts)
        common = {*facts}.intersection(*of_all)
        if any(common != {*of_worker} for of_worker in of_all):
            differences = []
            for of_worker in of_all:
                own = ", ".join(fact for fact in of_worker if fact not in common)
                differences.append(f"has {own or 'none of these'}")
            raise ConfigurationError(
                f"The workers do not train the same: {self._listed(differences)}. Expected run_fn "
                "to build the same model on all of them, to give fit the same dataset, of which "
                "each worker trains its share, and training.distributed tensors of the same types "
                "and shapes."
            )

    def leave(self) -> None:
        """Makes workers fail that wait for this one, now or later, because it has finished."""
        self._arrive(_END, None)
        self._exchanges += 1  # of another `run_fn` in these processes

    def _arrive(self, place: str, value: Any) -> int:
        """Publishes that this worker has come to the next exchange, and returns its number.

        The first to arrive publishes how many collectives it has started, too; see `_watch`.
        """
        number = self._exchanges
        note = {"place": place, "rank": self.rank, "entered": self._begun()}
        self.publish(f"{number}/{self.rank}", {"place": place, "value": value})
        self.publish(f"{number}/waiting", note)
        return number

    def _all_have_own_gpus(self) -> bool:
        number = next(iter(visible_gpus()), "?")
        has_gpu = tf.DeviceSpec.from_string(self.device).device_type == "GPU"
        gpu = f"{socket.gethostname()} {number}" if has_gpu else None  # unique among workers
        gpus = self.exchange("about to start", gpu)
        are_own = None not in gpus and len({*gpus}) == self.size
        if any(gpus) and not are_own:
            _logger.warning(
                "Not every worker has a GPU of its own: %s. They exchange tensors through their "
                "CPUs, which is slower. Give each its own GPU with gpus_per_worker=1, or with a "
                "different CUDA_VISIBLE_DEVICES for each.",
                self._listed(gpus),
            )
        return are_own

    def _begun(self) -> int:
        with eager_mode():  # a graph may be under construction
            return int(self.entered)

    def _listed(self, values: Sequence[str]) -> str:
        pairs = zip(self.tasks, values, strict=True)
        return "; ".join(f"{task.name} {value}" for task, value in pairs)

    def _watch(self) -> None:
        """Aborts the collectives if one can never complete, as another worker is in an exchange.

        A worker in an exchange has completed all the collectives that it has started, and publishes
        their number. If this worker has started more of them, the two are in a deadlock: one waits
        in the exchange, the other in a collective.
        """
        # After an error the cluster no longer exists, and the training has ended as well.
        with contextlib.suppress(tf.errors.OpError):
            for number in itertools.count():
                note = self.wait_for(f"{number}/waiting")
                while True:
                    begun = self._begun()  # read first: it may grow once the exchange is over
                    if self._exchanges > number:
                        break
                    if begun > note["entered"]:
                        self._fail(number, note)
                        return
                    time.sleep(_POLL_S)

    def _fail(self, number: int, note: dict[str, Any]) -> None:
        self.failure = (
            f"{self.tasks[note['rank']].name} is {note['place']} and waits for the others, but "
            f"{self.tasks[self.rank].name} has begun one step more. Expected as many batches "
            "on all workers: give all of them the same dataset, of which each trains its share. A "
            "callback that sets stop_training by the logs of a batch, such as TerminateOnNaN, sees "
            "those of one share, and stops one worker alone: let it ask the others by "
            "training.distributed.agree_to_stop after each batch, or stop at the end of an epoch."
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
        # The first value stays: all workers must read the same, however late they are.
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            self._service.set_config_key_value(f"{_PREFIX}/{name}", json.dumps(value))

    def published(self, name: str) -> Any:
        """Waits for a value to be published and returns it; None after `_REQUEST_MS`."""
        try:
            text = self._service.get_config_key_value(f"{_PREFIX}/{name}", _REQUEST_MS)
        except tf.errors.DeadlineExceededError:
            return None
        return json.loads(text)

    def wait_for(self, name: str) -> Any:
        """Waits without a limit for a value to be published, and returns it."""
        while (value := self.published(name)) is None:
            pass
        return value


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
