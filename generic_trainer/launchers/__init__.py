"""Launchers of a training run: this process, others on this machine, Ray, Kubernetes, Vertex AI.

::

    launch(Job(request=request, fn_args_factory="package.module:function",
               distribution=Distribution(launcher="local")))

`Distribution` says what is wanted, `launch` runs a job as it says, and `Launcher` has the rules
that hold wherever that is.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.launchers._distribution import Distribution
    from generic_trainer.launchers._failures import Failure, exit_code
    from generic_trainer.launchers._job import ExamplesFormat, Job, TrainingRequest
    from generic_trainer.launchers._options import (
        RayOptions,
        TFJobOptions,
        TrainJobOptions,
        VertexOptions,
    )
    from generic_trainer.launchers._supervisor import Launcher, launch

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
        # For a rehearsal.
        "_dry_run": "dry_job",
        # The first is for those who look into what is kept of a failed run.
        "_job": "REJECTED_DIR ExamplesFormat Job TrainingRequest",
        "_options": "RayOptions TFJobOptions TrainJobOptions VertexOptions",
        "_supervisor": "Launcher launch",
    },
)
