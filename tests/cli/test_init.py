"""`generic-trainer init`, and the project that it writes."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from generic_trainer import cli
from tests.house import ROOT, run_python


def test_a_project_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(tmp_path / "new" / "houses"), "--json"]) == 0
    for name in json.loads(capsys.readouterr().out):
        if name.endswith(".py"):
            ast.parse(Path(name).read_text(encoding="utf-8"))
    (tmp_path / "new" / "houses" / "pipeline.py").write_text("mine")

    assert cli.main(["init", str(tmp_path / "new" / "houses")]) == 2

    assert "pipeline.py" in capsys.readouterr().err
    assert (tmp_path / "new" / "houses" / "pipeline.py").read_text() == "mine"


@pytest.mark.slow
def test_the_tests_of_the_project_pass(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    run_python("-m", "pytest", "-q", cwd=tmp_path)


@pytest.mark.campaign("_run", "cli", "components", "executors", "validation")
def test_the_commands_of_quick_start_run_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    sections = page[page.index("## A project of your own") : page.index("## A notebook")]
    printed = re.findall(r"(?m)^\$ (.*?)(?:\s+#.*)?$", sections)
    assert len(printed) == 7
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    folder, said = tmp_path, []
    for command in printed:
        if command.startswith("cd "):
            folder = folder / command.removeprefix("cd ")
            old = folder / "runs" / "GenericTrainer" / "model_run" / "9" / "report.html"
            old.parent.mkdir(parents=True)
            old.touch()
            continue
        for name, path in (("DIR", "CsvExampleGen/examples"), ("schema.pbtxt", "SchemaGen/schema")):
            if name in command:
                [found] = folder.glob(f"**/{path}/*")
                where = found / ("schema.pbtxt" if name == "schema.pbtxt" else "")
                command = command.replace(name, str(where))
        command = command.removeprefix("pip install pytest && ")
        done = subprocess.run(
            command, shell=True, cwd=folder, env=env, timeout=300, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command.startswith("generic-trainer run"):  # TensorFlow's libraries at their import
            assert not re.search("Unable to register|InitializeLog", done.stderr)
        said.append(done.stdout)
    assert list(folder.glob("serving/*/saved_model.pb"))
    assert said[1].strip().endswith("report.html") and str(old) not in said[1]  # of pipeline.py
    assert "ublished" not in said[3], "by a dry run"
    assert len(list(folder.glob("runs/model/*/Format-Serving/saved_model.pb"))) == 2
