"""`generic-trainer explain`, and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from generic_trainer import cli


def test_a_check_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "session"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("session: A graph session scores")
    assert "Example: `tf.saved_model.save` on a Keras 3 model" in told
    assert 'severities={"session": "skip"}' in told
    assert "It runs after loads, devices" in told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("generic-trainer expl", {"explain "}),
        ("generic-trainer explain serve", {"serve_tag "}),
        ("generic-trainer validate --eval", {"--eval-config "}),
    ],
)
def test_a_shell_completes_words(line: str, words: set[str], tmp_path: Path) -> None:
    # What `register-python-argcomplete` has a shell do after a tab.
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_IFS": "\n",
    }
    subprocess.run(
        [sys.executable, "-m", "generic_trainer.cli"],
        env=os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer)},
        check=True,
    )
    assert set(answer.read_text().split("\n")) == words
