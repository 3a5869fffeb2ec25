"""Runs under LocalDagRunner, with a metadata store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tfx import v1 as tfx
from tfx.dsl.compiler.compiler import Compiler
from tfx.orchestration.portable.runtime_parameter_utils import substitute_runtime_parameter

from generic_trainer import GenericTrainer, ServingContract
from generic_trainer.errors import ModelValidationError, TrainingError
from tests import helpers
from tests.orchestrators import small_pipeline
from tests.orchestrators.small_pipeline import PLAIN, Store, run_local

# Writes what arrived in `fn_args` beside the model, and two metrics.
ECHO = """
import json

def run_fn(fn_args):
    names = ("train_steps", "eval_steps", "custom_config", "extra_inputs")
    echo = {name: getattr(fn_args, name) for name in names}
    echo["num_examples"] = dict(fn_args.num_examples)
    with open(fn_args.model_run_dir + "/echo.json", "w") as file:
        json.dump(echo, file)
    with tf.summary.create_file_writer(fn_args.model_run_dir + "/train").as_default():
        tf.summary.scalar("loss", 0.25, step=7)
        tf.summary.scalar("gradient", float("inf"), step=7)
    export(fn_args.serving_model_dir)
"""


def echo_of(root: Path) -> dict[str, Any]:
    (path,) = root.glob("**/echo.json")
    return json.loads(path.read_text())


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
    helpers.write_statistics(tmp_path / "statistics", {"train": 32, "eval": 8})
    (tmp_path / "embeddings").mkdir()
    source = small_pipeline.imported_examples(examples)
    statistics = small_pipeline.imported_statistics(tmp_path / "statistics")
    embeddings = small_pipeline.imported_embeddings(tmp_path / "embeddings")
    trainer = GenericTrainer(
        examples=source.outputs["result"],
        statistics=statistics.outputs["result"],
        extra_inputs={"embeddings": embeddings.outputs["result"]},
        module_file=helpers.write_module(tmp_path, ECHO),
    )
    pipeline = small_pipeline.of_nodes(tmp_path, [source, statistics, embeddings, trainer])
    tfx.orchestration.LocalDagRunner().run(pipeline)
    echo = echo_of(tmp_path)
    assert echo["num_examples"] == {"train": 32, "eval": 8}
    assert echo["extra_inputs"] == {"embeddings": [str(tmp_path / "embeddings")]}
    (model,) = Store(tmp_path).models()
    assert model.custom_properties["train/loss"].double_value == 0.25
    assert model.custom_properties["train/gradient"].string_value == "inf"
    assert Path(model.uri, "Format-Serving", "saved_model.pb").exists()


def test_runtime_parameters_are_given_when_the_pipeline_runs(examples: str, tmp_path: Path) -> None:
    def parameter(name: str, default: str | None = None) -> Any:
        return tfx.dsl.experimental.RuntimeParameter(name=name, ptype=str, default=default)

    pipeline = small_pipeline.build(
        tmp_path,
        examples,
        module_file=parameter("the-module", default=helpers.write_module(tmp_path, ECHO)),
        train_args=parameter("the-train-args", default='{"num_steps": 3}'),
        eval_args=parameter("the-eval-args", default='{"num_steps": 4}'),
        custom_config=parameter("the-config"),
    )
    compiled = Compiler().compile(pipeline)
    values = {"the-train-args": '{"num_steps": 5}', "the-config": '{"units": 16}'}
    substitute_runtime_parameter(compiled, values)
    tfx.orchestration.LocalDagRunner().run_with_ir(compiled)
    echo = echo_of(tmp_path)
    assert (echo["train_steps"], echo["eval_steps"]) == (5, 4)
    assert echo["custom_config"] == {"units": 16}


def test_failing_run_fn_leaves_no_model_and_keeps_its_log(examples: str, tmp_path: Path) -> None:
    source = """
    def run_fn(fn_args):
        print("about to fail")
        export(fn_args.serving_model_dir)
        raise ValueError("loss is not finite")
    """
    module_file = helpers.write_module(tmp_path, source)
    with pytest.raises(TrainingError, match="loss is not finite"):
        run_local(tmp_path, examples, module_file=module_file)
    store = Store(tmp_path)
    assert store.trainer_runs() == ["FAILED"]
    assert store.models() == []
    (log,) = tmp_path.glob("small/GenericTrainer/model_run/*.failed/training.log")
    assert "about to fail" in log.read_text()


@pytest.mark.slow
def test_a_run_with_a_corrected_contract_publishes_what_was_trained(
    examples: str, tmp_path: Path
) -> None:
    source = """
    def run_fn(fn_args):
        print("trained")
        export(fn_args.serving_model_dir)
    """
    module_file = helpers.write_module(tmp_path, source)

    def run(contract: ServingContract) -> None:
        source = small_pipeline.imported_examples(examples)
        trainer = GenericTrainer(
            examples=source.outputs["result"], module_file=module_file, contract=contract
        )
        pusher = small_pipeline.pusher(trainer, tmp_path / "serving")
        nodes = [source, trainer, pusher]
        tfx.orchestration.LocalDagRunner().run(small_pipeline.of_nodes(tmp_path, nodes))

    with pytest.raises(ModelValidationError, match="'predict'"):
        run(ServingContract(signatures=("predict",)))
    (failed,) = tmp_path.glob("small/GenericTrainer/model_run/*.failed")
    run(ServingContract())
    store = Store(tmp_path)
    assert store.trainer_runs() == ["FAILED", "COMPLETE"]
    (model,) = store.models()
    assert model.custom_properties["trained_in"].string_value == str(failed)
    (log,) = tmp_path.glob("small/GenericTrainer/model_run/*/training.log")
    assert log.read_text().count("trained\n") == 1
    assert len(list(tmp_path.glob("serving/*/saved_model.pb"))) == 1
