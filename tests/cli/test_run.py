"""`generic-trainer run`, called as a user calls it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import generic_trainer
from generic_trainer import ServingContract, cli
from generic_trainer.errors import ConfigurationError, ModelValidationError
from tests import helpers
from tests.house import ROOT, run_python

TELLS_ITS_ARGUMENTS = helpers.run_fn("""
    import json
    told = {
        "train_steps": fn_args.train_steps,
        "custom_config": fn_args.custom_config,
        "hyperparameters": fn_args.hyperparameters,
        "num_examples": dict(fn_args.num_examples),
        "schema_path": fn_args.schema_path,
    }
    with open(os.path.join(fn_args.model_run_dir, "told.json"), "w") as file:
        json.dump(told, file)
""")

READS_EXAMPLES = helpers.run_fn("""
    print(fn_args.train_files)
""")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    helpers.write_examples(tmp_path / "data")
    helpers.write_schema(tmp_path / "schema")
    return tmp_path / "data"


def run(module_file: str, *words: object) -> int:
    return cli.main(["run", module_file, *map(str, words)])


def test_publishes_and_numbers_what_it_trains(data: Path, tmp_path: Path) -> None:
    module_file, output = helpers.write_module(tmp_path, TELLS_ITS_ARGUMENTS), tmp_path / "runs"
    hyperparameters = tmp_path / "best.json"
    hyperparameters.write_text('{"values": {"units": 8}}')
    for earlier in ("model/3", "model_run/2.failed"):  # of which the rest was deleted
        (output / earlier).mkdir(parents=True)
    words = ["--examples", data, "--output", output, "--train-steps", 7]
    words += ["--custom-config", '{"depth": 2}', "--hyperparameters", hyperparameters]
    words += ["--schema", tmp_path / "schema" / "schema.pbtxt"]

    assert run(module_file, *words) == run(module_file, *words) == 0

    for number in ("4", "5"):
        assert (output / "model" / number / "Format-Serving" / "saved_model.pb").is_file()
        assert (output / "model_run" / number / "report.html").is_file()
    assert json.loads((output / "model_run" / "4" / "told.json").read_text()) == {
        "train_steps": 7,
        "custom_config": {"depth": 2},
        "hyperparameters": {"values": {"units": 8}},
        "num_examples": {"train": 32, "eval": 8},
        "schema_path": str(tmp_path / "schema" / "schema.pbtxt"),
    }


def test_a_dry_run_keeps_nothing(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tells = TELLS_ITS_ARGUMENTS.replace(
        'os.path.join(fn_args.model_run_dir, "told.json")', 'fn_args.custom_config["file"]'
    )
    config = json.dumps({"file": str(tmp_path / "told.json")})
    words = ["--dry-run", "--json", "--custom-config", config, "--output", "runs"]
    assert run(helpers.write_module(tmp_path, tells), "--examples", data, *words) == 0

    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["train_steps"], told["num_examples"]) == (2, {"train": 10, "eval": 8})
    printed = capfd.readouterr()
    outcome = json.loads(printed.out.splitlines()[-1])
    assert outcome["exit_status"] == 0 and outcome["report"]["passed"] and "model" not in outcome
    assert "A dry run keeps no files." in printed.err and "Published" not in printed.err
    assert sorted(os.listdir(tmp_path)) == ["data", "schema", "told.json", "trainer.py"]


@pytest.mark.parametrize("given", ["--examples", "--train", "--train pattern"])
def test_brackets_in_a_path_stand_for_themselves(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "exp [v1]"
    helpers.write_examples(folder)
    told = tmp_path / "told.json"
    tells = TELLS_ITS_ARGUMENTS.replace(
        'os.path.join(fn_args.model_run_dir, "told.json")', f'"{told}"'
    )
    [train] = (folder / "Split-train").iterdir()
    [evaluation] = (folder / "Split-eval").iterdir()
    words = [given, folder] if given == "--examples" else ["--train", train, "--eval", evaluation]
    if given == "--train pattern":  # and the brackets are those of the working directory
        monkeypatch.chdir(folder)
        words = ["--train", "Split-train/*", "--eval", "Split-eval/*"]
    assert run(helpers.write_module(tmp_path, tells), *words, "--dry-run", "--output", "runs") == 0
    assert json.loads(told.read_text())["num_examples"] == {"train": 10, "eval": 8}


def test_a_csv_is_examples_with_a_schema(tmp_path: Path) -> None:
    table = tmp_path / "houses.csv"
    rows = f"1,2.5,,{10**19},\u00a01\n2,3,Köln,2,2\n3,4,x,3,3\n4,5, y,4,4\n"
    rows += "".join(f"{row},{row},z,{row},{row}\n" for row in range(20))
    table.write_text(f"rooms, area,place,id,wide\n{rows}", encoding="utf-8")
    tells = """
    from generic_trainer._core.texts import load_schema

    def run_fn(fn_args):
        files = tf.io.gfile.glob([*fn_args.train_files, *fn_args.eval_files])
        records = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
        print(sum(fn_args.num_examples.values()), sorted(fn_args.num_examples))
        print(load_schema(fn_args.schema_path), *map(tf.train.Example.FromString, records))
        raise ValueError
    """
    module_file, output = helpers.write_module(tmp_path, tells), tmp_path / "runs"
    assert run(module_file, "--examples", table, "--output", output) == 1
    told = " ".join((output / "model_run" / "1.failed" / "training.log").read_text().split())
    assert "24 ['eval', 'train']" in told
    assert 'name: "rooms" type: INT' in told and 'name: "area" type: FLOAT' in told
    assert 'feature { name: "place" type: BYTES }' in told  # no shape, as a cell is empty
    assert 'name: "wide" type: BYTES' in told  # as in TFX: the space is not in ASCII
    assert "float_list { value: 2.5 }" in told
    assert f'bytes_list {{ value: "{10**19}" }}' in told and 'bytes_list { value: " y" }' in told


def test_an_error_of_the_module(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module_file = helpers.write_module(tmp_path, "def run_fn(fn_args): raise KeyError('price')")

    assert run(module_file, "--examples", data, "--output", tmp_path / "runs", "--json") == 1
    printed = capsys.readouterr()
    assert "KeyError: 'price'" in printed.err
    outcome = json.loads(printed.out.splitlines()[-1])
    assert outcome["exit_status"] == 1 and "KeyError: 'price'" in outcome["error"]
    assert "model" not in outcome
    assert os.listdir(tmp_path / "runs" / "model") == [], "which a script might take for a model"
    assert os.listdir(tmp_path / "runs" / "model_run") == ["1.failed"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give either --examples, or --train and --eval"),
        (["--output", "", "--examples", "."], "give --output, or --dry-run"),
        (["--examples", ".", "--output", "trainer.py"], "is a file, expected a directory"),
        (["--train", "x"], "--train and --eval go together"),
        (["--examples", ".", "--train-steps", "0"], "--train-steps must be at least 1"),
        (["--examples", ".", "--custom-config", "[]"], "--custom-config must be a JSON object"),
        (["--examples", "houses.csv"], "houses.csv, row 3: expected 2 cells, found 1"),
        (["--examples", "gone.csv"], "--examples: gone.csv does not exist"),
        (["--examples", "empty.csv"], "and rows below it; found an empty file"),
        (["--train", "a.csv", "--eval", "b.csv.gz"], "or neither; found a.csv and b.csv.gz"),
        (["--train", "*s.csv", "--eval", "x.csv"], "*s.csv is a pattern of files, 1 in number"),
        (["--tracking", "mlfow", "--examples", "."], "did you mean 'mlflow'"),
        (["--examples", "nothing://x"], "File system scheme 'nothing' not implemented"),
        (["--examples", ".", "--custom-config", '{"a": 1, "a": 2}'], "more than one value"),
        (["--examples", ".", "--config", "gone.yaml"], "--config: gone.yaml does not exist"),
        (["--config", "empty.csv", "--custom-config", "{}"], "expected one of them"),
        (["--config", "houses.csv"], "--config: houses.csv must hold a mapping, found 'rooms"),
        (["--examples", ".", "--distribution", '{"launcher": "slurm"}'], "must be 'in_process'"),
    ],
)
def test_wrong_words_leave_nothing_behind(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "houses.csv").write_text("rooms,area\n1,2\n3\n")
    module_file = helpers.write_module(tmp_path, READS_EXAMPLES)

    assert run(module_file, "--output", tmp_path / "runs", *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# ---- from Python ---------------------------------------------------------------------------------


def test_a_program_gets_model_report_and_metrics(data: Path, tmp_path: Path) -> None:
    source = helpers.run_fn("""
        with tf.summary.create_file_writer(fn_args.model_run_dir).as_default():
            tf.summary.scalar("rate", fn_args.hyperparameters["values"]["rate"], 1)
            tf.summary.scalar("depth", fn_args.custom_config["depth"], 1)
    """)
    module_file = Path(helpers.write_module(tmp_path, source))
    (tmp_path / "config.yaml").write_text("depth: 3")
    arguments: dict[str, Any] = {"examples": data, "hyperparameters": {"rate": 0.5}}

    result = generic_trainer.run(
        module_file,
        output=tmp_path / "runs",
        custom_config=tmp_path / "config.yaml",
        schema=tmp_path / "schema" / "schema.pbtxt",
        **arguments,
    )
    assert result.model == str(tmp_path / "runs" / "model" / "1" / "Format-Serving")
    assert result.model_run == str(tmp_path / "runs" / "model_run" / "1")
    assert result.report is not None and result.report.passed
    assert result.metrics == {"rate": 0.5, "depth": 3.0}

    dry = generic_trainer.run(module_file, dry_run=True, custom_config={"depth": 4}, **arguments)
    assert (dry.model, dry.model_run, dry.metrics["depth"]) == (None, None, 4.0)
    with pytest.raises(ModelValidationError, match="'transform'") as caught:
        contract = ServingContract(signatures=("transform",))
        config = {"depth": 5}
        generic_trainer.run(
            module_file, dry_run=True, contract=contract, custom_config=config, **arguments
        )
    assert caught.value.report.failures

    report = generic_trainer.validate(Path(result.model), examples=data, label_keys=["y"])
    assert report.passed and report.facts["rows_scored"] == 8


@pytest.mark.parametrize("files", ["files", "files[0]", "tuple(files)"])
@pytest.mark.parametrize("epochs", ["None", "-1"])
def test_endless_data_have_steps_of_one_pass(
    files: str, epochs: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = helpers.run_fn(f"""
        from generic_trainer.data import TensorFlowDatasetOptions, load_schema
        files = fn_args.train_files
        options = TensorFlowDatasetOptions(batch_size=8, num_epochs={epochs})
        schema = load_schema(fn_args.schema_path)
        fn_args.data_accessor.tf_dataset_factory({files}, options, schema)
        print("steps of a pass:", fn_args.train_steps)
    """)
    schema = str(tmp_path / "schema" / "schema.pbtxt")
    arguments = {"examples": data, "schema": schema, "output": tmp_path / "runs"}
    generic_trainer.run(helpers.write_module(tmp_path, source), **arguments)
    assert "steps of a pass: 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": None}, "give output, or dry_run"),
        ({"output": "trainer.py"}, "output: trainer.py is a file, expected a directory"),
        ({}, "give either examples, or train and eval"),
        ({"train": "x"}, "train and eval go together"),
        ({"examples": ".", "train_steps": 0}, "train_steps must be at least 1, got 0"),
        ({"examples": "."}, "examples: . has no Split-train and no Split-eval"),
        ({"examples": "trainer.py"}, "trainer.py is a file whose name does not end in .csv"),
        ({"examples": "gone.csv", "schema": "no"}, "2 problems\n  1. schema: no does not exist"),
        ({"train": "a.csv", "eval": "b"}, "train and eval: expected both to be .csv files"),
        ({"custom_config": "gone.yaml"}, "custom_config: gone.yaml does not exist"),
        ({"tracking": "mlfow"}, "did you mean 'mlflow'"),
        ({"examples": SimpleNamespace(to_csv=print)}, "; write it first, with table.to_csv("),
        ({"train": [1], "eval": 2}, "train: expected a path, got [1] of type list"),
    ],
)
def test_wrong_arguments_are_named_as_in_python(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    helpers.write_module(tmp_path, READS_EXAMPLES)
    with pytest.raises(ConfigurationError) as caught:
        generic_trainer.run("trainer.py", **({"output": "runs"} | arguments))
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == ["trainer.py"]


def test_a_wrong_argument_is_reported_before_tensorflow_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, generic_trainer\n"
        "for call in (generic_trainer.run, generic_trainer.validate):\n"
        "    try: call('gone')\n"
        "    except generic_trainer.errors.ConfigurationError as error: print(error)\n"
        "assert not {'tensorflow', 'tfx'} & set(sys.modules)"
    )
    printed = run_python("-c", code, cwd=tmp_path).stdout
    assert "give output, or dry_run" in printed
    assert "model: gone is not a directory or a file" in printed


# ---- without examples ----------------------------------------------------------------------------

TRIAL = """
import generic_trainer.trials.keras as det

class Trial(det.TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        model = tf.keras.Sequential([tf.keras.Input([1], name="x"), tf.keras.layers.Dense(1)])
        model = self.context.wrap_model(model)
        model.compile("sgd", "mse")
        return model

    def build_training_data_loader(self):
        return self.context.read_examples("train", label_key="y")

    build_validation_data_loader = build_training_data_loader
"""
CALLS_THE_READER = helpers.run_fn("""
    from generic_trainer.data import TensorFlowDatasetOptions
    fn_args.data_accessor.tf_dataset_factory([], TensorFlowDatasetOptions(4), None)
""")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param(helpers.run_fn("pass"), None, id="own data"),
        pytest.param(CALLS_THE_READER, "give either --examples", id="reader"),
        pytest.param(TRIAL, "give either --examples", id="trial"),
    ],
)
def test_only_a_module_that_reads_examples_needs_some(
    source: str, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module_file = helpers.write_module(tmp_path, source)
    searcher = {"name": "single", "metric": "val_loss", "max_length": {"batches": 2}}
    config = {"hyperparameters": {"global_batch_size": 4}, "searcher": searcher}
    words = ["--output", tmp_path / "runs", "--custom-config", json.dumps(config)]
    assert run(module_file, *words) == (2 if message else 0)
    assert (message or "") in capsys.readouterr().err


def test_a_trial_needs_only_its_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(ROOT / "module_files")
    words = ["--config", "digits_keras_trial.yaml", "--output", tmp_path / "runs"]
    assert run("digits_keras_trial.py", *words, "--dry-run", "--json") == 0
    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert outcome["report"]["passed"]
    assert {"trials/1/training/loss", "trials/1/validation/val_loss"} <= outcome["metrics"].keys()
