"""`Experiment` and `learn_runner`, with an estimator of one weight."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import estimator
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.trials.experiment import (
    Experiment,
    HParams,
    RunConfig,
    learn_runner,
    run_fn_from_experiment,
)
from tests.trials.conftest import make_fn_args

tf1 = tf.compat.v1


def model_fn(features, labels, mode, params):
    """y = w x by gradient descent; labels are 2 x."""
    w = tf1.get_variable("w", [1, 1], initializer=tf1.zeros_initializer())
    outputs = features["x"] @ w
    predictions = {"outputs": outputs}
    if mode == estimator.ModeKeys.PREDICT:
        served = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(mode, predictions, export_outputs=served)
    loss = tf.reduce_mean(tf.square(outputs - labels))
    optimizer = tf1.train.GradientDescentOptimizer(params["rate"])
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn():
    x = np.array([[1.0], [2.0], [3.0]], np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)).repeat().batch(3)


def receiver_fn():
    x = tf1.placeholder(tf.float32, [None, 1], name="x")
    return estimator.export.ServingInputReceiver({"x": x}, {"x": x})


class Notes(tf1.train.SessionRunHook):
    """Counts sessions."""

    def __init__(self):
        self.sessions = 0

    def after_create_session(self, session, coord):
        self.sessions += 1


def make_experiment(run_config, hparams=None, **options):
    params = {"rate": hparams.rate if hparams else 0.05}
    model = estimator.Estimator(model_fn, config=run_config, params=params)
    arguments = {"train_steps": 40, "eval_steps": 2, **options}
    return Experiment(model, input_fn, input_fn, **arguments)


def config(folder: Path, every: int = 10) -> RunConfig:
    return RunConfig(model_dir=str(folder), save_checkpoints_steps=every, tf_random_seed=1)


def evaluations(folder: Path) -> list[int]:
    files = sorted((folder / "eval").glob("events*"))
    return [
        event.step
        for file in files
        for event in tf1.train.summary_iterator(str(file))
        if any(value.tag == "loss" for value in event.summary.value)
    ]


@pytest.mark.parametrize(
    ("frequency", "steps"), [(None, [40]), (0, [40]), (1, [10, 20, 30, 40]), (15, [20, 40])]
)
def test_evaluations_follow_checkpoints_and_their_frequency(tmp_path, frequency, steps):
    experiment = make_experiment(config(tmp_path), min_eval_frequency=frequency)
    metrics, exported = experiment.train_and_evaluate()
    assert evaluations(tmp_path) == steps
    assert (metrics["global_step"], exported) == (40, [])


def test_the_loss_is_the_one_computed_by_hand(tmp_path):
    metrics, _ = make_experiment(config(tmp_path), train_steps=5).train_and_evaluate()
    w = 0.0
    for _ in range(5):
        w -= 0.05 * 2 * np.mean([(w - 2) * x**2 for x in (1, 2, 3)])
    by_hand = np.mean([((w - 2) * x) ** 2 for x in (1, 2, 3)])
    assert metrics["loss"] == pytest.approx(by_hand, rel=1e-5)


def test_hooks_are_called_in_training_and_in_evaluation(tmp_path):
    monitor, hook, in_evaluation = Notes(), Notes(), Notes()
    experiment = make_experiment(
        config(tmp_path), train_monitors=[monitor], train_hooks=[hook], eval_hooks=[in_evaluation]
    )
    late = Notes()
    experiment.extend_train_hooks([late])
    experiment.train_and_evaluate()
    assert [notes.sessions for notes in (monitor, hook, late, in_evaluation)] == [1, 1, 1, 1]


def test_evaluate_waits_for_a_first_checkpoint(tmp_path):
    waits: list[float] = []
    experiment = make_experiment(config(tmp_path), eval_delay_secs=7, sleep=waits.append)
    experiment.train()
    experiment.evaluate()
    experiment.evaluate(delay_secs=0)
    assert waits == [0, 7, 0]


def test_continuous_eval_ends_with_the_last_checkpoint(tmp_path):
    experiment = make_experiment(config(tmp_path), sleep=lambda _: None)
    experiment.train()
    assert experiment.continuous_eval()["global_step"] == 40
    assert evaluations(tmp_path) == [40]


def test_continuous_eval_waits_for_the_next_checkpoint(tmp_path):
    def more(_):
        experiment.estimator.train(input_fn, steps=20)

    experiment = make_experiment(config(tmp_path, every=100), eval_delay_secs=0, sleep=more)
    experiment.continuous_eval(throttle_delay_secs=60)
    assert evaluations(tmp_path)[-1] >= 40
    assert len(evaluations(tmp_path)) > 1


def test_the_test_schedule_takes_one_batch(tmp_path):
    metrics, _ = learn_runner.run(make_experiment, run_config=config(tmp_path), schedule="test")
    assert metrics["global_step"] == 1


def test_experiment_fn_in_its_historical_forms(tmp_path):
    made = []

    def with_both(run_config, hparams):
        made.append(hparams.rate)
        return make_experiment(run_config, hparams)

    def with_directory(output_dir):
        made.append(output_dir)
        return make_experiment(config(output_dir))

    def with_configuration(run_config):
        made.append(run_config.model_dir)
        return make_experiment(run_config)

    directory = str(tmp_path)
    learn_runner.run(with_both, config(tmp_path), "test", hparams=HParams(rate=0.01))
    learn_runner.run(with_directory, directory, "test")
    learn_runner.run(with_configuration, run_config=config(tmp_path), schedule="test")
    assert made == [0.01, directory, directory]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": "test"}, "needs one of"),
        ({"output_dir": "a", "run_config": RunConfig(model_dir="a")}, "needs one of"),
        ({"run_config": RunConfig()}, "must have a model_dir"),
        ({"output_dir": "a", "schedule": "fit"}, "schedule must be one of"),
    ],
)
def test_wrong_calls(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        learn_runner.run(lambda *_: make_experiment(config("a")), **arguments)


def test_an_experiment_takes_an_estimator(tmp_path):
    with pytest.raises(ConfigurationError, match="takes an Estimator"):
        Experiment(object(), input_fn, input_fn)
    with pytest.raises(ConfigurationError, match="eval_metric_ops"):
        make_experiment(config(tmp_path), eval_metrics={})
    with pytest.raises(ConfigurationError, match="must return an Experiment"):
        learn_runner.run(lambda _: None, output_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("task", "schedule"), [("worker", "train"), ("evaluator", "continuous_eval")]
)
def test_the_schedule_follows_the_task(monkeypatch, tmp_path, task, schedule):
    called = []
    for name in ("train", "continuous_eval", "train_and_evaluate"):
        monkeypatch.setattr(Experiment, name, lambda self, name=name: called.append(name))
    experiment = make_experiment(config(tmp_path))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": task, "index": 0}}))
    learn_runner.run(lambda _: experiment, output_dir=str(tmp_path))
    monkeypatch.delenv("TF_CONFIG")
    learn_runner.run(lambda _: experiment, output_dir=str(tmp_path))
    assert called == [schedule, "train_and_evaluate"]


def test_run_fn_publishes_the_export(tmp_path):
    rates = []

    def experiment_fn(run_config, hparams):
        rates.append(hparams.rate)
        exporter = estimator.FinalExporter("weight", receiver_fn)
        return make_experiment(run_config, hparams, export_strategies=exporter)

    fn_args = make_fn_args(
        tmp_path,
        custom_config={"rate": 0.01, "unrelated": 1},
        hyperparameters={"values": {"rate": 0.05}},
    )
    run_fn_from_experiment(experiment_fn, HParams(rate=0.1))(fn_args)
    serve = tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]
    assert serve(x=tf.constant([[1.0]]))["outputs"].numpy() == pytest.approx(2.0, abs=0.05)
    assert rates == [0.05]


def test_run_fn_needs_something_to_publish(tmp_path):
    with pytest.raises(ExportError, match=r"export_strategies=\[estimator.FinalExporter"):
        run_fn_from_experiment(lambda run_config: make_experiment(run_config, train_steps=1))(
            make_fn_args(tmp_path, custom_config=None)
        )
