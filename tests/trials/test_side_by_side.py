"""Trials side by side: which come next, who trains them, and what a killed run leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._core.cluster import cluster_addresses, this_task
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import distributed
from generic_trainer.trials import _side_by_side
from generic_trainer.trials._config import parse_experiment
from generic_trainer.trials._kept import ExperimentRun
from generic_trainer.trials._search import Queue, make_search
from generic_trainer.trials._side_by_side import ClusterPart, Office, train_side_by_side
from tests.trials.conftest import make_fn_args
from tests.trials.descent import Descent

RATE = {"type": "log", "base": 10, "minval": -5, "maxval": 0}
RANDOM = {"name": "random", "max_trials": 5, "max_length": {"batches": 4}}
ASHA = {"name": "adaptive_asha", "max_trials": 12, "max_length": {"batches": 16}}
PBT = {
    **{"name": "pbt", "population_size": 4, "num_rounds": 3, "length_per_round": {"batches": 5}},
    "replace_function": {"truncate_fraction": 0.5},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: Any) -> None:
    monkeypatch.setattr(_side_by_side, "_POLL_S", 0.01)


def settings(searcher: Any, **fields: Any) -> Any:
    searcher = {"metric": "loss", "max_concurrent_trials": 3, **searcher}
    return parse_experiment({"hyperparameters": {"rate": RATE}, "searcher": searcher, **fields})


def train(directory: Path, wanted: Any, *, trial_class: Any = Descent, parts: int = 3) -> list[Any]:
    """Trains with so many parts, each of which is a thread; returns the trials."""
    experiment = ExperimentRun(trial_class, wanted, make_fn_args(directory), None)

    def work(number: int) -> list[Any]:
        with contextlib.ExitStack() as locks:
            queue = Queue(make_search(wanted, {}))
            return train_side_by_side(
                experiment, queue, ClusterPart(number, parts, [number]), locks
            )

    with ThreadPoolExecutor(parts) as threads:
        trials, *others = threads.map(work, range(parts))
    assert not any(others)
    return trials


def told(trials: list[Any]) -> list[Any]:
    return [(one.run.trial_id, one.run.hparams, one.run.seed, one.progress) for one in trials]


@pytest.mark.parametrize("searcher", [RANDOM, {**PBT, "num_rounds": 2}], ids=["random", "pbt"])
def test_trials_end_as_they_do_one_after_another(
    tmp_path: Path, run_experiment: Any, searcher: Any
) -> None:
    wanted = settings(searcher, scheduling_unit=2, min_validation_period={"batches": 3})
    trials = train(tmp_path / "side", wanted)
    expected = run_experiment(Descent, wanted.raw)
    assert [
        {
            **{"trial_id": number, "hparams": hparams, "seed": seed, "batches": progress.batches},
            **{"best": progress.best, "history": progress.history},
        }
        for number, hparams, seed, progress in told(trials)
    ] == [{name: one[name] for name in _COMPARED} for one in expected]


_COMPARED = ("trial_id", "hparams", "seed", "batches", "best", "history")


def test_trials_train_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=60)

    class Waiting(Descent):
        @classmethod
        def open_controller(cls, run: Any) -> Any:
            together.wait()
            return super().open_controller(run)

    assert len(train(tmp_path, settings({**RANDOM, "max_trials": 3}), trial_class=Waiting)) == 3


def test_the_best_so_far_go_on_while_others_train(tmp_path: Path) -> None:
    trials = train(tmp_path, settings(ASHA))
    lengths = sorted(trial.progress.batches for trial in trials)
    assert len(lengths) == 12
    assert lengths[-1] == 16
    assert sum(lengths) < 12 * 16


def test_the_original_waits_for_its_copy() -> None:
    queue = Queue(make_search(settings(PBT), {}))
    for _ in range(4):
        assert (stretch := queue.take()) is not None
    assert queue.take() is None
    for number in (1, 2, 3, 4):
        queue.ended(number, number)
    copies = [queue.take(), queue.take()]
    assert [stretch and stretch.trial.parent for stretch in copies] == [1, 2]
    assert queue.take() is None  # what goes on besides are the originals
    queue.ended(6, 0)
    assert (stretch := queue.take()) is not None
    assert stretch.trial.trial_id == 2
    assert queue.take() is None


class Killed(BaseException):
    pass


@pytest.mark.parametrize("searcher", [RANDOM, PBT], ids=["random", "pbt"])
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, searcher: Any) -> None:
    wanted = settings(searcher)
    straight = train(tmp_path / "straight", wanted)
    lock = threading.Lock()

    class Dying(Descent):
        left = 0

        @classmethod
        def open_controller(cls, run: Any) -> Any:
            with lock:
                cls.left -= 1
            if cls.left < 0:
                raise Killed
            return super().open_controller(run)

    for _ in range(2):
        Dying.left = 2
        with pytest.raises(Killed):
            train(tmp_path / "killed", wanted, trial_class=Dying, parts=1)
    assert len(list((tmp_path / "killed").glob("checkpoints/side-by-side/results/*"))) == 4
    opened = Descent.opened
    assert told(train(tmp_path / "killed", wanted)) == told(straight)
    assert Descent.opened == opened + (len(straight) if searcher is RANDOM else 12) - 4


def test_a_trial_that_fails_takes_no_other_with_it_and_gets_another_try(tmp_path: Path) -> None:
    class Failing(Descent):
        failures = 0

        @classmethod
        def open_controller(cls, run: Any) -> Any:
            if run.trial_id == 2 and cls.failures < 2:
                cls.failures += 1
                raise OSError("the disk is away")
            return super().open_controller(run)

    wanted = settings(RANDOM, max_restarts=1)
    trials = train(tmp_path, wanted, trial_class=Failing)
    errors = [trial.error for trial in trials]
    assert errors == [None, "OSError: the disk is away", None, None, None]
    assert [trial.progress.batches for trial in trials] == [4, 0, 4, 4, 4]
    assert [trial.error for trial in train(tmp_path, wanted, trial_class=Failing)] == [None] * 5


def test_another_run_with_the_same_checkpoints_is_refused(tmp_path: Path) -> None:
    queue = Queue(make_search(settings(RANDOM), {}))
    with Office(str(tmp_path)) as office:
        first = contextlib.ExitStack()
        with pytest.raises(Killed), first:
            first.enter_context(office.giving_out(queue, 1))
            with pytest.raises(ConfigurationError, match="Another run"):
                first.enter_context(Office(str(tmp_path)).giving_out(queue, 1))
            raise Killed


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
    wanted = dataclasses.replace(
        settings({**RANDOM, "max_concurrent_trials": at_once}), slots=slots
    )
    addresses = [f"host:{number}" for number in range(workers)]
    found = []
    for rank in range(workers):
        task = {"type": "worker", "index": rank}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        monkeypatch.setenv("TF_CONFIG", config)
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
