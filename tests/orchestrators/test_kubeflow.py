"""The path from a compiled Kubeflow v2 pipeline to a pushed model, walked as a cluster would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tfx import v1 as tfx

from generic_trainer import GenericTrainer
from tests import helpers
from tests.orchestrators import small_pipeline

pytest.importorskip("kfp", reason="needs the extra kfp")

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


def compile_job(
    pipeline: tfx.dsl.Pipeline, folder: Path, *, schema_2_1: bool, **parameter_values: str
) -> dict[str, Any]:
    """Compiles to a file, as a user does, and reads that."""
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            default_image="registry/image:1", use_pipeline_spec_2_1=schema_2_1
        ),
        output_dir=str(folder),
        output_filename="pipeline.json",
    )
    runner.run(pipeline, parameter_values=parameter_values)
    return json.loads((folder / "pipeline.json").read_text())


def build(root: Path, examples: str, serving: Path, **code: str) -> tfx.dsl.Pipeline:
    """Examples, Statistics, Embeddings → GenericTrainer → Pusher, with two runtime parameters."""

    def parameter(name: str) -> Any:
        return tfx.dsl.experimental.RuntimeParameter(name=name, ptype=str)

    helpers.write_statistics(root / "statistics", {"train": 32, "eval": 8})
    source = small_pipeline.imported_examples(examples)
    statistics = small_pipeline.imported_statistics(root / "statistics")
    embeddings = small_pipeline.imported_embeddings(root / "embeddings")
    trainer = GenericTrainer(
        examples=source.outputs["result"],
        statistics=statistics.outputs["result"],
        extra_inputs={"embeddings": embeddings.outputs["result"]},
        train_args=parameter("train-args"),
        custom_config=parameter("custom-config"),
        **code,
    )
    pusher = small_pipeline.pusher(trainer, serving)
    return small_pipeline.of_nodes(root, [source, statistics, embeddings, trainer, pusher])


def check_walk(root: Path, job: dict[str, Any]) -> None:
    """Runs what `build(root, ...)` was compiled to, and looks at all that it must produce."""
    # The cluster has the bucket and the image, not the machine of whoever compiled.
    shutil.rmtree(root / "code")
    cluster = Cluster(root / "small")
    outputs = cluster.run(job)

    log = cluster.logs["GenericTrainer"]
    assert "units: 16 late: a data file" in log
    assert "rows: 32 seen: 4" in log
    assert f"embeddings: ['{root}/embeddings']" in log
    (model,) = outputs["GenericTrainer"]["model"]
    assert model["metadata"]["train/loss"] == 0.5
    assert model["metadata"]["train/gradient"] == "nan"
    (pushed,) = (root / "serving").iterdir()
    serve = tf.saved_model.load(str(pushed)).signatures["serving_default"]
    prediction = serve(examples=tf.constant([helpers.example(3.0)]))["outputs"]
    assert prediction.numpy().tolist() == [[6.0]]


@pytest.mark.slow
def test_walks_with_an_import_path_and_the_newer_schema(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_code(tmp_path / "code")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    pipeline = build(tmp_path, examples, tmp_path / "serving", run_fn="trainer.run_fn")
    check_walk(tmp_path, compile_job(pipeline, tmp_path, schema_2_1=True, **VALUES))
