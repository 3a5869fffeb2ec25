"""When hooks are called, and what they can stop."""

from pathlib import Path

import pytest

from generic_trainer.estimator import tf
from generic_trainer.trials.estimator import RunHook
from tests.trials.by_hand import config
from tests.trials.estimator.one_weight import OneWeight


class Notes(RunHook):
    """Writes down what it is told, into a list that it shares with others."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def note(self, what):
        self.calls.append(f"{self.name} {what}")

    def begin(self):
        self.note("begin")

    def after_create_session(self, session, coord):
        self.note("session")

    def after_run(self, run_context, run_values):
        self.note("run")

    def end(self, session):
        self.note("end")

    def on_checkpoint_load(self, checkpoint_dir):
        self.note(f"load {Path(checkpoint_dir).name}")

    def on_checkpoint_end(self, checkpoint_dir):
        assert (Path(checkpoint_dir) / "checkpoint").exists()
        assert list((Path(checkpoint_dir) / "plain").glob("*/saved_model.pb"))
        self.note(f"saved {Path(checkpoint_dir).name}")

    def on_trial_close(self):
        self.note("close")


class StopsAt(tf.compat.v1.train.SessionRunHook):
    """Asks to stop in every run from the n-th on."""

    def __init__(self, runs):
        self.runs_left = runs

    def after_run(self, run_context, run_values):
        self.runs_left -= 1
        if self.runs_left <= 0:
            run_context.request_stop()


def with_hooks(*train_hooks, eval_hooks=()):
    class Hooked(OneWeight):
        def train_hooks(self):
            return list(train_hooks)

        def build_validation_spec(self):
            spec = super().build_validation_spec()
            return tf.estimator.EvalSpec(spec.input_fn, steps=None, hooks=list(eval_hooks))

    return Hooked


def test_hooks_are_called_in_their_order(open_trial, tmp_path):
    calls = []
    trial = open_trial(with_hooks(Notes("a", calls), Notes("b", calls)))
    trial.train(2)
    trial.save(str(tmp_path))
    trial.validate()
    trial.close()
    name = tmp_path.name
    assert calls == [
        *("a begin", "b begin", "a session", "b session"),
        *("a run", "b run", "a run", "b run"),
        *(f"a saved {name}", f"b saved {name}"),
        *("a end", "b end"),
        *("a close", "b close"),
    ]


def test_a_resumed_trial_loads_once_before_it_trains(open_trial, tmp_path):
    calls = []
    first = open_trial()
    first.train(1)
    first.save(str(tmp_path))
    trial = open_trial(
        with_hooks(Notes("a", calls)), batches_trained=1, checkpoint_dir=str(tmp_path)
    )
    trial.validate()
    trial.train(1)
    trial.train(1)
    assert calls == [f"a load {tmp_path.name}", "a begin", "a session", "a run", "a run"]


class HandsOver(RunHook):
    """Hands the batches since the last checkpoint over to each checkpoint."""

    def __init__(self):
        self.since = 0

    def after_run(self, run_context, run_values):
        self.since += 1

    def on_checkpoint_end(self, checkpoint_dir):
        (Path(checkpoint_dir) / "since").write_text(str(self.since))
        self.since = 0


def test_the_latest_and_the_best_checkpoint_of_a_step_have_the_same_files(run_experiment, tmp_path):
    every = {"min_validation_period": {"batches": 3}, "scheduling_unit": 3}
    run_experiment(with_hooks(HandsOver()), config(9, metric="error", **every))
    files = sorted((tmp_path / "checkpoints" / "trial-1").glob("*/step-*/since"))
    kept = [(path.parts[-3], path.parts[-2].partition(".")[0], path.read_text()) for path in files]
    assert [(kind, int(step.removeprefix("step-")), since) for kind, step, since in kept] == [
        ("best", 9, "3"),
        ("latest", 6, "3"),
        ("latest", 9, "3"),
    ]


def test_hooks_are_closed_when_training_fails(open_trial):
    class Fails(Notes):
        def after_run(self, run_context, run_values):
            raise RuntimeError("no more")

    calls = []
    trial = open_trial(with_hooks(Fails("a", calls)))
    with pytest.raises(RuntimeError, match="no more"):
        trial.train(3)
    trial.close()
    assert calls[-1] == "a close"


def test_a_stop_is_taken_note_of_after_the_whole_workload(run_experiment):
    [trial] = run_experiment(with_hooks(StopsAt(7)), config(50, scheduling_unit=5))
    assert trial["batches"] == 10
    assert not [entry for entry in trial["history"] if "validation" in entry]


def test_an_evaluation_hook_can_stop_the_trial(open_trial):
    trial = open_trial(with_hooks(eval_hooks=[StopsAt(1)]))
    metrics = trial.validate()
    assert metrics["error"] == pytest.approx(4)  # of all three records nevertheless
    assert trial.stop_requested


def test_a_hook_of_the_model_function_ends_training_at_once(run_experiment):
    class Stops(OneWeight):
        def model_fn(self, features, labels, mode):
            spec = super().model_fn(features, labels, mode)
            return spec._replace(training_hooks=[StopsAt(3)])

    [trial] = run_experiment(Stops, config(50, perform_initial_validation=True))
    assert trial["history"][-1]["training"]["loss"] == pytest.approx((4 + 10.24 + 0.9216) / 3)
    assert [next(iter(entry.keys() - {"batches"})) for entry in trial["history"]] == [
        "validation",
        "training",
    ]
