"""Trials and estimators on several workers: each is a slot, and they end as one does."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generic_trainer.launchers import Job
from tests.launchers import jobs
from tests.launchers.jobs import Run, runner
from tests.trials import slots
from tests.trials.descent import RATE

TRIALS = {
    "Keras": slots.KERAS,
    "arrays": slots.ARRAYS,
    "TensorFlow": slots.GRAPH,
    "estimator": slots.ESTIMATOR_TRIAL,
    "PEDL": slots.PEDL,
    "step of Keras 2": slots.STEP,
}


@pytest.fixture
def run(examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in so many child processes."""

    def run(
        source: str, size: int, config: Any = slots.CONFIG, root: str = "", **fields: Any
    ) -> Job:
        launched = runner(tmp_path / f"{size}{root}", examples, "local", custom_config=config)
        return launched(source, num_workers=size, **fields)

    return run


def told(job: Job, start: str) -> list[str]:
    """Returns the rest of each worker's lines that start so."""
    return sorted(re.findall(rf"^(?:\[.+?\] )?{start} (.*)$", jobs.log(job), re.MULTILINE))


def trials(job: Job) -> list[dict[str, Any]]:
    return json.loads(Path(job.request.model_run_dir, "trials.json").read_text())


def history(job: Job) -> list[dict[str, Any]]:
    [trial] = trials(job)
    return trial["history"]


def assert_alike(actual: Job, expected: Job) -> None:
    pairs = list(zip(history(actual), history(expected), strict=True))
    assert len(pairs) == 4
    for one, other in pairs:
        assert one.keys() == other.keys()
        for kind in one.keys() - {"batches"}:
            assert one[kind].keys() == other[kind].keys()
            for name, value in other[kind].items():
                np.testing.assert_allclose(one[kind][name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("Keras", 2),
        ("TensorFlow", 2),
        pytest.param("PEDL", 2, marks=pytest.mark.campaign("launchers", "training", "trials")),
        pytest.param(
            *("step of Keras 2", 2), marks=pytest.mark.campaign("launchers", "training", "trials")
        ),
        pytest.param("arrays", 4, marks=pytest.mark.campaign("launchers", "training", "trials")),
        pytest.param("estimator", 2, marks=pytest.mark.campaign("launchers", "training", "trials")),
    ],
)
def test_several_slots_train_as_one(run: Run, kind: str, size: int) -> None:
    fields = {"env": {"TF_USE_LEGACY_KERAS": "1"}} if kind == "step of Keras 2" else {}
    job = run(TRIALS[kind], size, **fields)
    if kind in ("Keras", "arrays", "estimator"):  # which have a context
        assert {*told(job, "place:")} == {f"{rank} {size} {rank} 1" for rank in range(size)}
        assert {*told(job, "checkpoint:")} == {"True"}
    if kind == "estimator":
        assert {*told(job, "slots:")} == {"2"}
    assert jobs.exported(job) == ["Format-Serving"]
    alone = run(TRIALS[kind], 1, **fields)
    assert_alike(job, alone)
    assert told(job, "checkpoint:") == told(alone, "checkpoint:")  # of one of the workers
    for line in ("batch:", "outside:"):  # what callbacks are told, and compute outside of steps
        assert {*told(job, line)} == {*told(alone, line)}


@pytest.mark.campaign("launchers", "training", "trials")
def test_estimators_of_pedl_share_global_batches(run: Run) -> None:
    shared, alone = (history(run(slots.PEDL_ESTIMATOR, size)) for size in (2, 1))
    for one, other in zip(shared, alone, strict=True):
        kind, name = ("training", "loss") if "training" in other else ("validation", "mae")
        np.testing.assert_allclose(one[kind][name], other[kind][name], rtol=1e-5)
        assert np.isfinite(one[kind]["loss"])  # also where a batch has a row for one of them


_SIDE_BY_SIDE = {
    "hyperparameters": {"global_batch_size": 8, "rate": RATE},
    "searcher": {
        **{"name": "random", "metric": "loss", "max_length": {"batches": 4}},
        **{"max_trials": 3, "max_concurrent_trials": 2},
    },
}


# Each worker says once that it is there; one of the two is killed in its trial, the first time.
_IN_PARTS = """
import os, signal
from pathlib import Path
from generic_trainer.trials import run_fn_from_trial
from tests.trials.descent import Descent

class Killed(Descent):
    @classmethod
    def open_controller(cls, run):
        print("place:", run.trial_id, run.workers, os.getpid(), flush=True)
        flag = Path(os.environ["KILLED"])
        if run.trial_id == 2 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().open_controller(run)

run_fn = run_fn_from_trial(Killed)
"""


@pytest.mark.campaign("launchers", "training", "trials")
def test_trials_side_by_side_survive_a_worker(run: Run, tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(Path(__file__).parents[3]), "KILLED": str(tmp_path / "killed")}
    job = run(_IN_PARTS, 2, _SIDE_BY_SIDE, env=env, max_failures=1)
    ended = [(trial["trial_id"], trial["batches"]) for trial in trials(job)]
    assert ended == [(1, 4), (2, 4), (3, 4)]
    processes = {place.split()[2] for place in told(job, "place:")}
    assert len(processes) > 2  # two, then two others
    assert {place.split()[1] for place in told(job, "place:")} == {"1"}
    assert jobs.exported(job) == ["Format-Serving"]


@pytest.mark.campaign("launchers", "training", "trials")
@pytest.mark.parametrize(("size", "start"), [(3, ""), (2, "tf1.disable_v2_behavior()")])
def test_estimators_train_as_one(run: Run, size: int, start: str) -> None:
    source = slots.TRAINER_FN.replace("def model_fn", f"{start}\n\ndef model_fn")
    job, alone = run(source, size), run(source, 1)
    weights = [json.loads(each) for each in told(job, "w:")]
    [expected] = [json.loads(each) for each in told(alone, "w:")]
    for where in ("read", "train"):
        in_training = [each for each in told(job, "told:") if each.startswith(f"{where} ")]
        assert in_training == [f"{where} worker False"] * (size - 1) + [f"{where} worker True"]
    assert all(each == weights[0] for each in weights)
    np.testing.assert_allclose(weights[0], expected, rtol=1e-5)
    assert jobs.exported(job) == ["Format-Serving"]


# What one of two workers does in its fourth batch.
_IN_THE_FOURTH = (
    slots.KERAS.replace("[Told()]", "[Told(), InTheFourth()]")
    + """
import os, signal
from generic_trainer.training import distributed

class InTheFourth(callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == 4 and distributed.rank() == 1:
            self.act()
"""
)


@pytest.mark.campaign("launchers", "training", "trials")
def test_all_slots_stop_where_one_wants_to(run: Run) -> None:
    stops = """
    def act(self):
        self.model.stop_training = True
"""
    job = run(_IN_THE_FOURTH + stops, 2)
    assert [entry["batches"] for entry in history(job)] == [5]
    assert told(job, "checkpoint:") == ["True"]


@pytest.mark.campaign("launchers", "training", "trials")
def test_a_trial_ends_the_same_when_a_worker_is_killed(run: Run, tmp_path: Path) -> None:
    kills = f"""
    def act(self):
        flag = {str(tmp_path / "killed")!r}
        if not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
"""
    config = {**slots.CONFIG, "min_checkpoint_period": {"batches": 2}}
    job = run(_IN_THE_FOURTH + kills, 2, config, max_failures=1)
    assert (tmp_path / "killed").exists()
    assert "goes on after 2 batches" in jobs.log(job)
    straight = run(_IN_THE_FOURTH + kills, 2, config, root="straight")
    assert history(job) == history(straight)
