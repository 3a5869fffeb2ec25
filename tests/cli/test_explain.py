"""`generic-trainer explain`, and what a shell completes."""

from __future__ import annotations

from pathlib import Path

import pytest

from generic_trainer import cli
from tests.house import run_python


def test_a_check_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "session"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("session: A graph session scores")
    assert "Example: `tf.saved_model.save` on a Keras 3 model" in told
    assert 'severities={"session": "skip"}' in told
    assert "It runs after loads, devices" in told


def test_a_shell_completes_words(tmp_path: Path) -> None:
    for line, word in (
        ("generic-trainer explain serve", "serve_tag "),
        ("generic-trainer validate --eval", "--eval-config "),
    ):
        assert completed(line, tmp_path) == {word}


def completed(line: str, tmp_path: Path) -> set[str]:
    # What `register-python-argcomplete` has a shell do after a tab.
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    asked |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    run_python("-m", "generic_trainer.cli", **asked)
    return set(answer.read_text().split("\n"))
