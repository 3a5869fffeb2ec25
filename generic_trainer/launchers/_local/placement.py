"""Share of each worker: its processors, GPUs, environment variables and streams."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence

from generic_trainer._core.cluster import TF_CONFIG, Task, make_tf_config
from generic_trainer._core.keras import same_keras
from generic_trainer._core.machine import available_cpus
from generic_trainer._core.output import flush
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution

_STANDARD = (1, 2)
_COPY_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


def common_environment(distribution: Distribution) -> dict[str, str]:
    """Returns the environment that all workers share."""
    return {
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        **os.environ,
        **same_keras(),
        "TF_GRPC_REUSE_PORT": "1",
        **distribution.env,
    }


def own_environment(
    distribution: Distribution, task: Task, addresses: Mapping[Task, str], gpus: Sequence[str]
) -> dict[str, str]:
    """Returns all environment variables of one worker.

    Args:
        distribution: the settings.
        task: the worker.
        addresses: see `make_tf_config`.
        gpus: the GPUs of this machine.

    Raises:
        ConfigurationError: GPUs are missing.
    """
    own = common_environment(distribution)
    if distribution.is_cluster:
        own[TF_CONFIG] = make_tf_config(task, addresses)
    own_gpus = _own_gpus(distribution, task, addresses, gpus)
    if own_gpus is not None:
        own["CUDA_VISIBLE_DEVICES"] = own_gpus
    return own


def own_processors(distribution: Distribution, number: int) -> list[int]:
    """Returns the processors of a worker; an empty list if it may use all.

    Args:
        distribution: the settings.
        number: the worker's place among all.
    """
    if distribution.cpus_per_worker is None or not hasattr(os, "sched_setaffinity"):
        return []
    each = max(1, round(distribution.cpus_per_worker))
    available = available_cpus()
    if each * distribution.num_processes > len(available):
        if number == 0:
            _logger.warning(
                "cpus_per_worker=%g is ignored: %d processes share the %d processors there are",
                distribution.cpus_per_worker,
                distribution.num_processes,
                len(available),
            )
        return []
    return available[number * each : (number + 1) * each]


@contextlib.contextmanager
def own_streams(names: list[str]) -> Iterator[dict[str, tuple[int, int]]]:
    """Yields name → the descriptors for standard output and error of the worker of that name.

    With one worker they are those of this process. With several, each line starts with the
    worker's name. All output is shown on exit.
    """
    flush()
    if len(names) == 1:
        yield {names[0]: _STANDARD}
        return
    with contextlib.ExitStack() as stack:

        def copied(name: str, target: int) -> int:
            read_end, write_end = os.pipe()
            thread = threading.Thread(target=_copy, args=(read_end, target, name), daemon=True)
            thread.start()
            stack.callback(thread.join, _COPY_TIMEOUT_S)
            stack.callback(os.close, write_end)
            return write_end

        stdout, stderr = _STANDARD
        yield {name: (copied(name, stdout), copied(name, stderr)) for name in names}


def _own_gpus(
    distribution: Distribution, task: Task, addresses: Mapping[Task, str], gpus: Sequence[str]
) -> str | None:
    """Returns the names of a worker's GPUs, "-1" for none; None for all that there are."""
    # Parameter servers, and a chief that only sends orders, use none.
    trainers = [
        one for one in addresses if one.type == "worker" or not distribution.parameter_servers
    ]
    each = distribution.gpus_per_worker
    if each is None:
        # NCCL refuses workers that share one; if there are too few, they have to.
        each = len(gpus) // len(trainers) if len(trainers) > 1 else 0
        if not each or "CUDA_VISIBLE_DEVICES" in distribution.env:
            return None
    if not each or task not in trainers:
        return "-1"
    if each * len(trainers) > len(gpus):
        raise ConfigurationError(
            f"gpus_per_worker={each}: {len(trainers)} workers need {each * len(trainers)} GPUs, "
            f"but this machine has {len(gpus)}. Use fewer workers, or launcher='ray' with a "
            "cluster that has more."
        )
    start = trainers.index(task) * int(each)
    return ",".join(gpus[start : start + int(each)])


def _copy(read_end: int, target: int, name: str) -> None:
    prefix = f"[{name}] ".encode()
    with open(read_end, "rb") as lines:
        for line in lines:
            text = prefix + line if line.endswith(b"\n") else prefix + line + b"\n"
            while text:
                text = text[os.write(target, text) :]
