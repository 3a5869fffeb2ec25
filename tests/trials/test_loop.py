"""What a trial does next."""

import dataclasses

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import parse_experiment
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


def schedule(max_batches=250, unit=100, searcher=None, **config):
    searcher = {"metric": "error", "max_length": {"batches": max_batches}, **(searcher or {})}
    settings = parse_experiment({"scheduling_unit": unit, "searcher": searcher, **config})
    return TrialSchedule(settings, lambda: 1)


def every(batches, **config):
    return {"min_validation_period": {"batches": batches}, **config}


def calls(planned, progress=None, **options):
    controller = Recorder(**options)
    progress = progress or TrialProgress()
    run(
        controller,
        planned,
        progress,
        save=lambda _: controller.calls.append("checkpoint"),
        save_best=lambda _: controller.calls.append("best"),
        report=lambda *_: None,
    )
    return controller.calls


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (every(0, min_checkpoint_period={"epochs": 0}), "100 100 50 checkpoint validate best"),
        ({"max_batches": 0}, "validate best"),
        (every(120), "100 20 validate best checkpoint 100 20 validate 10 checkpoint validate"),
        (
            every(120, checkpoint_policy="all"),
            "100 20 validate best checkpoint 100 20 validate checkpoint 10 checkpoint validate",
        ),
        (
            every(120, checkpoint_policy="none"),
            "100 20 validate 100 20 validate 10 checkpoint validate",
        ),
        (
            {"min_checkpoint_period": {"batches": 110}},
            "100 10 checkpoint 100 10 checkpoint 30 checkpoint validate best",
        ),
        (
            {"perform_initial_validation": True, "max_batches": 40},
            "validate best 40 checkpoint validate",
        ),
        ({"searcher": {"metric": None}}, "100 100 50 checkpoint validate"),
    ],
)
def test_order_of_work(changes, expected):
    found = calls(schedule(**changes), errors=[0.5] * 9)
    assert " ".join(map(str, found)) == expected


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_metric_that_is_not_finite_is_never_the_best(bad):
    progress = TrialProgress()
    calls(schedule(150, **every(50)), progress, errors=[bad, 0.5, 0.6])
    assert (progress.best, progress.best_at) == (0.5, 100)


def test_a_metric_that_is_not_validated_is_refused_with_the_near_name():
    with pytest.raises(ConfigurationError, match=r"\(error\), got 'eror'.*did you mean 'error'\?"):
        calls(schedule(searcher={"metric": "eror"}))


def test_an_early_stop_ends_with_a_checkpoint_and_no_validation():
    assert calls(schedule(), stop_after=200) == [100, 100, "checkpoint"]


@pytest.mark.parametrize("killed_after", range(1, 12, 3))
def test_a_resumed_trial_goes_on_as_the_straight_one(killed_after):
    class Killed(Exception):
        pass

    wanted = schedule(200, 30, min_checkpoint_period={"batches": 40}, **every(60))
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
