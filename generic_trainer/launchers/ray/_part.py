"""What each of Ray Train's workers does."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

from ray import train
from ray.train import collective

from generic_trainer._core.files import is_remote
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._endings import Ending
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._member_process import outcome_in_child
from generic_trainer.launchers._members import Member, members
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.ray._last_output import end_of_output
from generic_trainer.launchers.ray._payload import Payload
from generic_trainer.launchers.ray._worker_failed import WorkerFailed

__all__ = ["take_part_on_ray"]

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
        outcome = _outcome(job, member)
    if outcome.failure is not Failure.LOST:  # after which there may be another attempt
        _print_on_both(end_of_output(member.name))
    if outcome.failure is not None:
        raise WorkerFailed(Ending(outcome, member.name))


def _outcome(job: Job, member: Member) -> Outcome:
    try:
        _check_storage(job)
        if member.is_server:
            _serve(job)
    except Exception as error:
        return Outcome.of(error)
    outcome = Outcome() if member.is_server else outcome_in_child(job, member)
    if job.distribution.parameter_servers and outcome.failure is None:
        collective.barrier()  # servers serve until the chief comes here
    return outcome


def _serve(job: Job) -> None:
    """Starts a server of `ParameterServerStrategy`, which goes on until this process ends."""
    os.environ.update({**job.distribution.env, "TF_GRPC_REUSE_PORT": "1"})
    import tensorflow as tf

    from generic_trainer._core.cluster import cluster_addresses, this_task

    task = this_task()
    tf.distribute.Server(
        tf.train.ClusterSpec(cluster_addresses()),
        job_name=task.type,
        task_index=task.index,
        protocol="grpc",
    )


def _check_storage(job: Job) -> None:
    directory = job.request.model_run_dir
    if not is_remote(directory) and not os.path.isdir(directory):
        raise ConfigurationError(
            f"The pipeline root must be on storage that all nodes share, but {directory} is not "
            "there on this node of the Ray cluster. Use a bucket (gs://..., s3://...) or a file "
            "system that is mounted everywhere under the same path."
        )


def _print_on_both(line: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"{line}\n")
        stream.flush()
