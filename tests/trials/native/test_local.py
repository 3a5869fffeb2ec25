"""Scripts that are tested here, on one batch."""

from __future__ import annotations

import os
import tempfile

import pytest

import generic_trainer.trials as det
from generic_trainer.estimator import tf
from generic_trainer.trials.estimator import EstimatorNativeContext, RunHook
from generic_trainer.trials.native import Mode, estimator, experimental
from tests.trials.estimator.one_weight import OneWeight
from tests.trials.native.script import CONFIG, examples, train


class Notes(tf.compat.v1.train.SessionRunHook):
    def __init__(self):
        self.runs = 0

    def after_run(self, run_context, run_values):
        self.runs += 1


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"local": True, "test": True}),
        ((True, True), {}),
        ((Mode.LOCAL,), {}),
        ((Mode.LOCAL, "folder", ["script.py"], "http://head"), {}),
        ((), {"mode": Mode.LOCAL}),
        ((), {"mode": Mode("test")}),
        ((), {"mode": "test"}),
        (("local", "folder"), {}),
        ((Mode.LOCAL,), {"context_dir": "folder"}),
    ],
)
def test_init_in_its_historical_forms(args, kwargs):
    context = estimator.init(CONFIG, *args, **kwargs)
    assert isinstance(context, EstimatorNativeContext)
    assert context.serving_input_receiver_fns == {}
    assert context.get_hparam("rate") == 0.05


def test_one_batch_and_one_pass(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    calls = []

    class Saved(RunHook):
        def after_run(self, run_context, run_values):
            calls.append("train")

        def on_checkpoint_end(self, checkpoint_dir):
            calls.append(checkpoint_dir)
            assert "checkpoint" in os.listdir(checkpoint_dir)

        def on_trial_close(self):
            calls.append("close")

    context = estimator.init(CONFIG, local=True, test=True)
    notes = Notes()
    original = context.train_and_evaluate

    def with_hooks(made, train_spec, eval_spec):
        train_spec = train_spec._replace(hooks=[Saved()])
        return original(made, train_spec, eval_spec._replace(hooks=[notes]))

    context.train_and_evaluate = with_hooks
    assert train(context) is None
    first, directory, last = calls
    assert (first, last, notes.runs) == ("train", "close", 3)
    assert not os.path.exists(directory)


def test_init_native_makes_a_context_of_the_class():
    class Mine(EstimatorNativeContext):
        pass

    context = experimental.init_native(None, Mine, CONFIG, local=True, test=True)
    assert isinstance(context, Mine)
    assert isinstance(context, det.NativeContext)
    assert context.env.hparams == {"global_batch_size": 1, "rate": 0.05}


def test_a_whole_run_is_not_done_here():
    with pytest.raises(NotImplementedError, match="local=True, test=True"):
        estimator.init(CONFIG, local=True)
    with pytest.raises(NotImplementedError):
        experimental.create(OneWeight, CONFIG, local=True, test=False)


def test_ranges_are_drawn_with_the_seed():
    def drawn(seed):
        ranges = {
            "global_batch_size": det.Constant(8),
            "layers": det.Integer(1, 1000),
            "rate": det.Log(-4, -1, base=10),
            "dropout": det.Double(0.2, 0.8),
            "kind": det.Categorical(["a", "b"]),
        }
        config = {"hyperparameters": ranges, "reproducibility": {"experiment_seed": seed}}
        return estimator.init(config, local=True, test=True).get_hparams()

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1)["global_batch_size"] == 8
    assert 1e-4 <= drawn(1)["rate"] <= 1e-1


def test_what_a_local_run_ignores():
    ignored = {
        "resources": {"slots_per_trial": 16},
        "optimizations": {"mixed_precision": "O1"},
        "bind_mounts": [{}],
        "checkpoint_storage": {"type": "unknown"},
        "environment": {"image": "x"},
    }
    context = estimator.init({**CONFIG, **ignored}, local=True, test=True)
    config = context.get_experiment_config()
    assert context.distributed.get_size() == 1
    assert config["scheduling_unit"] == 1
    assert config["resources"]["slots_per_trial"] == 1
    assert not {"bind_mounts", "checkpoint_storage", "environment"} & config.keys()


def test_create_trains_one_batch_of_a_trial():
    runs = []

    class Noted(OneWeight):
        def train_hooks(self):
            class Hook(RunHook):
                def after_run(self, run_context, run_values):
                    runs.append(1)

            return [Hook()]

    assert experimental.create(Noted, CONFIG, local=True, test=True) is None
    assert experimental.create(Noted, CONFIG, Mode.LOCAL) is None
    assert len(runs) == 2


def test_a_trial_to_call_by_hand(tmp_path):
    trial = experimental.create_trial_instance(OneWeight, str(tmp_path), CONFIG)
    assert trial.context.get_hparam("rate") == 0.05
    assert trial.build_validation_spec().steps is None
    other = experimental.create_trial_instance(
        OneWeight, str(tmp_path), CONFIG, hparams={"global_batch_size": 2, "rate": 1.0}
    )
    assert other.context.get_hparams() == {"global_batch_size": 2, "rate": 1.0}


def test_a_context_without_a_harness_trains_as_tensorflow_does(tmp_path):
    context = EstimatorNativeContext.from_config(CONFIG)
    hook = Notes()
    train_spec = tf.estimator.TrainSpec(lambda: examples().repeat(), max_steps=7, hooks=[hook])
    spec = tf.estimator.EvalSpec(examples, steps=1)
    made = tf.estimator.LinearRegressor(
        [tf.feature_column.numeric_column("x")], model_dir=str(tmp_path)
    )
    context.train_and_evaluate(made, train_spec, spec)
    assert hook.runs == 7
