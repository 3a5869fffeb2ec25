"""Tasks of a training cluster, and the task of this process, from `TF_CONFIG`.

Only this module parses and writes `TF_CONFIG`.
"""

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.texts import parse_json_object, shown
from generic_trainer.errors import ConfigurationError

TF_CONFIG = "TF_CONFIG"
_CHIEFS = ("chief", "master")
_TRAINS = ("chief", "master", "worker")
_SERVERS = ("worker", "ps")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster, in TensorFlow's terms.

    Attributes:
        type: `"chief"`, `"master"` (its name before TF 2.0), `"worker"`, `"ps"` or `"evaluator"`.
        index: its number among the tasks of the same type.
        is_server: whether it takes orders from the chief, as workers and parameter servers of
            `ParameterServerStrategy` do, instead of calling `run_fn`.
    """

    type: str
    index: int
    is_server: bool = dataclasses.field(default=False, compare=False)

    @property
    def name(self) -> str:
        """The task in logs and messages: `"chief"`, `"worker 1"`."""
        return self.type if self.type == "chief" else f"{self.type} {self.index}"


def is_chief() -> bool:
    """Returns whether this process is the one that exports the model.

    Follows `tf.distribute.cluster_resolver.TFConfigClusterResolver`:

    1. Without `TF_CONFIG`, or with one that names no cluster, the process is alone and the chief.
    2. The task of type `chief` is the chief, and so is `master`, its name before TF 2.0.
    3. In a cluster with neither, worker 0 is.

    Raises:
        ConfigurationError: `TF_CONFIG` is not JSON, or it names a cluster and no task in it.
    """
    cluster = cluster_addresses()
    if not cluster:
        return True
    task = this_task()
    if task.type in _CHIEFS:
        return task.index == 0
    return task == Task("worker", 0) and not set(_CHIEFS) & cluster.keys()


def is_in_a_cluster() -> bool:
    """Returns whether there are other tasks."""
    return sum(map(len, cluster_addresses().values())) > 1


def is_one_of_several() -> bool:
    """Returns whether several processes train the same model, each with its share of the data."""
    cluster = cluster_addresses()
    return not cluster.get("ps") and sum(len(cluster.get(name, ())) for name in _TRAINS) > 1


def training_addresses() -> dict[Task, str]:
    """Returns "host:port" of each task that trains the same model, by rank.

    This process alone is `worker 0`, of no address.

    Raises:
        ConfigurationError: this process is not among them, or two of them have the same address.
    """
    if not is_one_of_several():
        return {Task("worker", 0): ""}
    cluster = cluster_addresses()
    task = this_task()
    addresses = {
        Task(name, index): address
        for name in _TRAINS
        for index, address in enumerate(cluster.get(name, ()))
    }
    if len({*addresses.values()}) < len(addresses):
        raise ConfigurationError(f"{TF_CONFIG}: two tasks have the same address in {cluster!r}.")
    _require(task, addresses)
    return addresses


@contextlib.contextmanager
def part_of_cluster(ranks: Sequence[int]) -> Iterator[None]:
    """Forms a separate cluster of some of the training tasks, which include this one.

    The first of them is its chief; one task alone is in no cluster. No task may be connected yet.
    """
    before = os.environ[TF_CONFIG]
    addresses = [*training_addresses().items()]
    part = [addresses[rank] for rank in ranks]
    own = [task for task, _ in part].index(this_task())
    if len(part) > 1:
        workers = {Task("worker", index): address for index, (_, address) in enumerate(part)}
        os.environ[TF_CONFIG] = make_tf_config(Task("worker", own), workers)
    else:
        del os.environ[TF_CONFIG]
    try:
        yield
    finally:
        os.environ[TF_CONFIG] = before


def has_parameter_servers() -> bool:
    """Returns whether the cluster has parameter servers, to which its chief sends work."""
    return bool(cluster_addresses().get("ps"))


def cluster_addresses() -> dict[str, list[str]]:
    """Returns task type → "host:port" of each task; empty when there is none.

    Raises:
        ConfigurationError: `TF_CONFIG` is not JSON, or its cluster is no such mapping.
    """
    cluster = tf_config().get("cluster") or {}
    if isinstance(cluster, dict) and all(map(_are_addresses, cluster.values())):
        return {name: tasks for name, tasks in cluster.items() if tasks}
    raise ConfigurationError(
        f'{TF_CONFIG}: expected "cluster" to be a JSON object of lists of addresses, such as '
        f'{{"worker": ["host:port"]}}, found {cluster!r}.'
    )


def _are_addresses(tasks: Any) -> bool:
    return isinstance(tasks, list) and all(isinstance(address, str) for address in tasks)


def this_task() -> Task:
    """Returns the task that this process is.

    Raises:
        ConfigurationError: `TF_CONFIG` is not JSON, names no task, or one that its cluster does not
            have. An evaluator is in none.
    """
    task = tf_config().get("task")
    cluster = cluster_addresses()
    try:
        name, index = str(task["type"]), int(task["index"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f'{TF_CONFIG} names a cluster, so it must also name this process as "task": '
            f'{{"type": ..., "index": ...}}, but got {task!r}.'
        ) from error
    task_of_process = Task(name, index, is_server=bool(cluster.get("ps")) and name in _SERVERS)
    if name != "evaluator":
        known = [Task(job, i) for job in cluster for i in range(len(cluster[job]))]
        _require(task_of_process, known)
    return task_of_process


def _require(task: Task, known: Collection[Task]) -> None:
    """Raises an error if this process is not one of some tasks."""
    if task not in known:
        raise ConfigurationError(
            f"{TF_CONFIG} says that this process is {task.name}, but the tasks of its cluster are "
            f"{', '.join(other.name for other in known)}. Give each process the same cluster, and "
            "as its task one of these, each once."
        )


def tf_config() -> dict[str, Any]:
    """Returns `TF_CONFIG`; empty when there is none.

    Raises:
        ConfigurationError: it is not a JSON object.
    """
    text = os.environ.get(TF_CONFIG) or "{}"
    try:
        return parse_json_object(text) or {}
    except ValueError as error:
        raise ConfigurationError(
            f"{TF_CONFIG} in the environment must be a JSON object, but got {shown(text)} "
            f"({error})."
        ) from error


def make_tf_config(task: Task, addresses: Mapping[Task, str]) -> str:
    """Returns the `TF_CONFIG` of one task.

    Args:
        task: the process.
        addresses: "host:port" of every task, in the order of their indices.
    """
    cluster: dict[str, list[str]] = {}
    for other, address in addresses.items():
        cluster.setdefault(other.type, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": task.type, "index": task.index}})


def answers(address: str) -> bool:
    """Returns whether a server listens at "host:port"."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def reserve_port() -> socket.socket:
    """Returns a socket that reserves a free port until it is closed.

    It is bound and does not listen. TensorFlow's server can bind to the same port because it sets
    `SO_REUSEPORT` too, given `TF_GRPC_REUSE_PORT`. Like that server, the socket binds to all
    addresses of the machine: a port that is in use on one of them is not free.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("", 0))
    return reserved
