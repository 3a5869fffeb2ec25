"""`generic-trainer init`, and the project that it writes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from generic_trainer import cli

ROOT = Path(__file__).parent.parent.parent


def test_a_project_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(tmp_path / "new" / "houses"), "--json"]) == 0
    for name in json.loads(capsys.readouterr().out):
        if name.endswith(".py"):
            ast.parse(Path(name).read_text(encoding="utf-8"))
    (tmp_path / "new" / "houses" / "pipeline.py").write_text("mine")

    assert cli.main(["init", str(tmp_path / "new" / "houses")]) == 2

    assert "pipeline.py" in capsys.readouterr().err
    assert (tmp_path / "new" / "houses" / "pipeline.py").read_text() == "mine"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["init", str(tmp_path / "file" / "houses")]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-m", "pytest", "-q"], ["pipeline.py"]])
def test_the_project_works(words: list[str], tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if words == ["pipeline.py"]:
        assert list(tmp_path.glob("serving/*/saved_model.pb"))
        assert done.stdout.strip().endswith("report.html")
