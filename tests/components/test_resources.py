"""What Kubeflow is asked for, and nobody else."""

import json
from pathlib import Path
from typing import Any

import pytest
from tfx.dsl.compiler.compiler import Compiler
from tfx.dsl.components.common.importer import Importer
from tfx.orchestration.pipeline import Pipeline
from tfx.proto.orchestration import pipeline_pb2
from tfx.types import standard_artifacts

from generic_trainer import Distribution, GenericTrainer
from generic_trainer.components._compile import step_resources
from generic_trainer.launchers import RayOptions
from tests import helpers

pytest.importorskip("kfp", reason="resources are Kubeflow's: GenericTrainer's extra `kfp`")


def pipeline_of(root: Path, distribution: Distribution | None) -> Pipeline:
    examples = Importer(
        source_uri=str(root / "examples"), artifact_type=standard_artifacts.Examples
    ).with_id("Examples")
    component = GenericTrainer(
        examples=examples.outputs["result"],
        module_file=helpers.write_module(root, "def run_fn(fn_args): pass"),
        distribution=distribution,
    )
    return Pipeline("small", str(root / "root"), components=[examples, component])


def compiled(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the compiled specification of the pipeline."""
    from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner as kubeflow

    config = kubeflow.KubeflowV2DagRunnerConfig(default_image="registry.example/trainer:1")
    spec: dict[str, Any] = kubeflow.KubeflowV2DagRunner(config).run(pipeline, write_out=False)
    return spec["pipelineSpec"]


def resources(pipeline: Pipeline) -> dict[str, Any]:
    """Returns those of the trainer's container in the compiled pipeline."""
    executors = compiled(pipeline)["deploymentSpec"]["executors"]
    found: dict[str, Any] = executors["GenericTrainer_executor"]["container"]["resources"]
    return found


def test_the_step_is_as_large_as_its_one_worker(tmp_path: Path) -> None:
    distribution = Distribution(cpus_per_worker=4, memory_mb_per_worker=8192, gpus_per_worker=2)
    assert resources(pipeline_of(tmp_path, distribution)) == {
        "cpuLimit": 4.0,
        "cpuRequest": 4.0,
        "memoryLimit": pytest.approx(8.589934592),
        "memoryRequest": pytest.approx(8.589934592),
        "accelerator": {"type": "nvidia.com/gpu", "count": "2"},
    }


def test_the_distribution_travels_to_the_executor(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, Distribution(launcher="local", num_workers=2))
    task = compiled(pipeline)["root"]["dag"]["tasks"]["GenericTrainer"]
    assert "num_workers" in json.dumps(task["inputs"]["parameters"]["distribution"])


def test_all_workers_of_this_machine_fit_into_the_step() -> None:
    spec = step_resources(
        Distribution(launcher="local", num_workers=3, cpus_per_worker=2, gpus_per_worker=1)
    )
    assert (spec.cpu_limit, spec.accelerator.count) == (6, 3)


def test_vertex_has_names_of_its_own_for_gpus() -> None:
    spec = step_resources(Distribution(gpus_per_worker=1, gpu_type="NVIDIA_TESLA_T4"))
    assert spec.accelerator.type == "NVIDIA_TESLA_T4"


@pytest.mark.parametrize(
    "distribution",
    [
        Distribution(),
        Distribution(launcher="local", num_workers=4),
        Distribution(launcher="ray", cpus_per_worker=4, ray=RayOptions(address="auto")),
    ],
)
def test_no_resources_where_the_step_needs_none(distribution: Distribution) -> None:
    assert step_resources(distribution) is None


def test_other_runners_compile_the_same_component(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, Distribution(cpus_per_worker=4))
    (component,) = (one for one in pipeline.components if isinstance(one, GenericTrainer))
    assert resources(pipeline)["cpuLimit"] == 4.0
    component._resolve_pip_dependencies(str(tmp_path / "root"))  # as LocalDagRunner does
    deployment = pipeline_pb2.IntermediateDeploymentConfig()
    Compiler().compile(pipeline).deployment_config.Unpack(deployment)
    assert not deployment.node_level_platform_configs
    assert resources(pipeline)["cpuLimit"] == 4.0
    # What the user gives stays.
    component.with_platform_config(step_resources(Distribution(cpus_per_worker=7)))
    assert resources(pipeline)["cpuLimit"] == 7.0
