"""`tf1` and `tf.contrib`: names, and a program of their time that runs with its imports changed."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator import tf1, v1
from generic_trainer.trials import experiment
from generic_trainer.trials._scripts.loading import load
from generic_trainer.trials.experiment import contrib
from tests.trials.conftest import ported, run_module_file

FILES = Path(__file__).with_name("written_for_contrib")


def test_names_of_tensorflow_1():
    assert tf1.estimator is v1
    assert tf1.placeholder is tf.compat.v1.placeholder
    assert tf1.data.Dataset is tf.compat.v1.data.Dataset
    assert tf1.contrib is contrib
    assert tf1.logging.INFO is tf.compat.v1.logging.INFO
    assert callable(tf1.app.run)
    assert callable(tf1.layers.dense)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learn.Experiment", experiment.Experiment),
        ("learn.ModeKeys", experiment.ModeKeys),
        ("learn.RunConfig", experiment.RunConfig),
        ("learn.learn_runner", experiment.learn_runner),
        ("learn.make_export_strategy", experiment.make_export_strategy),
        ("learn.DNNClassifier", v1.DNNClassifier),
        ("training.HParams", experiment.HParams),
        ("data.Dataset", tf.compat.v1.data.Dataset),
        ("data.map_and_batch", tf.compat.v1.data.experimental.map_and_batch),
        ("framework.get_global_step", tf.compat.v1.train.get_global_step),
        ("framework.nest", tf.compat.v1.nest),
    ],
)
def test_names_of_contrib(name, meant):
    part, _, name = name.partition(".")
    assert getattr(getattr(tf1.contrib, part), name) is meant


def test_names_of_slim():
    pytest.importorskip("tf_slim", reason="tf.contrib.training is tf_slim's")
    from tf_slim.training.training import create_train_op

    assert tf1.contrib.training.create_train_op is create_train_op
    assert callable(tf1.contrib.training.evaluate_repeatedly)


def test_names_that_contrib_has_not(monkeypatch):
    with pytest.raises(AttributeError, match=r"tf\.contrib\.learn\.Experimentt is not in"):
        _ = tf1.contrib.learn.Experimentt
    with pytest.raises(
        AttributeError, match=r"tf\.contrib\.tpu is not available here; available are data"
    ):
        _ = tf1.contrib.tpu
    monkeypatch.setitem(sys.modules, "tf_slim", None)
    with pytest.raises(ConfigurationError, match="pip install tf_slim"):
        _ = tf1.contrib.slim.conv2d


def test_shapes_are_those_of_the_program(tmp_path):
    found = []

    def model_fn(features, labels, mode):
        found.append(features.shape[1])
        step = tf1.train.get_or_create_global_step()
        return v1.EstimatorSpec(mode, loss=tf1.constant(0.0), train_op=tf1.assign_add(step, 1))

    def input_fn():
        return tf.data.Dataset.from_tensors((tf.ones([2, 3]), tf.ones([2])))

    v1.Estimator(model_fn, str(tmp_path)).train(input_fn, steps=1)
    assert found[0].value == 3
    assert isinstance(tf.TensorShape([1])[0], int)  # as it was


def test_a_program_of_the_blog_as_a_script(tmp_path):
    pytest.importorskip("tf_slim", reason="tf.contrib.slim is tf_slim's")
    path = str(ported(FILES / "numerals.py", tmp_path))
    load(
        lambda: runpy.run_path(path, run_name="__main__"),
        [path, f"--logs={tmp_path / 'logs'}", "--steps=30"],
    )
    assert tf.train.latest_checkpoint(str(tmp_path / "logs")).endswith("-30")


@pytest.mark.slow
def test_a_program_of_the_blog_as_a_module_file(tmp_path):
    pytest.importorskip("tf_slim", reason="tf.contrib.slim is tf_slim's")
    config = {"steps": 90, "rate": 0.01}
    fn_args = run_module_file(ported(FILES / "numerals.py", tmp_path), custom_config=config)
    assert tf.train.latest_checkpoint(fn_args.model_run_dir).endswith("-90")
    served = tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]
    assert served(features=tf.zeros([2, 8, 8, 1]))["output"].shape == [2]
