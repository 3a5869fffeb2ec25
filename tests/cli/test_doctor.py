"""`generic-trainer doctor`, called as a user calls it."""

from __future__ import annotations

import json
import sys

import pytest

from generic_trainer import cli
from generic_trainer.cli import _doctor
from generic_trainer.cli._doctor_packages import Observation

SOUND = Observation("tensorflow", "ok", "2.16.2")
BROKEN = Observation("tfx-bsl", "fail", "1.16.1, import fails", "pip install dill")


@pytest.mark.parametrize(("observations", "status"), [([SOUND], 0), ([SOUND, BROKEN], 1)])
def test_the_status_tells_whether_all_is_there(
    observations: list[Observation],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_doctor, "examine", lambda: observations)

    assert cli.main(["doctor"]) == status
    printed = capsys.readouterr().out
    for each in observations:
        assert each.found in printed
        assert each.remedy in printed


def test_it_prints_where_rich_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_doctor, "examine", lambda: [BROKEN])
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert cli.main(["doctor"]) == 1
    told = "FAIL     tfx-bsl: 1.16.1, import fails\n    → pip install dill\n"
    assert capsys.readouterr().out == told


@pytest.mark.slow
@pytest.mark.parametrize(("legacy", "keras"), [("1", "2."), ("0", "3.")])
def test_this_environment_is_sound(
    legacy: str, keras: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    assert cli.main(["doctor", "--json"]) == 0
    found = {each["subject"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["tensorflow"]["status"] == found["tfx"]["status"] == "ok"
    assert f"tf.keras is Keras {keras}" in found["Keras"]["found"]
