"""What a trial does next."""

from __future__ import annotations

import dataclasses

import pytest

from generic_trainer.trials._loop import TrialProgress, TrialSchedule, run


class Recorder:
    """A controller that notes what it is asked for; its metric is a list given before."""

    def __init__(self, errors=(), stop_after=None):
        self.calls = []
        self._errors = iter(errors)
        self._stop_after = stop_after

    @property
    def stop_requested(self):
        return self._stop_after is not None and self.trained() >= self._stop_after

    def trained(self):
        return sum(call for call in self.calls if isinstance(call, int))

    def train(self, batches):
        self.calls.append(batches)
        return {"loss": 1.0}

    def validate(self):
        self.calls.append("validate")
        return {"error": next(self._errors, 0.0)}


def plan(**changes):
    base = TrialSchedule(
        max_batches=250,
        unit=100,
        validation_period=None,
        checkpoint_period=None,
        validate_first=False,
        checkpoint_policy="best",
        metric="error",
        is_better=lambda value, best: best is None or value < best,
    )
    return dataclasses.replace(base, **changes)


def calls(plan, progress=None, **options):
    controller = Recorder(**options)
    progress = progress or TrialProgress()
    run(
        controller,
        plan,
        progress,
        save=lambda _: controller.calls.append("checkpoint"),
        save_best=lambda _: controller.calls.append("best"),
        report=lambda *_: None,
    )
    return controller.calls


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "100 100 50 checkpoint validate best"),
        ({"max_batches": 0}, "validate best"),
        (
            {"validation_period": 120},
            "100 20 validate best checkpoint 100 20 validate 10 checkpoint validate",
        ),
        (
            {"validation_period": 120, "checkpoint_policy": "all"},
            "100 20 validate best checkpoint 100 20 validate checkpoint 10 checkpoint validate",
        ),
        (
            {"validation_period": 120, "checkpoint_policy": "none"},
            "100 20 validate 100 20 validate 10 checkpoint validate",
        ),
        (
            {"checkpoint_period": 110},
            "100 10 checkpoint 100 10 checkpoint 30 checkpoint validate best",
        ),
        ({"validate_first": True, "max_batches": 40}, "validate best 40 checkpoint validate"),
        ({"metric": None}, "100 100 50 checkpoint validate"),
        ({"metric": "absent"}, "100 100 50 checkpoint validate"),
    ],
)
def test_order_of_work(changes, expected):
    found = calls(plan(**changes), errors=[0.5] * 9)
    assert " ".join(map(str, found)) == expected


def test_each_better_validation_is_kept():
    found = calls(plan(validation_period=50, max_batches=200), errors=[0.5, 0.4, 0.6, 0.3])
    kept = [found[index - 1] == "validate" for index, call in enumerate(found) if call == "best"]
    assert kept == [True, True, True]


def test_larger_may_be_better():
    bigger = plan(
        validation_period=50,
        max_batches=150,
        is_better=lambda value, best: best is None or value > best,
    )
    assert calls(bigger, errors=[0.5, 0.4, 0.6]).count("best") == 2


def test_an_early_stop_ends_with_a_checkpoint_and_no_validation():
    assert calls(plan(), stop_after=200) == [100, 100, "checkpoint"]


@pytest.mark.parametrize("killed_after", range(1, 12))
def test_a_resumed_trial_goes_on_as_the_straight_one(killed_after):
    class Killed(Exception):
        pass

    wanted = plan(validation_period=60, checkpoint_period=40, max_batches=200, unit=30)
    errors = {60: 0.5, 120: 0.4, 180: 0.6, 200: 0.3}

    def finish(progress, budget):
        saved = [dataclasses.replace(progress, history=list(progress.history))]

        class Controller(Recorder):
            def validate(self):
                return {"error": errors[progress.batches]}

        def spend(*_):
            nonlocal budget
            budget -= 1
            if budget == 0:
                raise Killed

        def save(progress):
            saved.append(dataclasses.replace(progress, history=list(progress.history)))

        try:
            run(Controller(), wanted, progress, save=save, save_best=lambda _: None, report=spend)
        except Killed:
            return saved[-1]
        return progress

    straight = finish(TrialProgress(), budget=1000)
    resumed = finish(finish(TrialProgress(), budget=killed_after), budget=1000)
    assert (resumed.history, resumed.best) == (straight.history, straight.best)
