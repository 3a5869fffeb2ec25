"""`generic-trainer validate`, called as a user calls it."""

import argparse
import glob
import json
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format

from generic_trainer import cli
from generic_trainer.cli import _validate
from generic_trainer.cli._validate import _show_reports
from generic_trainer.validation import ValidationReport
from tests.house import run_python
from tests.validation import models

COLUMN = tf.TensorSpec([None, 1], name="x")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weight = tf.Variable(2.0)
    module = models.serving(lambda x: {"y": x * weight}, COLUMN, weight=weight)
    return models.save(module, tmp_path_factory.mktemp("cli") / "model")


def test_a_good_model(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(model), "--html", str(tmp_path / "report.html")]) == 0
    printed = capsys.readouterr().out
    assert "PASSED" in printed
    assert "serve_tag" in printed
    assert str(model) in (tmp_path / "report.html").read_text()


def test_two_models_are_compared(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = models.save(models.serving(lambda x: {"z": x / 0.0}, COLUMN), tmp_path / "other")

    assert cli.main(["validate", str(model), str(other), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [report["model_dir"] for report in told["reports"]] == [str(model), str(other)]
    base = {result["name"]: result for result in told["reports"][1]["results"]}["base_model"]
    assert base["status"] == "warn" and "were (y: float32" in base["message"]

    reports = [ValidationReport.from_json(json.dumps(report)) for report in told["reports"]]
    _show_reports(reports, argparse.Namespace(json=False))
    printed = capsys.readouterr().out
    assert f"\n{model}\n" in printed and f"\n{other}\n" in printed
    assert cli.main(["validate", str(model), str(other), "--html", str(tmp_path / "a.html")]) == 2


def test_a_failing_example_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedding = tf.Variable([1.0, 2.0, 3.0])

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = {"id": tf.io.FixedLenFeature([], tf.int64), "n": tf.io.VarLenFeature(tf.int64)}
        return {"y": tf.gather(embedding, tf.io.parse_example(examples, spec)["id"])}

    module = models.serving(serve, models.SERIALIZED, embedding=embedding)
    folder = models.save(module, tmp_path / "model")
    schema = tmp_path / "schema.pbtxt"
    schema.write_text(
        'feature { name: "id" type: INT presence { min_fraction: 1 } '
        "int_domain { min: 0 max: 2 } } "
        'feature { name: "n" type: INT value_count { min: 1 } }'
    )
    page = tmp_path / "report.html"
    arguments = ["validate", str(folder), "--schema", str(schema), "--html", str(page)]
    assert cli.main(arguments) == 0  # what is beyond the schema is a warning
    kept = tmp_path / "example-1.pbtxt"
    assert kept.name in capsys.readouterr().out
    assert cli.main(arguments[:4]) == 0
    assert capsys.readouterr().out.endswith("--html FILE also writes example-1.pbtxt\n")
    example = text_format.Parse(kept.read_text(), tf.train.Example())
    assert example.features.feature["id"].int64_list.value
    assert cli.main(["validate", str(folder), "--example", str(kept)]) == 1
    assert "FAIL" in capsys.readouterr().out
    kept.write_text("features {")
    assert cli.main(["validate", str(folder), "--example", str(kept)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["validate", str(folder), "--example", str(kept), "--examples", "eval/*"]) != 0
    assert "expected one of them" in capsys.readouterr().err


def test_an_artifact_is_not_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Format-Serving").mkdir()
    assert cli.main(["validate", str(tmp_path)]) == 2
    assert f"did you mean {tmp_path}/Format-Serving?" in capsys.readouterr().err


def test_help_starts_without_tensorflow() -> None:
    code = (
        "import sys; from generic_trainer import cli\n"
        "try: cli.main(['--help'])\n"
        "finally: assert not {'tensorflow', 'tfx', 'rich', 'jinja2'} & set(sys.modules)"
    )
    assert "validate" in run_python("-c", code).stdout


def test_a_directory_of_examples_stands_for_its_files(tmp_path: Path) -> None:
    for split in ("Split-train", "Split-eval"):
        (tmp_path / split).mkdir()
    assert _validate._files_of(str(tmp_path)) == str(tmp_path / "Split-eval" / "*")
    assert _validate._files_of(str(tmp_path / "Split-train")) == str(tmp_path / "Split-train" / "*")
    assert _validate._files_of("eval/*.gz") == "eval/*.gz"
    file = tmp_path / "exp [v1]" / "Split-eval" / "part [0].gz"
    file.parent.mkdir(parents=True)
    file.touch()
    for given in (tmp_path / "exp [v1]", file.parent, file):
        assert glob.glob(_validate._files_of(str(given)) or "") == [str(file)]
