"""Launchers of a training run: this process, others on this machine, Ray, Kubernetes, Vertex AI.

::

    launch(Job(request=request, fn_args_factory="package.module:function",
               distribution=Distribution(launcher="local")))

A `Distribution` describes the workers, `launch` runs a job on them, and `Launcher` lists the rules
for each launcher.
"""

from generic_trainer.launchers._distribution import (
    Distribution,
    RayOptions,
    TFJobOptions,
    TrainJobOptions,
    VertexOptions,
    tasks,
)
from generic_trainer.launchers._failures import Failure, exit_code

# Names beside those of `__all__` are for the floors above.
from generic_trainer.launchers._job import REJECTED_DIR as REJECTED_DIR
from generic_trainer.launchers._job import ExamplesFormat, Job, JobFolder, TrainingRequest
from generic_trainer.launchers._launch import Launcher, launch
from generic_trainer.launchers._remote.engine import run_by_service
from generic_trainer.launchers._remote.service import PROGRAM, JobStatus, RemoteService, TaskStatus

__all__ = [
    "PROGRAM",
    "Distribution",
    "ExamplesFormat",
    "Failure",
    "Job",
    "JobFolder",
    "JobStatus",
    "Launcher",
    "RayOptions",
    "RemoteService",
    "TFJobOptions",
    "TaskStatus",
    "TrainJobOptions",
    "TrainingRequest",
    "VertexOptions",
    "exit_code",
    "launch",
    "run_by_service",
    "tasks",
]
