"""The task on the cluster that has Ray Train run a job."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import ray
from ray import train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._endings import Ending
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._job_file import job_from_json
from generic_trainer.launchers._members import members
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.ray._backend import ClusterConfig
from generic_trainer.launchers.ray._part import take_part_on_ray
from generic_trainer.launchers.ray._payload import Payload
from generic_trainer.launchers.ray._policy import RetryLostWorkers, ending_of
from generic_trainer.launchers.ray._resources import no_room, resources_per_worker
from generic_trainer.launchers.ray._worker_failed import WorkerFailed

__all__ = ["train_on_cluster"]


def train_on_cluster(payload: Payload, start_timeout_s: float) -> Ending:
    """Returns how a job ended that Ray Train has run.

    Args:
        payload: the job.
        start_timeout_s: how long, in seconds, the workers may take to be placed.
    """
    # Ray Train is told these by the environment alone.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(start_timeout_s)
    os.environ["RAY_TRAIN_METRICS_ENABLED"] = "0"
    job = job_from_json(payload.job)
    with tempfile.TemporaryDirectory(prefix="generic-trainer-") as storage:
        try:
            _trainer(job, payload, storage).fit()
        except train.WorkerGroupError as error:
            return ending_of(error.worker_failures, members(job.distribution))
        except train.ControllerError as error:
            return _of_controller(error.controller_failure, job.distribution, start_timeout_s)
    return Ending(Outcome(), worker="chief")


class _TrainerOfOwnRay(DataParallelTrainer):
    """Ray Train's, without an actor that makes no sense where Ray ends with the run.

    It outlives a trainer that is killed, to give back what that reserved, and asks Ray's dashboard
    about it: where there is none, it warns once a second.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [one for one in callbacks if type(one).__name__ != "PlacementGroupCleanerCallback"]


def _trainer(job: Job, payload: Payload, storage: str) -> Any:
    asked = job.distribution
    resources = resources_per_worker(asked)
    is_own = asked.ray is None or asked.ray.address is None
    return (_TrainerOfOwnRay if is_own else DataParallelTrainer)(
        take_part_on_ray,
        train_loop_config={"payload": payload},
        backend_config=ClusterConfig(asked.to_json()),
        scaling_config=train.ScalingConfig(
            num_workers=asked.num_processes,
            use_gpu=resources.get("GPU", 0) > 0,
            resources_per_worker=resources,
        ),
        run_config=train.RunConfig(
            name=f"generic-trainer-{job.request.run_key}",
            storage_path=storage,
            failure_config=train.FailureConfig(
                max_failures=asked.max_failures, controller_failure_limit=0
            ),
            callbacks=[RetryLostWorkers(members(asked))],
        ),
    )


def _of_controller(failure: Exception, asked: Distribution, start_timeout_s: float) -> Ending:
    if isinstance(failure, WorkerFailed):
        return failure.ending
    name, trace = type(failure).__name__, str(failure)
    if name in ("WorkerGroupStartupTimeoutError", "InsufficientClusterResourcesError"):
        message = no_room(asked, ray.cluster_resources(), start_timeout_s)
        return Ending(Outcome(Failure.USER_CODE, "ConfigurationError", message, trace))
    if name == "WorkerGroupStartupFailedError":
        message = "A worker was lost while it started."
        return Ending(Outcome(Failure.LOST, "WorkerLostError", message, trace))
    return Ending(Outcome.of(failure))
