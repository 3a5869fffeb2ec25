"""Scripts that train by `init` are module files of a pipeline, with their import lines changed."""

import runpy
from pathlib import Path

import pytest
import tensorflow as tf
from absl import flags

from generic_trainer._entry_points import may_define
from generic_trainer.errors import ModuleFileError
from generic_trainer.trials._scripts.loading import load
from generic_trainer.user_code import bundle_module_file
from tests.trials.conftest import ported, run_module_file, trials_of

FILES = Path(__file__).with_name("written_for_determined")


def test_a_keras_script_of_release_0_12(tmp_path):
    fn_args = run_module_file(
        ported(FILES / "xor_keras.py", tmp_path),
        custom_config={"hyperparameters": {"hidden": 6, "rate": 0.5, "global_batch_size": 4}},
    )
    [trial] = trials_of(fn_args)
    assert (trial["batches"], trial["hparams"]["hidden"]) == (200, 6)
    assert trial["history"][-1]["validation"]["val_accuracy"] == 1
    assert tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]


def test_an_estimator_script_of_release_0_13(tmp_path):
    fn_args = run_module_file(ported(FILES / "xor_estimator.py", tmp_path), custom_config=None)
    [trial] = trials_of(fn_args)
    assert (trial["batches"], trial["best"]) == (150, 1)
    serve = tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]
    corners = tf.constant([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert serve(x=corners)["odd"].numpy().tolist() == [0, 1, 1, 0]


def test_a_keras_script_that_stops_early(tmp_path):
    fn_args = run_module_file(ported(FILES / "line_keras.py", tmp_path), custom_config=None)
    [trial] = trials_of(fn_args)
    assert trial["batches"] == 15  # the first validation, and two that are no better


def test_an_estimator_script_of_release_0_12(tmp_path):
    fn_args = run_module_file(ported(FILES / "line_estimator.py", tmp_path), custom_config=None)
    [trial] = trials_of(fn_args)
    assert trial["batches"] == 30
    assert trial["best"] < 0.1


@pytest.mark.parametrize(
    "names", ["'line_of_test', 1, ''", "'line_of_test', 1, '', short_name='l9'"]
)
def test_each_trial_defines_the_flags_of_its_script_anew(tmp_path, names):
    script = tmp_path / "flags.py"
    for default in (1, 2):
        defining = f"flags.DEFINE_integer({names})".replace("1", str(default), 1)
        script.write_text(f"from absl import flags\n{defining}\n")
        load(lambda: runpy.run_path(str(script), run_name="__main__"), [str(script)])
        assert flags.FLAGS["line_of_test"].value == default


def test_a_script_that_starts_nothing(tmp_path):
    path = tmp_path / "idle.py"
    path.write_text("from generic_trainer.trials import keras\nif False:\n    keras.init()\n")
    with pytest.raises(ModuleFileError, match=r"idle.py ended without training: expected a call"):
        run_module_file(path, custom_config=None)


@pytest.mark.parametrize(
    "start",
    [
        "from generic_trainer.trials.keras import init as keras_init\nkeras_init({})",
        "import generic_trainer.trials.keras as det\ndet.init({})",
        "from generic_trainer.trials import experimental as e\ne.create(None, {})",
        "from generic_trainer.trials.experiment.learn_runner import run\nrun(None)",
        "from generic_trainer.trials.experiment import learn_runner as runner\nrunner.run(None)",
        "from generic_trainer.estimator import tf1 as tf\ntf.contrib.learn.learn_runner.run(None)",
    ],
)
def test_a_script_may_import_under_other_names(tmp_path, start):
    path = tmp_path / "script.py"
    path.write_text(start)
    code = bundle_module_file(str(path), str(tmp_path / "bundle"), may_define=may_define)
    assert code.module == "script"
