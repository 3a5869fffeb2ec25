"""`generic-trainer doctor`, called as a user calls it."""

from __future__ import annotations

import json

import pytest

from generic_trainer import cli
from generic_trainer.cli import _doctor
from generic_trainer.doctor import Symptom

SOUND = Symptom("tensorflow", "ok", "2.16.2")
BROKEN = Symptom("tfx-bsl", "fail", "1.16.1, import fails", "pip install dill")


@pytest.mark.parametrize(("symptoms", "status"), [([SOUND], 0), ([SOUND, BROKEN], 1)])
def test_the_status_tells_whether_all_is_there(
    symptoms: list[Symptom],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_doctor, "examine", lambda: symptoms)

    assert cli.main(["doctor"]) == status
    printed = capsys.readouterr().out
    for symptom in symptoms:
        assert symptom.found in printed
        assert symptom.remedy in printed


@pytest.mark.slow
@pytest.mark.parametrize(("legacy", "keras"), [("1", "2."), ("0", "3.")])
def test_this_environment_is_sound(
    legacy: str, keras: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    assert cli.main(["doctor", "--json"]) == 0
    found = {symptom["subject"]: symptom for symptom in json.loads(capsys.readouterr().out)}
    assert found["tensorflow"]["status"] == found["tfx"]["status"] == "ok"
    assert f"tf.keras is Keras {keras}" in found["Keras"]["found"]
