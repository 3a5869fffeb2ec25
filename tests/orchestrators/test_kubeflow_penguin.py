"""The whole penguin pipeline, walked from its compiled form, twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from tfx import v1 as tfx

from pipelines.penguin import create_pipeline
from pipelines.penguin_data import write_penguin_csv

pytest.importorskip("kfp", reason="needs the extra kfp")

from tests.orchestrators.kubeflow_cluster import Cluster

MODULE_FILES = Path(__file__).parents[2] / "module_files"


@pytest.mark.campaign("components", "executors")  # twice all steps, a process each: minutes
def test_second_job_starts_from_the_model_that_the_first_has_pushed(tmp_path: Path) -> None:
    write_penguin_csv(tmp_path / "data")
    shutil.copytree(MODULE_FILES, tmp_path / "code")
    pipeline = create_pipeline(
        pipeline_root=str(tmp_path / "bucket"),
        data_root=str(tmp_path / "data"),
        module_file=str(tmp_path / "code" / "penguin_warm_start.py"),
        serving_dir=str(tmp_path / "serving"),
        train_steps=100,
        warm_start=True,
    )
    config = tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(default_image="image")
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(config)
    job = runner.run(pipeline, write_out=False)
    # The cluster has the bucket and the image, not the machine of whoever compiled.
    shutil.rmtree(tmp_path / "code")
    cluster = Cluster(tmp_path / "bucket")

    first = cluster.run(job)
    assert "Starting from scratch." in cluster.logs["GenericTrainer"]
    (blessing,) = first["Evaluator"]["blessing"]
    assert blessing["metadata"]["blessed"] == 1

    second = cluster.run(job)
    (base,) = first["GenericTrainer"]["model"]
    assert f"Starting from {base['uri']}/Format-Serving." in cluster.logs["GenericTrainer"]
    (blessing,) = second["Evaluator"]["blessing"]
    assert blessing["metadata"]["baseline_model_id"] == base["name"]

    pushed = sorted((tmp_path / "serving").iterdir())
    assert len(pushed) == 2
    assert "serving_default" in tf.saved_model.load(str(pushed[-1])).signatures
