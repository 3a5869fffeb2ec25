"""Trials side by side: the shares of the parts, their results, and a killed run."""

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._core.cluster import cluster_addresses, this_task
from generic_trainer.errors import WorkerLostError
from generic_trainer.training import distributed
from generic_trainer.trials import _cluster_part, _run_fn
from generic_trainer.trials._cluster_part import ClusterPart
from generic_trainer.trials._config import parse_experiment
from generic_trainer.trials._search import Search
from tests.processes import tf_config
from tests.trials.conftest import make_fn_args
from tests.trials.descent import RATE, Descent, watched

RANDOM = {"name": "random", "max_trials": 5, "max_length": {"batches": 4}}
ASHA = {"name": "adaptive_asha", "max_trials": 24, "max_length": {"batches": 16}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: Any) -> None:
    monkeypatch.setattr(_cluster_part, "_POLL_S", 0.01)


def settings(searcher: Any, **fields: Any) -> Any:
    searcher = {"metric": "loss", "max_concurrent_trials": 3, **searcher}
    return parse_experiment({"hyperparameters": {"rate": RATE}, "searcher": searcher, **fields})


def train(directory: Path, wanted: Any, *, trial_class: Any = Descent, parts: int = 3) -> list[Any]:
    """Trains with so many parts, each of which is a thread; returns the trials."""
    fn_args = make_fn_args(directory)
    search = Search(wanted, {})

    def work(number: int) -> list[Any]:
        with contextlib.ExitStack() as locks:
            part = ClusterPart(number, parts, [number])
            experiment = _run_fn.ExperimentRun(trial_class, wanted, fn_args, locks, part)
            experiment.train(search)
            return [*experiment.trials.values()]

    with ThreadPoolExecutor(parts) as threads:
        trials, *_ = threads.map(work, range(parts))
    return trials


def told(trials: list[Any]) -> list[Any]:
    return [(one.run.trial_id, one.run.hparams, one.run.seed, one.progress) for one in trials]


def test_trials_end_as_they_do_one_after_another(tmp_path: Path, run_experiment: Any) -> None:
    wanted = settings(RANDOM, scheduling_unit=2, min_validation_period={"batches": 3})
    trials = train(tmp_path / "side", wanted)
    expected = run_experiment(Descent, wanted.raw)
    for trial, one in zip(trials, expected, strict=True):
        assert {**trial.record(), "exported": one["exported"]} == one


def test_trials_train_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=300)

    waiting = watched(lambda run, controller: together.wait())
    assert len(train(tmp_path, settings({**RANDOM, "max_trials": 3}), trial_class=waiting)) == 3


def test_each_part_halves_its_share(tmp_path: Path) -> None:
    lengths = sorted(trial.progress.batches for trial in train(tmp_path, settings(ASHA)))
    assert len(lengths) == 24
    assert lengths[-1] == 16
    assert sum(lengths) < 24 * 16


class Killed(BaseException):
    pass


@pytest.mark.parametrize("searcher", [RANDOM, ASHA], ids=["random", "halving"])
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, searcher: Any) -> None:
    wanted = settings(searcher)
    straight = train(tmp_path / "straight", wanted)

    def die(run: Any, controller: Any) -> None:
        if run.trial_id == 4:  # the second of part 0
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "killed", wanted, trial_class=watched(die))
    written = (tmp_path / "killed" / "checkpoints" / "side-by-side").iterdir()
    assert sorted(path.name for path in written) == ["part-1-of-3.json", "part-2-of-3.json"]
    others = {trial.run.trial_id for trial in straight if trial.run.trial_id % 3 != 1}

    def check(run: Any, controller: Any) -> None:
        assert run.trial_id not in others  # they are trained

    resumed = train(tmp_path / "killed", wanted, trial_class=watched(check))
    assert told(resumed) == told(straight)


def test_a_trial_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    def fail(run: Any, controller: Any) -> None:
        if run.trial_id == 2:
            raise OSError("the disk is away")

    wanted = settings(RANDOM, max_restarts=1)
    trials = train(tmp_path, wanted, trial_class=watched(fail))
    errors = [trial.error for trial in trials]
    assert errors == [None, "OSError: the disk is away", None, None, None]
    assert [trial.progress.batches for trial in trials] == [4, 0, 4, 4, 4]


@pytest.mark.parametrize(
    ("workers", "slots", "at_once", "num_trials", "expected"),
    [
        (4, 1, None, 9, [(0, 1, [0, 1, 2, 3])] * 4),  # all train each trial together
        (4, 1, 1, 9, [(0, 1, [0, 1, 2, 3])] * 4),
        (4, 3, 4, 9, [(0, 1, [0, 1, 2, 3])] * 4),
        (3, 1, 4, 9, [(0, 3, [0]), (1, 3, [1]), (2, 3, [2])]),
        (3, 1, 4, 2, [(0, 2, [0]), (1, 2, [1]), (2, 2, [2])]),
        (3, 1, 0, 9, [(0, 3, [0]), (1, 3, [1]), (2, 3, [2])]),
        (5, 2, 4, 9, [(0, 2, [0, 1])] * 2 + [(1, 2, [2, 3])] * 2 + [(2, 2, [4])]),
        (1, 1, 4, 9, [(0, 1, [0])]),
    ],
)
def test_parts_of_a_cluster(
    monkeypatch: Any, workers: int, slots: int, at_once: int, num_trials: int, expected: Any
) -> None:
    wanted = settings(
        {**RANDOM, "max_concurrent_trials": at_once}, resources={"slots_per_trial": slots}
    )
    addresses = [f"worker-{number}:2222" for number in range(workers)]
    found = []
    for rank in range(workers):
        monkeypatch.setenv("TF_CONFIG", tf_config(index=rank, worker=workers))
        part = ClusterPart.of_this_worker(wanted, num_trials)
        found.append((part.number, part.count, [*part.ranks]))
        with part.as_cluster():
            assert distributed.size() == len(part.ranks)
            assert distributed.rank() == part.ranks.index(rank)
            if len(part.ranks) > 1:
                own = [addresses[each] for each in part.ranks]
                assert cluster_addresses() == {"worker": own}
                assert this_task().index == part.ranks.index(rank)
        assert distributed.size() == workers
    assert found == expected


DIVERGING = {"type": "double", "minval": 0.03, "maxval": 0.06}  # the first validation is the best


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("damage", ["truncated", "gone", "all gone"])
def test_a_trial_whose_best_checkpoint_is_lost_trains_again(
    tmp_path: Path, damage: str, parts: int
) -> None:
    searcher = {**RANDOM, "metric": "loss", "max_concurrent_trials": parts}
    period = {"min_validation_period": {"batches": 1}, "min_checkpoint_period": {"batches": 1}}
    wanted = parse_experiment(
        {"hyperparameters": {"rate": DIVERGING}, "searcher": searcher, **period}
    )
    straight = train(tmp_path, wanted, parts=parts)
    assert {trial.progress.best_at for trial in straight} == {1}
    saved = [trial.exported().checkpoint_dir for trial in straight]
    weights = [Path(path, "w.json").read_text() for path in saved]
    for trial in straight:
        if damage == "truncated":
            Path(trial.exported().checkpoint_dir, "w.json").write_text("[")
        else:
            folder = tmp_path / "checkpoints" / f"trial-{trial.run.trial_id}"
            shutil.rmtree(folder / "best" if damage == "gone" else folder)
    if parts > 1 and damage != "all gone":  # nothing tells part 0 how far the others were
        with pytest.raises(WorkerLostError, match="trial 2 is damaged or gone"):
            train(tmp_path, wanted, parts=parts)
    for _ in range(parts):  # an attempt for each part
        with contextlib.suppress(WorkerLostError):
            again = train(tmp_path, wanted, parts=parts)
    assert told(again) == told(straight)
    assert [Path(one.exported().checkpoint_dir, "w.json").read_text() for one in again] == weights
