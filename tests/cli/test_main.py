"""Tests of `generic_trainer.cli.main`, for all commands alike, of `explain`, and of completion."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from generic_trainer import cli
from tests.house import run_python

CLI = [sys.executable, "-m", "generic_trainer.cli"]


@pytest.mark.parametrize("arguments", [["explain"], ["run", "--help"]])
def test_a_closed_output_ends_a_command_without_a_traceback(arguments: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command, env = [*CLI, *arguments], {**os.environ, "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(command, env=env, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("arguments", [["explain"], ["run", "--help"]])
def test_a_full_disk_ends_a_command_without_a_traceback(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*CLI, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 74
    assert ended.stderr.count("\n") == 1 and "No space left" in ended.stderr


def test_a_full_disk_is_not_a_wrong_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert cli.main(["init", str(tmp_path / "project")]) == 74
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    monkeypatch.undo()
    assert cli.main(["init", str(tmp_path / "project")]) == 0


def test_ctrl_c_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "command_parser", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["run", "trainer.py"]) == 130
    assert capsys.readouterr().err == (
        "\ngeneric-trainer run: interrupted; start it again, and it resumes from its "
        "checkpoint, if there is one.\n"
    )


def test_commands_need_no_docstrings(tmp_path: Path) -> None:
    bare = ["-OO", "-m", "generic_trainer.cli"]  # -OO removes docstrings
    assert run_python(*bare, "--help").stdout == run_python(*bare[1:], "--help").stdout
    assert "--from FILE" in run_python(*bare, "init", "--help").stdout
    made = json.loads(run_python(*bare, "init", tmp_path / "project", "--json").stdout)
    assert [path for path in made if not Path(path).is_file()] == []
    refused = subprocess.run([sys.executable, *bare, "explain"], capture_output=True, text=True)
    assert refused.returncode == 2 and "-OO" in refused.stderr


def test_a_check_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "session"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("session: A graph session scores")
    assert "Example: `tf.saved_model.save` on a Keras 3 model" in told
    assert 'severities={"session": "skip"}' in told
    assert "It runs after loads, devices" in told


def test_a_shell_completes_words(tmp_path: Path) -> None:
    for line, word in (
        ("generic-trainer explain serve_", "serve_tag "),
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
