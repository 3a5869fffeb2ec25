"""Searches: which trials there are, how long they train, and which go on."""

from __future__ import annotations

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import parse_experiment
from generic_trainer.trials._search import make_search
from tests.trials.descent import BEST_RATE, Descent

RATE = {"type": "log", "base": 10, "minval": -5, "maxval": 0}


def settings(name, hyperparameters=None, **searcher):
    searcher = {"name": name, "metric": "loss", **searcher}
    return parse_experiment(
        {"hyperparameters": hyperparameters or {"rate": RATE}, "searcher": searcher}
    )


def simulate(values, *args, **kwargs):
    """Returns (trial, length) of each stretch in its order; `values` is trial → metric."""
    search = make_search(settings(*args, **kwargs), {})
    waiting, done = search.begin(), []
    while waiting:
        stretch = waiting.pop(0)
        done.append((stretch.trial.trial_id, stretch.length.count))
        waiting += search.ended(stretch.trial.trial_id, values(stretch.trial.trial_id))
    return done


def lengths(done):
    """Returns trial → how long it has trained."""
    return dict(sorted(done))


def test_a_synchronous_halving_waits_for_its_rung():
    done = simulate(
        lambda trial: -trial, "sync_halving", max_length={"batches": 64}, num_rungs=3, budget=192
    )
    # 16 trials of 4, 4 of 16, 1 of 64 come to 64 + 48 + 48 = 160 batches; the budget has 1.2 of it.
    assert [length for _, length in done].count(4) == 19
    assert [length for _, length in done].count(16) == 4
    assert [length for _, length in done].count(64) == 1
    assert lengths(done)[19] == 64
    assert all(lengths(done)[trial] == 16 for trial in (16, 17, 18))


def test_an_asynchronous_halving_lets_the_best_so_far_go_on():
    done = simulate(
        lambda trial: trial,
        "async_halving",
        max_length={"batches": 16},
        num_rungs=3,
        max_trials=16,
        max_concurrent_trials=1,
    )
    # The first trial is the best of all: it goes on as soon as three others have been seen.
    assert done[:5] == [(1, 1), (2, 1), (3, 1), (4, 1), (1, 4)]
    assert sorted(lengths(done).values()) == [1] * 12 + [4] * 3 + [16]


@pytest.mark.parametrize(
    ("mode", "shortest"),
    [("conservative", {4, 16, 64}), ("standard", {4, 16}), ("aggressive", {4})],
)
def test_modes_have_more_or_fewer_brackets(mode, shortest):
    done = simulate(
        lambda trial: trial,
        "adaptive_asha",
        max_length={"batches": 64},
        max_trials=24,
        max_rungs=3,
        mode=mode,
    )
    assert len(lengths(done)) == 24
    first = {}
    for trial, length in done:
        first.setdefault(trial, length)
    assert set(first.values()) == shortest


def test_brackets_share_the_trials_of_adaptive_simple():
    done = simulate(
        lambda trial: trial, "adaptive_simple", max_length={"batches": 256}, max_trials=9
    )
    first = {}
    for trial, length in done:
        first.setdefault(trial, length)
    # Five rungs, four and three, three trials each.
    assert sorted(first.values()) == [1] * 3 + [4] * 3 + [16] * 3


def test_adaptive_divides_its_budget():
    done = simulate(
        lambda trial: trial,
        "adaptive",
        max_length={"batches": 64},
        budget={"batches": 640},
        max_rungs=2,
        bracket_rungs=[1, 2],
    )
    assert sorted(lengths(done).values()).count(64) == 5 + 2
    trained = sum(lengths(done).values())
    assert 0.9 * 640 <= trained <= 640 + 64


def test_a_trial_that_ended_early_does_not_go_on():
    done = simulate(
        lambda trial: float("inf") if trial < 4 else trial,
        "async_halving",
        max_length={"batches": 4},
        num_rungs=2,
        max_trials=5,
        max_concurrent_trials=5,
    )
    assert lengths(done) == {1: 1, 2: 1, 3: 1, 4: 4, 5: 1}


def test_a_population_replaces_its_worst():
    population = {
        "population_size": 4,
        "num_rounds": 3,
        "length_per_round": {"batches": 10},
        "replace_function": {"truncate_fraction": 0.25},
        "explore_function": {"resample_probability": 0.0, "perturb_factor": 0.1},
    }
    search = make_search(settings("pbt", **population), {})
    first = search.begin()
    assert [one.length.count for one in first] == [10] * 4
    for one in first[:3]:
        assert search.ended(one.trial.trial_id, one.trial.trial_id) == []
    second = search.ended(4, 4)
    assert [(one.trial.trial_id, one.length.count) for one in second] == [
        *((5, 10), (1, 20), (2, 20), (3, 20)),
    ]
    copied = second[0].trial
    assert copied.parent == 1
    assert copied.hparams["rate"] == pytest.approx(first[0].trial.hparams["rate"], rel=0.11)
    assert copied.hparams != first[0].trial.hparams
    for one in second[:3]:
        search.ended(one.trial.trial_id, one.trial.trial_id)
    third = search.ended(3, 3)
    assert [one.trial.trial_id for one in third] == [6, 1, 2, 3]
    assert [search.ended(one.trial.trial_id, 1) for one in third] == [[], [], [], []]


@pytest.mark.parametrize("metric", ["loss", "gain"])
def test_an_adaptive_search_finds_the_rate(run_experiment, metric):
    searcher = {
        "name": "adaptive_asha",
        "metric": metric,
        "smaller_is_better": metric == "loss",
        "max_trials": 32,
        "max_length": {"batches": 64},
        "divisor": 4,
    }
    trials = run_experiment(Descent, {"hyperparameters": {"rate": RATE}, "searcher": searcher})
    assert len(trials) == 32
    [best] = [trial for trial in trials if trial["exported"]]
    assert best["batches"] == 64
    assert BEST_RATE / 4 < best["hparams"]["rate"] < 2 * BEST_RATE
    assert sum(trial["batches"] for trial in trials) < 32 * 64 / 3


def test_a_search_that_prunes_needs_its_metric(run_experiment):
    def search(name):
        searcher = {"name": name, "metric": "los", "max_trials": 2, "max_length": {"batches": 4}}
        return run_experiment(Descent, {"hyperparameters": {"rate": RATE}, "searcher": searcher})

    with pytest.raises(ConfigurationError, match=r"numbers \(gain, loss\), found 'los'"):
        search("adaptive_asha")
    assert len(search("random")) == 2


def test_a_killed_search_goes_on_where_it_was(run_experiment, tmp_path):
    searcher = {
        "name": "pbt",
        "metric": "loss",
        "population_size": 3,
        "num_rounds": 3,
        "length_per_round": {"batches": 5},
        "replace_function": {"truncate_fraction": 0.34},
    }
    config = {"hyperparameters": {"rate": RATE}, "searcher": searcher}

    class Killed(BaseException):
        pass

    class Dying(Descent):
        left = 0

        @classmethod
        def open_controller(cls, run):
            cls.left -= 1
            if not cls.left:
                raise Killed
            return super().open_controller(run)

    straight = run_experiment(Descent, config, checkpoint_dir=str(tmp_path / "straight"))
    assert len(straight) == 5
    for Dying.left in (4, 3, 4):
        with pytest.raises(Killed):
            run_experiment(Dying, config)
    assert run_experiment(Descent, config) == straight


def test_a_trial_that_fails_is_restarted_and_then_left(run_experiment):
    class Failing(Descent):
        failures = 0

        @classmethod
        def open_controller(cls, run):
            if run.trial_id == 2 or (run.trial_id == 1 and cls.failures < 2):
                cls.failures += 1
                raise OSError("the disk is away")
            return super().open_controller(run)

    searcher = {
        **{"name": "random", "metric": "loss", "max_trials": 3},
        "max_length": {"batches": 5},
    }
    config = {"hyperparameters": {"rate": RATE}, "searcher": searcher}
    with pytest.raises(OSError, match="away"):
        run_experiment(Failing, config)
    Failing.failures = 0
    trials = run_experiment(Failing, {**config, "max_restarts": 2})
    assert Failing.failures == 2 + 3
    assert [trial["error"] for trial in trials] == [None, "OSError: the disk is away", None]
    assert [trial["batches"] for trial in trials] == [5, 0, 5]


def test_a_script_keeps_the_checkpoints_that_it_asks_for(run_experiment, tmp_path):
    class Script(Descent):
        is_script = True

    def kept(**storage):
        folder = tmp_path / f"checkpoints-{len(storage)}"
        length = {"max_trials": 3, "max_length": {"batches": 5}}
        config = {
            "hyperparameters": {"rate": RATE},
            "searcher": {"name": "random", "metric": "loss", **length},
            "checkpoint_storage": {"type": "shared_fs", **storage},
        }
        trials = run_experiment(Script, config, checkpoint_dir=str(folder))
        [best] = [trial["trial_id"] for trial in trials if trial["exported"]]
        found = {path.relative_to(folder).as_posix() for path in folder.glob("trial-*/*")}
        return f"trial-{best}/best", found

    best, found = kept(save_experiment_best=1, save_trial_best=0, save_trial_latest=0)
    assert found == {best}
    assert len(kept()[1]) == 6
