"""The path from a compiled Kubeflow v2 pipeline to a pushed model, walked as a cluster would."""

import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from tfx.orchestration.data_types import RuntimeParameter

from pipelines.penguin_data import write_penguin_csv
from tests import helpers
from tests.house import ROOT
from tests.orchestrators import small_pipeline

pytest.importorskip("kfp", reason="needs the extra kfp")

from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner as kubeflow

from tests.orchestrators.kubeflow_cluster import Cluster

SOURCE = """
import helper

def run_fn(fn_args):
    from package import late
    with tf.summary.create_file_writer(fn_args.model_run_dir + "/train").as_default():
        tf.summary.scalar("loss", helper.LOSS, step=fn_args.train_steps)
        tf.summary.scalar("gradient", float("nan"), step=fn_args.train_steps)
    print("units:", fn_args.custom_config["units"], "late:", late.read())
    print("rows:", fn_args.num_examples["train"], "seen:", next(iter(dataset(fn_args))))
    print("embeddings:", fn_args.extra_inputs["embeddings"])
    export(fn_args.serving_model_dir)

def dataset(fn_args):
    from tfx_bsl.public.tfxio import RecordBatchesOptions

    options = RecordBatchesOptions(batch_size=4, num_epochs=1)
    for batch in fn_args.data_accessor.record_batch_factory(fn_args.train_files, options, None):
        yield batch.num_rows
"""

VALUES = {"train-args": '{"num_steps": 3}', "custom-config": '{"units": 16}'}


def write_code(folder: Path) -> str:
    (folder / "package").mkdir(parents=True)
    (folder / "helper.py").write_text("LOSS = 0.5\n")
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "words.txt").write_text("a data file")
    (folder / "package" / "late.py").write_text(
        "from pathlib import Path\n"
        "def read(): return (Path(__file__).parent / 'words.txt').read_text()\n"
    )
    return helpers.write_module(folder, SOURCE)


@pytest.mark.slow
def test_walks_with_an_import_path_and_the_newer_schema(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_code(tmp_path / "code")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    nodes = small_pipeline.with_all_inputs(
        tmp_path,
        examples,
        train_args=RuntimeParameter(name="train-args", ptype=str),
        custom_config=RuntimeParameter(name="custom-config", ptype=str),
        run_fn="trainer.run_fn",
    )
    pusher = small_pipeline.pusher(nodes[-1], tmp_path / "serving")
    pipeline = small_pipeline.of_nodes(tmp_path, [*nodes, pusher])
    # To a file, as a user compiles it.
    config = kubeflow.KubeflowV2DagRunnerConfig(
        default_image="registry/image:1", use_pipeline_spec_2_1=True
    )
    runner = kubeflow.KubeflowV2DagRunner(config, str(tmp_path), "pipeline.json")
    runner.run(pipeline, parameter_values=VALUES)
    job = json.loads((tmp_path / "pipeline.json").read_text())
    # The cluster has the bucket and the image, not the machine of whoever compiled.
    shutil.rmtree(tmp_path / "code")
    cluster = Cluster(tmp_path / "small")
    outputs = cluster.run(job)

    log = cluster.logs["GenericTrainer"]
    assert "units: 16 late: a data file" in log
    assert "rows: 32 seen: 4" in log
    assert f"embeddings: ['{tmp_path}/embeddings']" in log
    (model,) = outputs["GenericTrainer"]["model"]
    assert model["metadata"]["train/loss"] == 0.5
    assert model["metadata"]["train/gradient"] == "nan"
    (pushed,) = (tmp_path / "serving").iterdir()
    assert helpers.scores_of(pushed, 3.0) == [6.0]


@pytest.mark.campaign("components", "executors")  # twice all steps, a process each: minutes
def test_second_job_starts_from_the_model_that_the_first_has_pushed(tmp_path: Path) -> None:
    from pipelines.penguin import create_pipeline

    write_penguin_csv(tmp_path / "data")
    shutil.copytree(ROOT / "module_files", tmp_path / "code")
    pipeline = create_pipeline(
        pipeline_root=str(tmp_path / "bucket"),
        data_root=str(tmp_path / "data"),
        module_file=str(tmp_path / "code" / "penguin_warm_start.py"),
        serving_dir=str(tmp_path / "serving"),
        train_steps=100,
        warm_start=True,
    )
    config = kubeflow.KubeflowV2DagRunnerConfig(default_image="image")
    job = kubeflow.KubeflowV2DagRunner(config).run(pipeline, write_out=False)
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
