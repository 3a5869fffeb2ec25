"""The component takes the place of TFX's own on Vertex AI, `custom_config` and all."""

import copy
import inspect
import json
from typing import Any

import pytest
from tfx import types
from tfx.proto import trainer_pb2
from tfx.types import standard_artifacts

from generic_trainer import vertex
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import Distribution
from generic_trainer.launchers._vertex import custom_job

POOL = {
    "machine_spec": {
        "machine_type": "n1-standard-8",
        "accelerator_type": 4,  # AcceleratorType.NVIDIA_TESLA_T4, without an import of 4 s
        "accelerator_count": 2,
    },
    "replica_count": 1,
    "container_spec": {"image_uri": "registry/trainer:7", "env": [{"name": "A", "value": "1"}]},
    "disk_spec": {"boot_disk_type": "pd-ssd"},
}
CONFIG: dict[str, Any] = {
    vertex.ENABLE_VERTEX_KEY: True,
    vertex.VERTEX_REGION_KEY: "europe-west4",
    vertex.VERTEX_CONTAINER_IMAGE_URI_KEY: "serving:1",
    "mine": 7,
    vertex.TRAINING_ARGS_KEY: {
        "project": "my-project",
        "display_name": "penguins",
        "labels": {"cost": "research"},
        "encryption_spec": {"kms_key_name": "key"},
        "job_spec": {
            "worker_pool_specs": [POOL],
            "service_account": "t@p.iam.gserviceaccount.com",
            "scheduling": {"timeout": {"seconds": 600}, "strategy": "SPOT"},
        },
    },
}


def changed(**arguments: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    config[vertex.TRAINING_ARGS_KEY] |= arguments
    return config


def made(config: dict[str, Any]) -> Any:
    from google.cloud.aiplatform_v1.types import CustomJob

    return CustomJob(custom_job(vertex.distribution_of(config), "name", ["folder", "digest"]))


def test_keys_are_those_of_tfx() -> None:
    from tfx.extensions.google_cloud_ai_platform import constants
    from tfx.extensions.google_cloud_ai_platform.trainer import executor

    for name in vertex.__all__:
        if name.endswith("_KEY"):
            theirs = getattr(constants, name, None) or getattr(executor, name)
            assert getattr(vertex, name) == theirs


def test_arguments_are_those_of_tfx_in_their_order() -> None:
    from tfx.extensions.google_cloud_ai_platform.trainer import component

    theirs = list(inspect.signature(component.Trainer.__init__).parameters)
    assert list(inspect.signature(vertex.Trainer.__init__).parameters)[: len(theirs)] == theirs


def test_custom_job_is_that_of_tfx_but_for_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud.aiplatform_v1.types import CustomJob
    from tfx.extensions.google_cloud_ai_platform.training_clients import VertexJobClient

    monkeypatch.setattr(VertexJobClient, "create_client", lambda self: None)
    arguments = copy.deepcopy(CONFIG[vertex.TRAINING_ARGS_KEY])
    arguments.pop("project")
    theirs = CustomJob(
        VertexJobClient("europe-west4").create_training_job({}, {}, {}, "x", arguments, None, {})
    )
    ours = made(CONFIG)
    for job in (theirs, ours):
        for pool in job.job_spec.worker_pool_specs:
            pool.container_spec.command, pool.container_spec.args = [], []
    assert {name: ours.labels[name] for name in ("cost",)} == {"cost": "research"}
    theirs.labels = ours.labels  # TFX adds some about itself
    theirs.job_spec.scheduling.disable_retries = True  # the launcher starts again
    assert ours == theirs


def test_pools_become_chief_workers_and_parameter_servers() -> None:
    pools = [POOL, {**POOL, "replica_count": 3}]
    wanted = vertex.distribution_of(changed(job_spec={"worker_pool_specs": pools}))
    assert (wanted.num_workers, wanted.chief, wanted.parameter_servers) == (4, True, 0)
    pools.append({**POOL, "replica_count": 2})
    config = changed(job_spec={"worker_pool_specs": pools})
    wanted = vertex.distribution_of(config)
    assert (wanted.num_workers, wanted.parameter_servers) == (3, 2)
    counts = [pool.replica_count for pool in made(config).job_spec.worker_pool_specs]
    assert counts == [1, 3, 2]


def test_specification_alone_and_the_old_keys_are_taken() -> None:
    config = {
        vertex.ENABLE_UCAIP_KEY: True,
        vertex.UCAIP_REGION_KEY: "us-central1",
        vertex.JOB_ID_KEY: "mine",
        vertex.TRAINING_ARGS_KEY: {"project": "p", "worker_pool_specs": [POOL]},
    }
    job = made(config)
    assert job.display_name == "mine"
    assert job.job_spec.worker_pool_specs[0].disk_spec.boot_disk_type == "pd-ssd"


def test_component_carries_the_distribution_and_the_config() -> None:
    trainer = vertex.Trainer(
        examples=types.Channel(type=standard_artifacts.Examples),
        module_file="trainer.py",
        train_args=trainer_pb2.TrainArgs(num_steps=1),
        custom_config=CONFIG,
    )
    properties = trainer.spec.exec_properties
    carried = Distribution.from_json(properties["distribution"])
    assert carried.vertex is not None
    assert (carried.launcher, carried.vertex.region) == ("vertex", "europe-west4")
    assert json.loads(properties["custom_config"])["mine"] == 7
    assert trainer.id == "Trainer"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "'ai_platform_enable_vertex' must be True"),
        ({**CONFIG, vertex.ENABLE_VERTEX_KEY: False}, "which Google has shut down"),
        ({**CONFIG, vertex.VERTEX_REGION_KEY: None}, "must be the region"),
        (changed(project=None), "as 'project'"),
        (changed(job_spec={"worker_pool_specs": []}), "TFX's own, its default, has none"),
        (changed(job_spec={"worker_pool_specs": [POOL] * 4}), "at most 3 worker pools"),
        (
            changed(job_spec={"worker_pool_specs": [{**POOL, "replica_count": 2}]}),
            "replica_count must be 1, found 2",
        ),
    ],
)
def test_config_that_cannot_work_is_refused(config: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        vertex.distribution_of(config)
