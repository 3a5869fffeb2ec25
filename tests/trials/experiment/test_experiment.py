"""`Experiment` and `learn_runner`, with an estimator of one weight."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import estimator
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.trials import get_pipeline
from generic_trainer.trials.experiment import (
    Experiment,
    ExportStrategy,
    HParams,
    MetricSpec,
    RunConfig,
    learn_runner,
    make_export_strategy,
    run_fn_from_experiment,
)
from tests.processes import tf_config
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
    return estimator.EstimatorSpec(mode, predictions, loss, train_op)


def input_fn():
    x = np.array([[1.0], [2.0], [3.0]], np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)).repeat().batch(3)


def receiver_fn():
    x = tf1.placeholder(tf.float32, [None, 1], name="x")
    return estimator.export.ServingInputReceiver({"x": x}, {"x": x})


class Notes(tf1.train.SessionRunHook):
    """Counts sessions."""

    sessions = 0

    def after_create_session(self, session, coord):
        self.sessions += 1


def make_experiment(run_config, hparams=None, **options):
    params = {"rate": hparams.rate if hparams else 0.05}
    model = estimator.Estimator(model_fn, config=run_config, params=params)
    arguments = {"train_steps": 40, "eval_steps": 2, **options}
    return Experiment(model, input_fn, input_fn, **arguments)


def config(folder: Path, every: int = 10) -> RunConfig:
    return RunConfig(model_dir=str(folder), save_checkpoints_steps=every, tf_random_seed=1)


def evaluations(folder: Path, name: str = "eval") -> list[int]:
    files = sorted((folder / name).glob("events*"))
    return [
        event.step
        for file in files
        for event in tf1.train.summary_iterator(str(file))
        if any(value.tag == "loss" for value in event.summary.value)
    ]


@pytest.mark.parametrize(
    ("method", "options", "steps"),
    [
        ("train_and_evaluate", {}, [10, 20, 30, 40]),
        ("train_and_evaluate", {"min_eval_frequency": 0}, [40]),
        ("train_and_evaluate", {"min_eval_frequency": 15}, [20, 40]),
        ("local_run", {}, [40]),
        ("local_run", {"local_eval_frequency": 1, "check_interval_secs": 1e6}, [10, 40]),
    ],
)
def test_evaluations_follow_checkpoints_and_their_frequency(tmp_path, method, options, steps):
    metrics, exported = getattr(make_experiment(config(tmp_path), **options), method)()
    assert evaluations(tmp_path) == steps
    assert (metrics["global_step"], exported) == (40, [])


def test_hooks_are_called_in_training_and_in_evaluation(tmp_path):
    hooks = monitor, hook, late, in_evaluation = [Notes() for _ in range(4)]
    options = {"train_monitors": [monitor], "train_hooks": [hook], "eval_hooks": [in_evaluation]}
    experiment = make_experiment(config(tmp_path, every=100), **options)
    experiment.extend_train_hooks([late])
    experiment.train_and_evaluate()
    assert [notes.sessions for notes in hooks] == [1, 1, 1, 1]


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
    assert evaluations(tmp_path, "eval_continuous") == [40]
    assert experiment.continuous_eval_on_train_data()["global_step"] == 40
    assert evaluations(tmp_path, "eval_continuous_on_train_data") == [40]


def test_continuous_eval_waits_for_the_next_checkpoint(tmp_path):
    def more(_):
        experiment.estimator.train(input_fn, steps=20)

    experiment = make_experiment(config(tmp_path, every=100), eval_delay_secs=0, sleep=more)
    experiment.continuous_eval(throttle_delay_secs=60)
    assert evaluations(tmp_path, "eval_continuous") == [20, 40]


def test_continuous_eval_exports_the_checkpoint_that_it_has_evaluated(tmp_path, monkeypatch):
    """As an evaluator does while the chief goes on training."""
    asked, exported = [], []
    trainer = make_experiment(config(tmp_path)).estimator
    trainer.train(input_fn, steps=10)
    monkeypatch.setenv("TF_CONFIG", tf_config("evaluator", chief=1, worker=1, ps=1))

    class Goes(tf1.train.SessionRunHook):
        def end(self, session):
            trainer.train(input_fn, max_steps=20)

    def go_on(metrics, checkpoint_path):
        asked.append((metrics and metrics["global_step"], checkpoint_path))
        return True

    def export_fn(estimator, export_path, checkpoint_path, eval_result):
        exported.append((eval_result["global_step"], checkpoint_path))

    strategies = [ExportStrategy("each", export_fn)]
    options = {"export_strategies": strategies, "eval_hooks": [Goes()], "train_steps": 20}
    experiment = make_experiment(config(tmp_path), sleep=lambda _: None, **options)
    experiment.continuous_eval(continuous_eval_predicate_fn=go_on)
    path = str(tmp_path / "model.ckpt-")
    assert exported == [(10, f"{path}10"), (20, f"{path}20")]
    assert asked == [(None, None), *exported]


def test_continuous_eval_pauses_after_each_evaluation(tmp_path):
    waits, asked = [], []
    experiment = make_experiment(config(tmp_path), train_steps=80, sleep=waits.append)
    experiment.estimator.train(input_fn, steps=20)
    experiment.continuous_eval(
        delay_secs=0,
        throttle_delay_secs=1e6,
        evaluate_checkpoint_only_once=False,
        continuous_eval_predicate_fn=lambda metrics: asked.append(metrics) or len(asked) < 4,
    )
    first, *pauses = waits
    assert (first, len(pauses)) == (0, 2)  # between three evaluations
    assert all(0 < pause <= 1e6 for pause in pauses)


def test_training_and_evaluation_in_turns(tmp_path):
    asked = []

    def go_on(metrics, checkpoint_path):
        asked.append((metrics and metrics["global_step"], checkpoint_path))
        return len(asked) < 3

    experiment = make_experiment(config(tmp_path), train_steps_per_iteration=15)
    metrics, exported = experiment.continuous_train_and_eval(go_on)
    path = str(tmp_path / "model.ckpt-")
    assert asked == [(None, None), (15, f"{path}15"), (30, f"{path}30")]
    assert (metrics["global_step"], exported) == (30, [])
    metrics, _ = make_experiment(config(tmp_path), train_steps=20).continuous_train_and_eval()
    assert metrics["global_step"] == 32  # a tenth of train_steps, and there are enough


def test_each_checkpoint_is_exported(tmp_path):
    exported, saves = [], []

    def export_fn(estimator, export_path, checkpoint_path, eval_result):
        exported.append((export_path, checkpoint_path, eval_result["global_step"]))
        return len(exported)

    class Listener(tf1.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saves.append(global_step_value)

    options = {"min_eval_frequency": 1000, "checkpoint_and_export": True, "train_steps": 20}
    options |= {"saving_listeners": [Listener()]}
    each = ExportStrategy("each", export_fn)
    experiment = make_experiment(config(tmp_path), export_strategies=each, **options)
    metrics, results = experiment.train_and_evaluate()
    folder, path = str(tmp_path / "export" / "each"), str(tmp_path / "model.ckpt-")
    assert exported == [(folder, f"{path}10", 10), (folder, f"{path}20", 20)]
    assert (metrics["global_step"], results, saves) == (20, [2], [0, 10, 20])


def test_export_strategies_are_replaced(tmp_path):
    servo = make_export_strategy(receiver_fn, exports_to_keep=1)
    experiment = make_experiment(config(tmp_path), export_strategies=[servo])
    experiment.test()
    experiment.test()
    [time] = (tmp_path / "export" / "Servo").iterdir()  # the newer of two
    assert "serving_default" in tf.saved_model.load(str(time)).signatures
    assert experiment.reset_export_strategies() == [servo]
    assert experiment.export_strategies == []
    with pytest.raises(ConfigurationError, match="export_outputs"):
        make_export_strategy(receiver_fn, "head")


def test_more_metrics(tmp_path):
    def positional(outputs, targets):
        return tf1.metrics.mean(tf.reduce_sum(outputs) + tf.reduce_sum(targets))

    experiment = make_experiment(
        config(tmp_path),
        eval_metrics={
            "error": MetricSpec(tf1.metrics.mean_absolute_error, "outputs", weight_key="x"),
            ("total", "outputs"): positional,
        },
    )
    metrics = experiment.test()
    w = 0.05 * 2 * np.mean([2 * x**2 for x in (1, 2, 3)])
    weighted = sum((2 - w) * x * x for x in (1, 2, 3)) / 6
    assert metrics["error"] == pytest.approx(weighted, rel=1e-5)
    assert metrics["total"] == pytest.approx(6 * w + 12, rel=1e-5)
    assert set(experiment.eval_metrics) == {"error", ("total", "outputs")}


def test_workers_that_train_asynchronously_start_one_after_another(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CONFIG", tf_config(index=2, chief=1, worker=3, ps=1))
    waits, hooks = [], []
    for by_step in (False, True):
        options = {"sleep": waits.append, "delay_workers_by_global_step": by_step}
        experiment = make_experiment(config(tmp_path), **options)
        monkeypatch.setattr(
            experiment.estimator, "train", lambda _, given, **kw: hooks.append(given)
        )
        experiment.train()
    first, [waiter] = hooks
    assert (waits, first, type(waiter).__name__) == ([10, 0], [], "GlobalStepWaiterHook")


def test_arguments_come_in_the_original_order():
    names = list(inspect.signature(Experiment).parameters)
    assert names[: names.index("train_hooks")] == [
        "estimator", "train_input_fn", "eval_input_fn", "eval_metrics", "train_steps",
        "eval_steps", "train_monitors", "eval_hooks", "local_eval_frequency", "eval_delay_secs",
        "continuous_eval_throttle_secs", "min_eval_frequency", "delay_workers_by_global_step",
        "export_strategies", "train_steps_per_iteration", "checkpoint_and_export",
        "saving_listeners", "check_interval_secs",
    ]  # fmt: skip


def test_experiment_fn_in_its_historical_forms(tmp_path):
    made = []

    def make(run_config, *hparams):
        made.append((run_config.model_dir, [each.rate for each in hparams]))
        return make_experiment(run_config, *hparams)

    directory, run_config, hparams = str(tmp_path), config(tmp_path), HParams(rate=0.01)
    learn_runner.run(lambda c, hparams: make(c, hparams), run_config, "test", hparams=hparams)
    learn_runner.run(lambda output_dir: make(config(output_dir)), directory, "test")
    learn_runner.run(lambda c: make(c), run_config=run_config, schedule="test")
    assert made == [(directory, [0.01]), (directory, []), (directory, [])]


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


@pytest.mark.parametrize("steps", ["train_steps", "eval_steps"])
def test_what_would_never_end(tmp_path, steps):
    with pytest.raises(ConfigurationError, match="repeats forever"):
        make_experiment(config(tmp_path), **{steps: None}).train_and_evaluate()


def test_an_experiment_takes_an_estimator(tmp_path):
    with pytest.raises(ConfigurationError, match="takes an Estimator"):
        Experiment(object(), input_fn, input_fn)
    v1 = estimator.v1.Estimator(model_fn, config=config(tmp_path), params={"rate": 0.1})
    assert Experiment(v1, input_fn, input_fn).estimator is v1
    with pytest.raises(ConfigurationError, match="must return an Experiment"):
        learn_runner.run(lambda _: None, output_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("task", "schedule"),
    [
        ({"type": "worker", "index": 0}, "train"),
        ({"type": "evaluator", "index": 0}, "continuous_eval"),
        ({}, "train_and_evaluate"),
    ],
)
def test_the_schedule_follows_the_task(monkeypatch, tmp_path, task, schedule):
    for name in ("train", "continuous_eval", "train_and_evaluate"):
        monkeypatch.setattr(Experiment, name, lambda self, name=name: name)
    experiment = make_experiment(config(tmp_path))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": task}))
    assert learn_runner.run(lambda _: experiment, output_dir=str(tmp_path)) == schedule


def test_run_fn_publishes_the_export(tmp_path):
    rates = []

    def experiment_fn(run_config, hparams):
        rates.append(hparams.rate)
        assert get_pipeline().serving_model_dir == fn_args.serving_model_dir
        exporter = estimator.FinalExporter("weight", receiver_fn)
        return make_experiment(run_config, hparams, export_strategies=exporter)

    inputs = {"custom_config": {"rate": 0.01, "unrelated": 1}}
    fn_args = make_fn_args(tmp_path, hyperparameters={"values": {"rate": 0.05}}, **inputs)
    run_fn_from_experiment(experiment_fn, HParams(rate=0.1))(fn_args)
    serve = tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]
    assert serve(x=tf.constant([[1.0]]))["outputs"].numpy() == pytest.approx(2.0, abs=0.05)
    assert rates == [0.05]


def test_the_model_for_the_features_is_published_without_an_export_strategy(tmp_path):
    fn_args = make_fn_args(tmp_path, custom_config=None, train_steps=2)
    run_fn = run_fn_from_experiment(lambda config: make_experiment(config, train_steps=None))
    run_fn(fn_args)
    serve = tf.saved_model.load(fn_args.serving_model_dir).signatures["serving_default"]
    assert serve(x=tf.constant([[1.0]]))["outputs"].shape == (1, 1)
    [newest] = tf.train.get_checkpoint_state(str(tmp_path / "run")).all_model_checkpoint_paths[-1:]
    assert newest.endswith("-2")  # train_args.num_steps


def test_one_model_is_published(tmp_path):
    several = [estimator.FinalExporter(name, receiver_fn) for name in "ab"]
    options = {"train_steps": 1, "export_strategies": several}
    run_fn = run_fn_from_experiment(lambda run_config: make_experiment(run_config, **options))
    with pytest.raises(ExportError, match=r"one export strategy.*\['a', 'b'\]"):
        run_fn(make_fn_args(tmp_path, custom_config=None))
