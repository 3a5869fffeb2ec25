"""What each of Ray Train's workers does."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from ray import train
from ray.train import collective

from generic_trainer.errors import ConfigurationError, WorkerLostError
from generic_trainer.files import is_remote
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._members import Member, members
from generic_trainer.launchers._outcome import Outcome, WorkerTraceback
from generic_trainer.launchers.ray._ending import Ending, WorkerFailed
from generic_trainer.launchers.ray._last_output import end_of_output
from generic_trainer.launchers.ray._payload import Payload

__all__ = ["take_part_on_ray"]

# How long a worker that misses another one waits before it says so: that one, or Ray, has more to
# say about it.
_LAST_WORDS_S = 5.0
# Ray's log monitor takes the name of a process from such a line.
_NAME_LINE = ":actor_name:{}"


def take_part_on_ray(config: dict[str, Any]) -> None:
    """Runs one member of the cluster, whose number is the rank of Ray Train's worker.

    Args:
        config: `payload`, the `Payload`.

    Raises:
        WorkerFailed: it did not end well.
    """
    payload: Payload = config["payload"]
    with tempfile.TemporaryDirectory(prefix="generic-trainer-") as directory:
        job = payload.unpack(directory)
        member = members(job.distribution)[train.get_context().get_world_rank()]
        _print_on_both(_NAME_LINE.format(member.name))
        outcome = _outcome_of_part(job, member)
    if outcome.lost_its_peers:
        time.sleep(_LAST_WORDS_S)
    if outcome.failure is not Failure.LOST:  # after which there may be another attempt
        _print_on_both(end_of_output(member.name))
    if outcome.failure is not None:
        raise WorkerFailed(Ending(outcome, member.name))


def _outcome_of_part(job: Job, member: Member) -> Outcome:
    try:
        _take_part(job, member)
        return Outcome()
    except BaseException as error:
        outcome = Outcome.of(error)
        for cause in _causes(error):
            if isinstance(cause, WorkerTraceback):  # of the child; what is above it is ours
                outcome = dataclasses.replace(outcome, trace=cause.args[0])
        if job.distribution.is_cluster and _misses_others(error):
            outcome = dataclasses.replace(outcome, lost_its_peers=True)
        return outcome


def _take_part(job: Job, member: Member) -> None:
    _check_storage(job)
    if member.is_server:
        _serve(job)
    else:
        # In a child, as on one machine: only from outside can a crash be told from a kill.
        from generic_trainer.launchers.local import run_local

        run_local(dataclasses.replace(job, distribution=_alone(job.distribution, member)))
    if job.distribution.parameter_servers:
        collective.barrier()  # servers serve until the chief comes here


def _alone(distribution: Distribution, member: Member) -> Distribution:
    """Returns the part of the distribution that is about one process.

    Only a chief that trains itself is watched for doing nothing: the others may well wait for it.
    """
    watched = member.is_chief and not distribution.parameter_servers
    return Distribution(
        launcher="local",
        gpus_per_worker=0 if distribution.gpus_per_worker == 0 else None,  # else as Ray has set it
        memory_mb_per_worker=distribution.memory_mb_per_worker,
        max_failures=0,
        heartbeat_s=distribution.heartbeat_s if watched else None,
        require_gpu=distribution.require_gpu,
        env=distribution.env,
    )


def _serve(job: Job) -> None:
    """Starts a server of `ParameterServerStrategy`, which goes on until this process ends."""
    os.environ.update({**job.distribution.env, "TF_GRPC_REUSE_PORT": "1"})
    import tensorflow as tf

    from generic_trainer.training._cluster import task, tf_config

    config = tf_config()
    name, index = task(config)
    tf.distribute.Server(
        tf.train.ClusterSpec(config["cluster"]), job_name=name, task_index=index, protocol="grpc"
    )


def _check_storage(job: Job) -> None:
    directory = job.request.model_run_dir
    if not is_remote(directory) and not os.path.isdir(directory):
        raise ConfigurationError(
            f"The pipeline root must be on storage that all nodes share, but {directory} is not "
            "there on this node of the Ray cluster. Use a bucket (gs://..., s3://...) or a file "
            "system that is mounted everywhere under the same path."
        )


def _misses_others(error: BaseException) -> bool:
    """Whether TensorFlow raised because it missed other workers, or aborted the process."""
    raised = isinstance(error, WorkerLostError) and error.__cause__ is not None
    return raised or signal.SIGABRT.name in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _print_on_both(line: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"{line}\n")
        stream.flush()
