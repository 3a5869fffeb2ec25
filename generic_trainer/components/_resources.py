"""What a pipeline step needs on Kubeflow and Vertex, told from the distribution."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from generic_trainer.launchers import Distribution

__all__ = ["compiled_for_kubeflow", "step_resources"]

_KUBEFLOW_RUNNER = "tfx.orchestration.kubeflow.v2"
_BYTES_PER_MIB, _BYTES_PER_GB = 1 << 20, 10**9


def step_resources(distribution: Distribution) -> Any:
    """Returns the `ResourceSpec` of the step; None where nothing is asked for.

    1. Workers that run in the step, in the process of the executor or beside it, are what it needs
       room for: all of them together.
    2. Workers on Ray or in a TFJob are elsewhere: their resources are none of the step's.
    3. Requests equal limits; the accelerator's type is `distribution.gpu_type`.
    """
    if distribution.launcher not in ("in_process", "local"):
        return None
    wanted = {
        "cpu": (distribution.cpus_per_worker or 0) * distribution.num_processes,
        "memory": (distribution.memory_mb_per_worker or 0)
        * distribution.num_processes
        * (_BYTES_PER_MIB / _BYTES_PER_GB),
    }
    gpus = int((distribution.gpus_per_worker or 0) * distribution.num_workers)
    if not any(wanted.values()) and not gpus:
        return None
    from kfp.pipeline_spec import pipeline_spec_pb2

    spec = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec()
    for name, amount in wanted.items():
        if amount:
            setattr(spec, f"{name}_limit", amount)
            setattr(spec, f"{name}_request", amount)
    if gpus:
        spec.accelerator.type = distribution.gpu_type
        spec.accelerator.count = gpus
    return spec


def compiled_for_kubeflow() -> bool:
    """Whether it is KubeflowV2DagRunner that is compiling the pipeline right now.

    It alone knows these resources, TFX's other runners refuse a component that has them, and a
    component is not told which one compiles it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_KUBEFLOW_RUNNER):
            return True
        frame = frame.f_back
    return False
