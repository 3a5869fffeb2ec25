"""`generic_trainer.kfp.train`: compiled by KFP, and run by KFP's own executor as in a container."""

import base64
import io
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from generic_trainer import Distribution, ServingContract, cli
from generic_trainer._core.texts import tuner_config
from generic_trainer.kfp._step import _examples, _options

kfp = pytest.importorskip("kfp")
from kfp import compiler, dsl  # noqa: E402
from kfp.dsl.executor import Executor  # noqa: E402

from generic_trainer.errors import DataError, ModuleFileError  # noqa: E402
from generic_trainer.kfp import train  # noqa: E402
from generic_trainer.kfp._component import train_step  # noqa: E402

LABEL = ServingContract(label_keys=("price",))
DICTIONARIES = "custom_config", "hyperparameters"
OUTPUTS = {
    "model": "system.Model",
    "metrics": "system.Metrics",
    "report": "system.HTML",
    "run": "system.Artifact",
}


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that `generic-trainer init` writes; its module file imports a helper."""
    folder = tmp_path_factory.mktemp("project") / "houses"
    assert cli.main(["init", str(folder)]) == 0
    trainer = folder / "trainer.py"
    trainer.write_text(
        trainer.read_text().replace(
            "import tensorflow as tf", "import tensorflow as tf\nimport helper"
        )
    )
    (folder / "helper.py").write_text("")
    return folder


def compiled(tmp_path: Path, **arguments: Any) -> dict[str, Any]:
    @dsl.pipeline(name="houses")
    def pipeline(steps: int = 20) -> None:
        table = dsl.importer(artifact_uri="gs://bucket/houses.csv", artifact_class=dsl.Dataset)
        train(examples=table.output, train_steps=steps, **arguments)

    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    return next(yaml.safe_load_all(path.read_text()))


def execute(tmp_path: Path, houses: Path, **parameters: Any) -> dict[str, Any]:
    """Runs the task as the container's entry point does; returns what the executor wrote."""
    task = compiled(tmp_path, module_file=str(houses / "trainer.py"))["root"]["dag"]["tasks"]
    code = {
        name: task["train-step"]["inputs"]["parameters"][name]["runtimeValue"]["constant"]
        for name in ("module", "user_code")
    }

    def artifacts(name: str, kind: str, uri: Path) -> dict[str, Any]:
        return {"artifacts": [{"name": name, "type": {"schemaTitle": kind}, "uri": str(uri)}]}

    output_file = tmp_path / "outputs" / "executor_output.json"
    outputs = {
        name: artifacts(name, kind, tmp_path / "outputs" / name) for name, kind in OUTPUTS.items()
    }
    data = houses / "data" / "houses.csv"
    executor_input = {
        "inputs": {
            "artifacts": {"examples": artifacts("examples", "system.Dataset", data)},
            "parameterValues": {**code, "run_root": "", "train_steps": 20, "eval_steps": 2}
            | parameters,
        },
        "outputs": {"artifacts": outputs, "outputFile": str(output_file)},
    }
    Executor(executor_input, train_step).execute()
    return json.loads(output_file.read_text())


def test_the_pipeline_carries_the_code_and_names_only_what_is_given(
    tmp_path: Path, houses: Path
) -> None:
    spec = compiled(
        tmp_path,
        module_file=str(houses / "trainer.py"),
        contract=LABEL,
        distribution=Distribution(launcher="local", num_workers=2),
        base_image="registry/trainer:1",
    )
    inputs = spec["root"]["dag"]["tasks"]["train-step"]["inputs"]
    assert set(inputs["artifacts"]) == {"examples"}
    assert set(inputs["parameters"]) == {
        *("module", "user_code", "run_root", "train_steps", "contract", "distribution")
    }
    packed = base64.b64decode(inputs["parameters"]["user_code"]["runtimeValue"]["constant"])
    assert set(zipfile.ZipFile(io.BytesIO(packed)).namelist()) == {"trainer.py", "helper.py"}
    component = spec["components"]["comp-train-step"]
    assert set(component["inputDefinitions"]["artifacts"]) == {"examples"}
    kinds = component["outputDefinitions"]["artifacts"]
    assert {name: kinds[name]["artifactType"]["schemaTitle"] for name in kinds} == OUTPUTS
    executor = spec["deploymentSpec"]["executors"]["exec-train-step"]
    assert executor["container"]["image"] == "registry/trainer:1"


def test_a_module_file_without_run_fn_is_refused_while_compiling(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ModuleFileError, match="does not define 'run_fn'"):
        compiled(tmp_path, module_file=str(tmp_path / "empty.py"))


def test_a_failed_check_fails_the_task_and_the_next_try_outputs_model_metrics_and_report(
    tmp_path: Path, houses: Path
) -> None:
    outputs, root = tmp_path / "outputs", tmp_path / "root"
    usual = {"hyperparameters": {"learning_rate": 0.03}, "run_root": str(root)}
    wrong = ServingContract(label_keys=("price",), signatures=("serving_default", "transform"))
    with pytest.raises(SystemExit) as ended:
        execute(tmp_path, houses, contract=wrong.to_json(), **usual)
    assert ended.value.code == 126
    assert "required_signatures" in (outputs / "report").read_text()
    (kept,) = root.glob("model_run/*.failed/rejected_export")
    found = execute(tmp_path, houses, contract=LABEL.to_json(), **usual)
    assert not kept.exists()  # published, without training again
    artifacts = {name: each["artifacts"][0] for name, each in found["artifacts"].items()}
    metadata = artifacts["model"]["metadata"]
    assert metadata["framework"] == "TensorFlow"
    assert metadata["checks_pass"] > 30
    assert len(metadata["manifest_sha256"]) == 64
    assert 0 < metadata["goodput"] < 1
    assert cli.main(["validate", str(outputs / "model")]) == 0
    assert {"loss", "val_loss", "mae", "val_mae"} <= artifacts["metrics"]["metadata"].keys()
    assert "<html" in (outputs / "report").read_text()
    assert (outputs / "run" / "training.log").is_file()


def test_whole_numbers_of_dictionaries_stay_whole(tmp_path: Path, houses: Path) -> None:
    """KFP's own dictionaries have floats alone."""
    file = str(houses / "trainer.py")
    config = {"seed": 2**60 + 1, "rate": 1.0}
    spec = compiled(tmp_path, module_file=file, custom_config=config, hyperparameters={"units": 3})
    inputs = spec["root"]["dag"]["tasks"]["train-step"]["inputs"]["parameters"]
    given = {name: inputs[name]["runtimeValue"]["constant"] for name in DICTIONARIES}
    examples = SimpleNamespace(path=str(houses / "data" / "houses.csv"))
    options = _options(str(tmp_path), examples, schema=None, contract=None, **given)
    assert options["custom_config"] == '{"seed": 1152921504606846977, "rate": 1.0}'
    values = json.loads(Path(options["hyperparameters"]).read_text())["values"]
    assert repr(values) == "{'units': 3}"

    @dsl.pipeline(name="parameters")
    def pipeline(config: dict) -> None:
        table = dsl.importer(artifact_uri="gs://bucket/houses.csv", artifact_class=dsl.Dataset)
        train(examples=table.output, module_file=file, **dict.fromkeys(DICTIONARIES, config))

    compiler.Compiler().compile(pipeline, str(tmp_path / "parameters.yaml"))
    spec = next(yaml.safe_load_all((tmp_path / "parameters.yaml").read_text()))
    declared = spec["components"]["comp-train-step"]["inputDefinitions"]["parameters"]
    assert {declared[name]["parameterType"] for name in DICTIONARIES} == {"STRUCT"}


@pytest.mark.parametrize(
    ("files", "options"),
    [
        (["a.csv"], {"examples": "a.csv"}),
        (["train.csv", "eval.csv"], {"train": "train.csv", "eval": "eval.csv"}),
        (["Split-train/a.gz", "Split-eval/a.gz"], {"examples": ""}),
    ],
)
def test_directories_of_examples(files: list[str], options: dict[str, str], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    expected = {option: str(tmp_path / name) for option, name in options.items()}
    assert {key: path.rstrip("/") for key, path in _examples(str(tmp_path), "").items()} == expected


@pytest.mark.parametrize("files", [[], ["a.csv", "b.csv"], ["a.txt"]])
def test_other_directories_are_refused(files: list[str], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=r"expected a CSV file.*found"):
        _examples(str(tmp_path), "")


def test_plain_values_become_hyperparameters_that_keras_tuner_reads() -> None:
    keras_tuner = pytest.importorskip("keras_tuner")
    values = {"rate": 0.1, "units": 3, "activation": "relu", "bias": True, "values": 2}
    config = tuner_config(values)
    assert keras_tuner.HyperParameters.from_config(config).values == values
    assert keras_tuner.HyperParameters.from_config(config).get("units") == 3
    assert tuner_config(config) == config
