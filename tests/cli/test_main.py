"""Tests of `generic_trainer.cli.main`, for all commands alike."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from generic_trainer import cli

CLI = [sys.executable, "-m", "generic_trainer.cli"]


@pytest.mark.parametrize("arguments", [["explain"], ["run", "--help"]])
def test_a_closed_output_ends_a_command_without_a_traceback(arguments: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command, env = [*CLI, *arguments], {**os.environ, "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(command, env=env, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_ctrl_c_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "command_parser", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["run", "trainer.py"]) == 130
    assert capsys.readouterr().err == (
        "\ngeneric-trainer run: interrupted; start it again, and it resumes from its "
        "checkpoint, if there is one.\n"
    )
