"""Time that counts, over the attempts of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generic_trainer._core.goodput import Goodput, GoodputMeter, goodput_of


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def attempt(
    clock: Clock, root: Path, run: str, *, after: int, useful_s: float, steps: int
) -> GoodputMeter:
    """Does steps of one second each, the first of which takes three, and is killed after them."""
    meter = GoodputMeter(str(root), str(root / run), clock=clock)
    meter.begin(after, useful_s)
    for step in range(steps):
        clock.now_s += 3.0 if step == 0 else 1.0
        meter.step_ends(after + step + 1)
    return meter


def test_run_without_interruption_loses_its_first_step_and_what_saving_takes(
    clock: Clock, tmp_path: Path
) -> None:
    meter = attempt(clock, tmp_path, "run", after=0, useful_s=0.0, steps=5)
    clock.now_s += 0.5
    meter.saved()
    clock.now_s += 1.0
    meter.step_ends(6)
    goodput = meter.end("fit")
    assert goodput == Goodput(steps=6, useful_s=5.0, wall_s=8.5, saving_s=0.5)
    assert goodput.share == pytest.approx(5.0 / 8.5)
    assert str(goodput).startswith("58.8%: 5.0 s of 8.5 s went into 6 steps that count")


def test_killed_attempt_loses_its_steps_since_the_checkpoint_and_the_way_back(
    clock: Clock, tmp_path: Path
) -> None:
    killed = attempt(clock, tmp_path, "run", after=0, useful_s=0.0, steps=4)
    saved_s = killed.useful_s  # after the step 4
    for step in (5, 6, 7):
        clock.now_s += 1.0
        killed.step_ends(step)
    clock.now_s += 10.0
    meter = attempt(clock, tmp_path, "run", after=4, useful_s=saved_s, steps=6)
    goodput = meter.end("fit")
    assert (goodput.restarts, goodput.steps_lost, goodput.steps) == (1, 3, 10)
    assert (goodput.useful_s, goodput.wall_s) == (3.0 + 5.0, 6.0 + 3.0 + 10.0 + 8.0)
    assert goodput_of(str(tmp_path / "run")) == {
        **{"goodput": round(8 / 27, 4), "restarts": 1, "steps_lost": 3}
    }


def test_another_run_counts_its_own_time(clock: Clock, tmp_path: Path) -> None:
    attempt(clock, tmp_path, "first", after=0, useful_s=0.0, steps=7).close()
    clock.now_s += 86_400.0
    meter = attempt(clock, tmp_path, "second", after=4, useful_s=3.0, steps=3)
    goodput = meter.end("fit")
    assert (goodput.restarts, goodput.steps_lost) == (0, 3)
    assert (goodput.useful_s, goodput.wall_s) == (2.0, 5.0)


def test_fits_of_a_run_are_put_together(clock: Clock, tmp_path: Path) -> None:
    for name, steps in (("fit", 3), ("fine_tuning", 5)):
        folder = tmp_path / name
        folder.mkdir()
        meter = GoodputMeter(str(folder), str(tmp_path), clock=clock)
        meter.begin(0, 0.0)
        for step in range(steps):
            clock.now_s += 1.0
            meter.step_ends(step + 1)
        meter.end(name)
    kept = json.loads((tmp_path / "goodput.json").read_text())
    assert {name: values["steps"] for name, values in kept.items()} == {"fit": 3, "fine_tuning": 5}
    assert goodput_of(str(tmp_path))["goodput"] == round(6 / 8, 4)


def test_workers_that_are_not_the_chief_and_object_stores_note_nothing(
    clock: Clock, tmp_path: Path
) -> None:
    for directory in (None, "gs://bucket/checkpoints"):
        meter = GoodputMeter(directory, "", clock=clock)
        meter.begin(0, 0.0)
        clock.now_s += 1.0
        meter.step_ends(1)
        assert meter.end("fit").steps == 1
    assert goodput_of(str(tmp_path)) == {}


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"fit": {"moons": 1}}', '{"fit": {"steps": "x"}}']
)
def test_what_somebody_has_damaged_is_not_known(content: str, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "goodput.json").write_text(content)
    assert goodput_of(str(tmp_path)) == {}
    GoodputMeter(None, str(tmp_path), clock=clock).end("fit")
    assert list(json.loads((tmp_path / "goodput.json").read_text())) == ["fit"]
