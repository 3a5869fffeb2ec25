"""Bringing up what a run trains on: this process, others on this machine, Ray, Kubernetes.

::

    launch(Job(request=request, fn_args_factory="package.module:function",
               distribution=Distribution(launcher="local")))

`Distribution` says what is wanted, `Launcher` is what each engine implements, `launch` chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.launchers._distribution import Distribution
    from generic_trainer.launchers._failures import Failure
    from generic_trainer.launchers._job import Job, Launcher
    from generic_trainer.launchers._launch import launch
    from generic_trainer.launchers._options import RayOptions, TFJobOptions
    from generic_trainer.launchers._request import ExamplesFormat, TrainingRequest

__all__ = [
    "Distribution",
    "ExamplesFormat",
    "Failure",
    "Job",
    "Launcher",
    "RayOptions",
    "TFJobOptions",
    "TrainingRequest",
    "launch",
]

_HERE = "generic_trainer.launchers"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Distribution": f"{_HERE}._distribution",
        "ExamplesFormat": f"{_HERE}._request",
        "Failure": f"{_HERE}._failures",
        "Job": f"{_HERE}._job",
        "Launcher": f"{_HERE}._job",
        "RayOptions": f"{_HERE}._options",
        "TFJobOptions": f"{_HERE}._options",
        "TrainingRequest": f"{_HERE}._request",
        "launch": f"{_HERE}._launch",
    },
)
