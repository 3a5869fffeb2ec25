"""Launches a job with the launcher that its distribution names; those of this machine."""

import dataclasses
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from generic_trainer._core.cluster import cluster_addresses, is_in_a_cluster, this_task
from generic_trainer._core.output import kept_output
from generic_trainer._core.progress import note
from generic_trainer._core.texts import shown
from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._failures import classify, explain
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._registry import find_launcher
from generic_trainer.launchers._supervisor import supervise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launcher:
    """A way to run `run_fn` on all workers of a job, found by its name; see `_registry`.

    All launchers follow these rules, which `tests/launchers/test_contract.py` checks:

    1. The chief exports into the staging directory of the request, on storage that the executor can
       read; the other workers export into scratch directories.
    2. The output of the workers is copied live to standard output and error of this process. With
       several workers, each line starts with the name of its worker. Of pods that is the first
       worker; the logs of Vertex AI are in its console, whose address is logged.
    3. A failure is raised as the error of its class (see `Failure`), with the traceback of the
       worker. Only lost workers are replaced, at most `distribution.max_failures` times.
    4. When the launcher returns or raises, all of its processes have ended.

    Attributes:
        run: the function that runs a job by these rules, or its import path if importing it takes
            time. A `ConfigurationError` of it means that the engine cannot be used.
        options: class of its options; None if it has none. It is called with the fields of
            `Distribution(launcher_options=...)`, and raises a `ValueError` or `TypeError` for wrong
            ones.
        refused: field of `Distribution` that it refuses, unless that has its default → reason.
        problems: returns what else of a distribution it cannot keep, one sentence each.
        runs_here: whether the workers run on this machine, with the resources of the step.
        takes_ranges: whether `num_workers` may be the fewest and the most.
        takes_fractions: whether `gpus_per_worker` may be a fraction.
        set_tf_config: sets `TF_CONFIG` in a container, where the service that made it does not.
    """

    run: Callable[[Job], None] | str
    options: Any = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problems: Callable[[Distribution], Iterable[str]] = lambda wanted: ()
    runs_here: bool = False
    takes_ranges: bool = False
    takes_fractions: bool = False
    set_tf_config: Callable[[Distribution], None] = lambda wanted: None


def launch(job: Job) -> None:
    """Runs a job with the launcher of its distribution, and keeps the output of the workers.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    _refuse_a_cluster_in_a_cluster(job.distribution)
    with kept_output(job.request.log_path):
        run = find_launcher(job.distribution.launcher).run
        (pkgutil.resolve_name(run) if isinstance(run, str) else run)(job)


def _refuse_a_cluster_in_a_cluster(distribution: Distribution) -> None:
    """Raises an error if this process is one of several, because each would start all workers.

    A single child process on this machine is allowed: it takes over the task of this process.
    """
    starts_others = distribution.is_cluster or not distribution.runs_here
    if starts_others and is_in_a_cluster():
        raise ConfigurationError(
            f"launcher={distribution.launcher!r} would start {distribution.num_processes} "
            f"processes, but this one is already part of a cluster: in TF_CONFIG it is "
            f"{this_task().name} of {shown(cluster_addresses())}. Use launcher='in_process' "
            "there, or unset TF_CONFIG."
        )


def _train_here(job: Job) -> None:
    # Imported late, because a process that sends jobs to other machines does not need it.
    from generic_trainer.launchers._task import train

    note(phase="training")
    try:
        train(job)
    except TrainingError as error:
        kind = classify(error).error
        if isinstance(error, kind):
            raise
        raise kind(explain(error)) from error.__cause__


def _train_in_children(job: Job) -> None:
    from generic_trainer.launchers._local.engine import LocalEngine

    supervise(job, LocalEngine)


IN_PROCESS = Launcher(
    run=_train_here,
    refused=dict.fromkeys(
        (
            *("num_workers", "parameter_servers", "chief", "max_failures", "preemption_grace_s"),
            *("worker_grace_s", "timeout_s", "heartbeat_s", "env"),
        ),
        "needs a launcher that starts workers, such as launcher='local'",
    ),
    runs_here=True,
    takes_fractions=True,
)
LOCAL = Launcher(run=_train_in_children, runs_here=True)
