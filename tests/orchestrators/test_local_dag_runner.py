"""Runs under LocalDagRunner, with a metadata store."""

import json
from pathlib import Path

from tfx.orchestration.local.local_dag_runner import LocalDagRunner

from tests import helpers
from tests.orchestrators import small_pipeline
from tests.orchestrators.small_pipeline import PLAIN, Store, run_local

# Writes what arrived in `fn_args` beside the model, and two metrics.
ECHO = """
import json

def run_fn(fn_args):
    echo = {"extra_inputs": fn_args.extra_inputs, "num_examples": dict(fn_args.num_examples)}
    with open(fn_args.model_run_dir + "/echo.json", "w") as file:
        json.dump(echo, file)
    with tf.summary.create_file_writer(fn_args.model_run_dir + "/train").as_default():
        tf.summary.scalar("loss", 0.25, step=7)
        tf.summary.scalar("gradient", float("inf"), step=7)
    export(fn_args.serving_model_dir)
"""


def test_cache_notices_the_user_code_and_nothing_else(examples: str, tmp_path: Path) -> None:
    source = "import helper\n" + PLAIN
    module_file = helpers.write_module(tmp_path / "code", source)
    helper = tmp_path / "code" / "helper.py"
    helper.write_text("LAYERS = 1\n")

    def states() -> list[str]:
        run_local(tmp_path, examples, module_file=module_file)
        return Store(tmp_path).trainer_runs()

    assert states() == ["COMPLETE"]
    assert states() == ["COMPLETE", "CACHED"]
    (tmp_path / "code" / "neighbour.py").write_text("unrelated = True\n")
    (tmp_path / "code" / "notes.txt").write_text("unrelated too\n")
    assert states() == ["COMPLETE", "CACHED", "CACHED"]
    helper.write_text("LAYERS = 2\n")
    assert states() == ["COMPLETE", "CACHED", "CACHED", "COMPLETE"]
    helper.write_text("LAYERS = 1\n")
    assert states() == ["COMPLETE", "CACHED", "CACHED", "COMPLETE", "CACHED"]
    assert len(Store(tmp_path).models()) == 2


def test_inputs_arrive_and_metrics_reach_the_store(examples: str, tmp_path: Path) -> None:
    (tmp_path / "embeddings").mkdir()
    module_file = helpers.write_module(tmp_path, ECHO)
    nodes = small_pipeline.with_all_inputs(tmp_path, examples, module_file=module_file)
    LocalDagRunner().run(small_pipeline.of_nodes(tmp_path, nodes))
    (path,) = tmp_path.glob("**/echo.json")
    echo = json.loads(path.read_text())
    assert echo["num_examples"] == {"train": 32, "eval": 8}
    assert echo["extra_inputs"] == {"embeddings": [str(tmp_path / "embeddings")]}
    (model,) = Store(tmp_path).models()
    assert model.custom_properties["train/loss"].double_value == 0.25
    assert model.custom_properties["train/gradient"].string_value == "inf"
    assert Path(model.uri, "Format-Serving", "saved_model.pb").exists()
