"""Scripts that are tested here, on one batch."""

import json
import os
import tempfile

import pytest

from generic_trainer.estimator import tf
from generic_trainer.trials.estimator import EstimatorNativeContext, RunHook
from generic_trainer.trials.native import InvalidExperimentException, Mode, estimator, experimental
from tests.trials.estimator.one_weight import OneWeight
from tests.trials.native.script import CONFIG, train


class Notes(tf.compat.v1.train.SessionRunHook):
    def __init__(self):
        self.runs = 0

    def after_run(self, run_context, run_values):
        self.runs += 1


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((True, True), {}),
        ((Mode.LOCAL, "folder", ["script.py"], "http://head"), {}),
        ((), {"mode": "test"}),
        (("local", "folder"), {}),
        ((Mode.LOCAL,), {"context_dir": "folder"}),
    ],
)
def test_init_in_its_historical_forms(args, kwargs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    context = estimator.init(CONFIG, *args, **kwargs)
    assert isinstance(context, EstimatorNativeContext)
    assert context.serving_input_receiver_fns == {}
    assert context.get_hparam("rate") == 0.05
    is_given = "folder" in (*args, *kwargs.values())
    assert os.getcwd() == str(tmp_path / "folder" if is_given else tmp_path)


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
    first, *directories, last = calls
    assert (first, last, notes.runs) == ("train", "close", 2)
    assert directories
    assert not any(map(os.path.exists, directories))


def test_a_trial_is_trained_here(tmp_path):
    config = {**CONFIG, "checkpoint_storage": {"host_path": str(tmp_path)}}
    context = estimator.init(config, local=True)
    train(context)
    assert {"training", "validation"} <= {*os.listdir(context.get_tensorboard_path())}
    experimental.create(OneWeight, config, local=True, test=False)
    for folder in tmp_path.iterdir():
        [trial] = json.loads((folder / "model_run" / "trials.json").read_text())
        assert (trial["batches"], trial["hparams"]["rate"]) == (4, 0.05)
        assert (folder / "Format-Serving" / "saved_model.pb").exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_trial_is_built_in_the_context_directory(tmp_path):
    seen = []

    class Noted(OneWeight):
        def build_estimator(self):
            seen.append(os.getcwd())
            return super().build_estimator()

    before = os.getcwd()
    experimental.create(Noted, CONFIG, local=True, test=True, context_dir=str(tmp_path))
    assert (seen, os.getcwd()) == ([str(tmp_path)], before)
    with pytest.raises(InvalidExperimentException, match="must be the folder"):
        estimator.init(CONFIG, local=True, test=True, context_dir=str(tmp_path / "absent"))


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
    read = OneWeight(context).train_data
    train_spec = tf.estimator.TrainSpec(lambda: read().repeat(), max_steps=7, hooks=[hook])
    spec = tf.estimator.EvalSpec(read, steps=1)
    made = tf.estimator.LinearRegressor(
        [tf.feature_column.numeric_column("x")], model_dir=str(tmp_path)
    )
    context.train_and_evaluate(made, train_spec, spec)
    assert hook.runs == 7
