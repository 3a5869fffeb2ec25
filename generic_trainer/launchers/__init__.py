"""Launchers of a training run: this process, others on this machine, Ray, Kubernetes, Vertex AI.

::

    launch(Job(request=request, fn_args_factory="package.module:function",
               distribution=Distribution(launcher="local")))

A `Distribution` describes the workers, `launch` runs a job on them, and `Launcher` lists the rules
for each launcher.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.launchers._distribution import Distribution
    from generic_trainer.launchers._failures import Failure, exit_code
    from generic_trainer.launchers._job import ExamplesFormat, Job, TrainingRequest
    from generic_trainer.launchers._launch import Launcher, launch
    from generic_trainer.launchers._options import (
        RayOptions,
        TFJobOptions,
        TrainJobOptions,
        VertexOptions,
    )

__all__ = [
    "Distribution",
    "ExamplesFormat",
    "Failure",
    "Job",
    "Launcher",
    "RayOptions",
    "TFJobOptions",
    "TrainJobOptions",
    "TrainingRequest",
    "VertexOptions",
    "exit_code",
    "launch",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_distribution": "Distribution",
        "_failures": "Failure exit_code",
        # The first is for readers of the files kept of a failed run.
        "_job": "REJECTED_DIR ExamplesFormat Job TrainingRequest",
        "_launch": "Launcher launch",
        "_options": "RayOptions TFJobOptions TrainJobOptions VertexOptions",
    },
)
