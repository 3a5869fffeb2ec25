"""Launches a job with the launcher that its distribution names."""

from typing import Protocol

from generic_trainer._core.cluster import cluster_addresses, is_in_a_cluster, this_task
from generic_trainer._core.output import kept_output
from generic_trainer._core.progress import note
from generic_trainer._core.texts import shown
from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._failures import classify, explain
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._supervisor import supervise


class Launcher(Protocol):
    """Runs `run_fn` on all workers of a job and returns when the chief has exported.

    All launchers follow these rules, which `tests/launchers/test_contract.py` checks:

    1. The chief exports into the staging directory of the request, on storage that the executor can
       read; the other workers export into scratch directories.
    2. The output of the workers is copied live to standard output and error of this process. With
       several workers, each line starts with the name of its worker. Of pods that is the first
       worker; the logs of Vertex AI are in its console, whose address is logged.
    3. A failure is raised as the error of its class (see `Failure`), with the traceback of the
       worker. Only lost workers are replaced, at most `distribution.max_failures` times.
    4. When the launcher returns or raises, all of its processes have ended.
    """

    def __call__(self, job: Job) -> None:
        """Runs the job.

        Raises:
            ModuleFileError: the user's module cannot be loaded.
            DataError: `run_fn` encountered an unreadable file or record.
            TrainingError: `run_fn` raised.
            WorkerHangError: a worker hangs, or `timeout_s` was exceeded.
            WorkerLostError: workers were lost more often than allowed, or this process got SIGTERM.
            WorkerMemoryError: a worker ran out of memory.
            ConfigurationError: the engine is unreachable, or does not support these settings.
        """


def launch(job: Job) -> None:
    """Runs a job with the launcher of its distribution, and keeps the output of the workers.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    name = job.distribution.launcher
    _refuse_a_cluster_in_a_cluster(job.distribution)
    # Only the launcher in use is imported.
    with kept_output(job.request.log_path):
        if name == "in_process":
            _train_here(job)
        elif name == "local":
            from generic_trainer.launchers._local.engine import LocalEngine

            supervise(job, LocalEngine)
        elif name == "ray":  # from a separate process, which is connected to Ray
            from generic_trainer.launchers._ray.driver import launch_on_ray

            launch_on_ray(job)
        else:
            from generic_trainer.launchers._remote.engine import remote_engine

            supervise(job, remote_engine)


def _refuse_a_cluster_in_a_cluster(distribution: Distribution) -> None:
    """Raises an error if this process is one of several, because each would start all workers.

    A single child process on this machine is allowed: it takes over the task of this process.
    """
    starts_others = distribution.is_cluster or distribution.launcher not in ("in_process", "local")
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
