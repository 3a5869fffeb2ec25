"""Searches: which trials there are, how long they train, and which go on."""

import contextlib
import json
import re
import statistics
import textwrap

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import _algorithms
from generic_trainer.trials._algorithms import ALGORITHMS
from generic_trainer.trials._config import parse_experiment
from generic_trainer.trials._search import Search
from generic_trainer.trials.errors import InvalidHP
from tests.trials.descent import BEST_RATE, RATE, Descent, watched


def descending(name="random", **searcher):
    """Returns the configuration of an experiment with `Descent`, of 8 batches by default."""
    searcher = {"name": name, "metric": "loss", "max_length": {"batches": 8}, **searcher}
    return {"hyperparameters": {"rate": RATE}, "searcher": searcher}


def simulate(name, batches, values=lambda trial: trial, **searcher):
    """Returns (trial, length) of each stretch in its order; `values` is trial → metric."""
    settings = parse_experiment(descending(name, max_length={"batches": batches}, **searcher))
    done = []

    def train(trial, length):
        done.append((trial.trial_id, length.count))
        return values(trial.trial_id)

    Search(settings, {}).run(train)
    return done


def lengths(done):
    """Returns trial → how long it has trained."""
    return dict(sorted(done))


def test_a_synchronous_halving_trains_as_many_trials_as_its_budget_has_room_for():
    # A trial costs 4 batches, one in 4 another 12, one in 16 another 48: 10 on average.
    found = lengths(simulate("sync_halving", 64, num_rungs=3, budget=192))
    assert len(found) == 19
    assert sum(found.values()) <= 192 + 64


def test_an_asynchronous_halving_lets_the_best_so_far_go_on():
    done = simulate("async_halving", 16, num_rungs=3, max_trials=16, max_concurrent_trials=1)
    # The first trial is the best of all: it goes on as soon as three others have been seen.
    assert done[:5] == [(1, 1), (2, 1), (3, 1), (4, 1), (1, 4)]
    assert sorted(lengths(done).values()) == [1] * 12 + [4] * 3 + [16]


@pytest.mark.parametrize("divisor", [48, 49, 98])
def test_a_trial_goes_on_as_soon_as_its_rung_has_seen_so_many(divisor):
    options = {"num_rungs": 2, "max_trials": 120, "max_concurrent_trials": 1}
    done = simulate("async_halving", 1000, divisor=divisor, **options)
    assert done.index((1, 1000)) == divisor


@pytest.mark.parametrize(
    ("mode", "shortest"),
    [("conservative", {4, 16, 64}), ("standard", {4, 16}), ("aggressive", {4})],
)
def test_modes_have_more_or_fewer_brackets(mode, shortest):
    done = simulate("adaptive_asha", 64, max_trials=24, max_rungs=3, mode=mode)
    assert len(lengths(done)) == 24
    first = {}
    for trial, length in done:
        first.setdefault(trial, length)
    assert set(first.values()) == shortest


def test_adaptive_divides_its_budget():
    done = simulate("adaptive", 64, budget={"batches": 640}, max_rungs=2, bracket_rungs=[1, 2])
    trained = sum(lengths(done).values())
    assert 0.8 * 640 <= trained <= 640 + 64


def test_a_trial_that_ended_early_does_not_go_on():
    done = simulate(
        "async_halving",
        4,
        lambda trial: float("inf") if trial < 4 else trial,
        num_rungs=2,
        max_trials=5,
        max_concurrent_trials=5,
    )
    assert lengths(done) == {1: 1, 2: 1, 3: 1, 4: 4, 5: 1}


@pytest.mark.parametrize("name", ["random", "async_halving"])
def test_a_budget_without_a_meaning_changes_nothing(name):
    size = {"max_trials": 3, "num_rungs": 1}
    assert simulate(name, 8, budget=80, **size) == simulate(name, 8, **size)


@pytest.fixture
def median_stopping(monkeypatch):
    """Runs the algorithm that the docstring shows, in place of `random`."""
    [code] = re.findall(r"::\n\n(    @(?:.*\n)+?)\n*Source:", _algorithms.__doc__)
    names = {**vars(_algorithms), "statistics": statistics}
    exec(textwrap.dedent(code), names)
    monkeypatch.setitem(ALGORITHMS, "random", names["median_stopping"])


def test_an_algorithm_proposes_what_trains_next(median_stopping):
    metrics = {1: 3, 2: 4, 3: 2, 4: float("inf"), 5: 1}
    done = simulate("random", 8, metrics.get, max_trials=5)
    assert done == [(1, 2), (1, 8), (2, 2), (3, 2), (3, 8), (4, 2), (5, 2), (5, 8)]


def test_an_algorithm_gets_the_metrics_of_trials_that_train(median_stopping, run_experiment):
    trials = run_experiment(Descent, descending(max_trials=6))
    early = [trial["history"][1]["validation"]["loss"] for trial in trials]
    seen = [statistics.median(early[:count]) for count in range(1, 7)]
    expected = [8 if loss <= median else 2 for loss, median in zip(early, seen, strict=True)]
    assert [trial["batches"] for trial in trials] == expected
    assert set(expected) == {2, 8}


def test_parts_share_the_trials():
    search = Search(parse_experiment(descending(max_trials=5)), {})
    whole, first, second = [], [], []
    for trained, *part in ((whole,), (first, 0, 2), (second, 1, 2)):
        search.run(lambda trial, length, trained=trained: trained.append(trial) or 0.0, *part)
    assert [trial.trial_id for trial in first] == [1, 3, 5]
    assert (first, second) == (whole[::2], whole[1::2])


def test_a_trial_changes_its_own_hyperparameters_alone():
    search = Search(
        parse_experiment({**descending(max_trials=2), "hyperparameters": {"units": [2]}}), {}
    )
    search.trial(1).hparams["units"].append(1)
    assert search.trial(2).hparams == {"units": [2]}


@pytest.mark.parametrize("metric", ["loss", "gain"])
def test_an_adaptive_search_finds_the_rate(run_experiment, metric):
    order = {"metric": metric, "smaller_is_better": metric == "loss"}
    size = {"max_trials": 32, "max_length": {"batches": 64}, "divisor": 4}
    trials = run_experiment(Descent, descending("adaptive_asha", **order, **size))
    assert len(trials) == 32
    [best] = [trial for trial in trials if trial["exported"]]
    assert best["batches"] == 64
    assert BEST_RATE / 4 < best["hparams"]["rate"] < 2 * BEST_RATE
    assert sum(trial["batches"] for trial in trials) < 32 * 64 / 3


@pytest.mark.parametrize("name", ["single", "random", "adaptive_asha"])
def test_every_search_needs_its_metric(run_experiment, name):
    config = {**descending(name, metric="los", max_trials=2), "max_restarts": 2}
    with pytest.raises(
        ConfigurationError, match=r"\(gain, loss\), got 'los' \(did you mean 'loss'"
    ):
        run_experiment(Descent, config)


def test_a_trial_whose_metric_is_not_a_number_does_not_win(run_experiment, tmp_path):
    def break_first(run, controller):
        if run.trial_id == 1:
            controller.validate = lambda: {"loss": float("nan")}

    first, second = run_experiment(watched(break_first), descending(max_trials=2))
    assert (first["exported"], second["exported"]) == (False, True)
    json.loads((tmp_path / "run" / "trials.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("without_number", [1, 2])
def test_a_search_without_a_best_trial_warns(run_experiment, caplog, without_number):
    def break_some(run, controller):
        if run.trial_id <= without_number:
            controller.validate = lambda: {"loss": float("nan")}

    trials = run_experiment(watched(break_some), descending(max_trials=2))
    exported = [trial["trial_id"] for trial in trials if trial["exported"]]
    assert exported == [2 if without_number == 1 else 1]
    assert ("No trial has a finite loss" in caplog.text) == (without_number == 2)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("single", {}),
        ("random", {"max_trials": 6}),
        ("async_halving", {"max_trials": 6, "num_rungs": 2}),
    ],
)
def test_the_trial_that_was_trained_is_exported(run_experiment, tmp_path, name, size):
    built, trained = [], {}

    def note(run, controller):
        built.append(run.trial_id)
        controller.save = lambda directory, save=controller.save: (
            trained.update({run.trial_id: controller._w.tolist()}),
            save(directory),
        )

    trials = run_experiment(watched(note), descending(name, **size))
    [best] = [trial["trial_id"] for trial in trials if trial["exported"]]
    assert json.loads((tmp_path / "Format-Serving" / "w.json").read_text()) == trained[best]
    stretches = {"single": 1, "random": 6}.get(name, len(built))
    assert len(built) == stretches  # none once more for the export
    assert name != "async_halving" or built.count(best) == 2  # one for each rung


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_search_that_fails_goes_on_where_it_was(run_experiment, tmp_path, error):
    periods = {"min_checkpoint_period": {"batches": 1}, "max_restarts": 1}
    config = {**descending("async_halving", max_trials=8, num_rungs=2), **periods}

    def die(run, controller):
        def train(batches, train=controller.train):
            nonlocal left
            left -= 1
            if not left:
                raise error
            return train(batches)

        controller.train = train

    straight = run_experiment(Descent, config, checkpoint_dir=str(tmp_path / "straight"))
    assert len(straight) == 8
    for batches in (9, 3):  # between the rungs of a trial, and within the second
        left = batches
        with contextlib.suppress(KeyboardInterrupt):
            run_experiment(watched(die), config)
    assert run_experiment(Descent, config) == straight


def test_a_trial_that_fails_is_restarted_and_then_left(run_experiment):
    failures = 0

    def fail(run, controller):
        nonlocal failures
        if run.trial_id == 2 or (run.trial_id == 1 and failures < 2):
            failures += 1
            raise OSError("the disk is away")

    config = descending(max_trials=3)
    with pytest.raises(OSError, match="away"):
        run_experiment(watched(fail), config)
    failures = 0
    trials = run_experiment(watched(fail), {**config, "max_restarts": 2})
    assert failures == 2 + 3
    assert [trial["error"] for trial in trials] == [None, "OSError: the disk is away", None]
    assert [trial["batches"] for trial in trials] == [8, 0, 8]


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_trial_whose_hyperparameters_cannot_work_is_left(run_experiment, restarts):
    built = []

    def refuse(run, controller):
        built.append(run.trial_id)
        if run.trial_id == 2:
            raise InvalidHP("more heads than units")

    config = {**descending(max_trials=3), "max_restarts": restarts}
    trials = run_experiment(watched(refuse), config)
    assert built.count(2) == 1
    assert [trial["error"] for trial in trials] == [None, "InvalidHP: more heads than units", None]
