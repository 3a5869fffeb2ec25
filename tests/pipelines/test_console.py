import logging
import os
from pathlib import Path

import pytest
from absl import logging as absl_logging

from pipelines._console import stage_console


def announce(stage: str, what: str = "running") -> None:
    absl_logging.info("Component %s is %s.", stage, what)


def test_output_of_a_quiet_stage_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stage_console(tmp_path / "log"):
        announce("CsvExampleGen")
        os.write(1, b"from C++\n")
        print("from Python")
        logging.getLogger("apache_beam").warning("from Beam")
        announce("CsvExampleGen", "finished")
    print("afterwards")

    shown = capfd.readouterr().out.splitlines()
    log = (tmp_path / "log").read_text()
    assert [line.split()[0] for line in shown] == ["CsvExampleGen", "afterwards"]
    assert all(text in log for text in ("from C++", "from Python", "from Beam"))


def test_output_of_the_training_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stage_console(tmp_path / "log"):
        announce("GenericTrainer")
        print("Epoch 1")
        announce("GenericTrainer", "finished")
        print("hidden again")

    shown = capfd.readouterr().out.split()
    assert shown[:3] == ["GenericTrainer", "Epoch", "1"]
    assert shown[3] == "GenericTrainer" and shown[5] == "s"
    assert len(shown) == 6


@pytest.mark.parametrize("stage", ["Transform", "GenericTrainer"])
def test_a_cached_stage_is_marked(
    stage: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stage_console(tmp_path / "log"):
        announce(stage)
        absl_logging.info("A cached execution %d is used.", 7)
        announce(stage, "finished")

    assert capfd.readouterr().out.split()[-2:] == [stage, "cached"]


def test_an_error_gives_the_terminal_back_and_leaves_a_traceback_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = logging.getLogger().handlers
    with pytest.raises(ZeroDivisionError), stage_console(tmp_path / "log"):
        announce("Transform")
        _ = 1 / 0
    print("afterwards")

    assert capfd.readouterr().out.splitlines()[-1] == "afterwards"
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()
    assert logging.getLogger().handlers is handlers
