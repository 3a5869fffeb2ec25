"""Trials as users of PEDL wrote them, their import lines changed."""

import json
import textwrap
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.errors import ModuleFileError
from generic_trainer.trials._pedl import running
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.keras import TFKerasTrialContext, wrap_dataset
from tests.trials.conftest import ported, run_module_file
from tests.trials.keras.written_for_determined import pedl_digits
from tests.trials.tensorflow.written_for_pedl import digits, irises

HPARAMS = {"batch_size": 32, "learning_rate": 0.02}


def config(metric, batches, **fields):
    searcher = {"name": "single", "metric": metric, "max_steps": batches // 50}
    return {
        **{"batches_per_step": 50, "hyperparameters": HPARAMS, "min_validation_period": 1},
        **{"searcher": {**searcher, **fields}},
    }


def test_digits_count_over_a_validation_and_stop(run_experiment):
    digits.downloads.clear()
    wanted = config("accuracy", 250, smaller_is_better=False)
    [trial] = run_experiment(digits.DigitsTrial, wanted)
    assert len(digits.downloads) == 1
    assert trial["batches"] == 200  # asked to stop after 150
    for kind, value in (("training", 1.0), ("validation", 0.0)):
        found = [entry[kind] for entry in trial["history"] if kind in entry]
        assert {metrics["training"] for metrics in found} == {value}
    last = found[-1]
    # The last batch has 12 records: a mean over batches is another one than over records.
    assert last["accuracy"] == pytest.approx(round(last["accuracy"] * 300) / 300, abs=1e-6)
    assert last["accuracy"] != last["mean_accuracy"]
    assert trial["best"] > 0.85


def test_a_line(tmp_path, eager_again):
    hparams = {"batch_size": 4, "rate": 0.5}
    settings = {**config("loss", 50), "data": {"count": 8}, "hyperparameters": hparams}
    file = Path(__file__).with_name("written_for_pedl") / "line.py"
    fn_args = run_module_file(ported(file, tmp_path), custom_config=settings)
    [trial] = json.loads(Path(fn_args.model_run_dir, "trials.json").read_text())
    assert trial["history"][-1]["validation"]["slope"] == pytest.approx(2, abs=0.1)


def test_a_line_by_keras_whose_methods_take_hyperparameters(tmp_path):
    hparams = {"batch_size": 4, "rate": 0.5}
    settings = {**config("val_loss", 50), "hyperparameters": hparams}
    file = Path(__file__).with_name("written_for_pedl") / "keras_line.py"
    fn_args = run_module_file(ported(file, tmp_path), custom_config=settings)
    [trial] = json.loads(Path(fn_args.model_run_dir, "trials.json").read_text())
    assert trial["batches"] == 50
    assert trial["best"] < 1e-3


@pytest.mark.parametrize("wraps", [True, False])
def test_datasets_of_keras_trials_are_shared_out_once(monkeypatch, wraps):
    shares = []
    monkeypatch.setattr(TFKerasTrialContext, "share_of", lambda *args, shard: shares.append(shard))
    run = TrialRun(trial_id=1, config={}, hparams={"global_batch_size": 4}, seed=0)
    context = TFKerasTrialContext(run)
    running.set(context)
    data = tf.data.Dataset.range(4)
    if wraps:
        wrap_dataset(data)
        wrap_dataset(data)
    context.wrapped([data, data])
    assert shares == [True, True]


def test_a_trial_that_lacks_methods_is_named_with_the_import_that_has_them(tmp_path):
    source = """
        from generic_trainer.trials.keras import TFKerasTrial
        class LineTrial(TFKerasTrial):
            def build_model(self{}): ...
    """
    for arguments, remedy in ((", hparams", "KerasTrial as TFKerasTrial"), ("", "Define them")):
        path = tmp_path / f"module{len(arguments)}.py"
        path.write_text(textwrap.dedent(source).format(arguments))
        with pytest.raises(ModuleFileError, match=f"LineTrial has no build_training.*{remedy}"):
            run_module_file(path)


@pytest.mark.slow
def test_irises(run_experiment):
    hparams = {"smaller_is_better": False}
    [trial] = run_experiment(irises.IrisTrial, config("accuracy", 150, **hparams))
    assert trial["best"] > 0.8


@pytest.mark.parametrize("trial_class", [pedl_digits.DigitsTrial, pedl_digits.UncompiledTrial])
def test_keras_digits(run_experiment, trial_class):
    [trial] = run_experiment(trial_class, config("val_accuracy", 150, smaller_is_better=False))
    assert trial["best"] > 0.85
