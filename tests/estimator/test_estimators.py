"""What tf.estimator can do is done: models of one's own, premade ones, Keras models."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import tensorflow
from tensorflow.python.autograph.pyct import transpiler

from generic_trainer import estimator
from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator import tf, v1
from generic_trainer.trials.experiment import Experiment
from tests.estimator.conftest import columns, examples, input_fn, receiver_fn, serialized
from tests.processes import tf_config

Train = Callable[[Any], dict[str, Any]]


def line_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """One weight w, starting at 0; the loss is the mean of (w - 1)², so its gradient 2 (w - 1)."""
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.zeros_initializer())
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, {"y": features["x"] * weight})
    loss = tf.square(weight - 1.0)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(params["rate"])
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def one_weight(rate: float = 0.25, **options: Any) -> Any:
    return estimator.Estimator(line_fn, params={"rate": rate}, **options)


def test_gradient_descent_by_hand() -> None:
    trained = one_weight().train(input_fn, steps=3)
    assert trained.get_variable_value("weight") == pytest.approx(0.875)
    assert trained.evaluate(input_fn, steps=1)["loss"] == pytest.approx(0.125**2)


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    one_weight(model_dir=str(tmp_path)).train(input_fn, steps=2)
    assert one_weight(model_dir=str(tmp_path)).get_variable_value("weight") == pytest.approx(0.75)
    resumed = one_weight(model_dir=str(tmp_path)).train(input_fn, max_steps=3)
    assert resumed.get_variable_value("weight") == pytest.approx(0.875)


def test_early_stopping() -> None:
    trained = one_weight(rate=0.0)  # the loss stays 1
    stop = estimator.experimental.stop_if_lower_hook(
        trained, "loss", threshold=2.0, run_every_secs=None, run_every_steps=1
    )
    trained.train(input_fn, hooks=[stop], max_steps=3)  # nothing is evaluated yet
    assert trained.get_variable_value("global_step") == 3
    trained.evaluate(input_fn, steps=1)
    trained.train(input_fn, hooks=[stop], max_steps=50)
    # A thread of TensorFlow brings what was evaluated to the file that the hook reads.
    assert 4 <= trained.get_variable_value("global_step") < 10


def test_train_and_evaluate_exports(tmp_path: Path) -> None:
    trained = one_weight(model_dir=str(tmp_path))
    exporters = [
        estimator.FinalExporter("final", receiver_fn),
        estimator.BestExporter(serving_input_receiver_fn=receiver_fn),
    ]
    evaluation, exports = estimator.train_and_evaluate(
        trained,
        estimator.TrainSpec(input_fn, max_steps=2),
        estimator.EvalSpec(input_fn, steps=1, exporters=exporters),
    )
    assert evaluation["loss"] == pytest.approx(0.0625)
    assert [Path(path.decode()).parent.name for path in exports] == ["final", "best_exporter"]
    serve = tf.saved_model.load(exports[0].decode()).signatures["serving_default"]
    outputs = serve(tf.constant(serialized(2.0, -4.0)))
    np.testing.assert_allclose(outputs["y"].numpy(), [[1.5], [-3.0]])


def drawing_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """As `line_fn`; its evaluations have a summary, as pictures and curves are."""
    spec = line_fn(features, labels, mode, params)
    if mode != estimator.ModeKeys.EVAL:
        return spec
    drawn = tf.compat.v1.summary.scalar("drawn", spec.loss)
    return spec._replace(eval_metric_ops={"drawn": (drawn, drawn)})


def near_step_4(best_eval_result: Any, current_eval_result: Any) -> bool:
    best, current = (abs(r["global_step"] - 4) for r in (best_eval_result, current_eval_result))
    return bool(current < best)


@pytest.mark.parametrize("pattern", [None, "eval/*.tfevents.*"])
def test_the_best_export_is_that_of_all_attempts(tmp_path: Path, pattern: str | None) -> None:
    attempts = []
    for steps in (6, 8):  # the first is lost there, and all its objects with it
        config = estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2)
        best = estimator.BestExporter("best", receiver_fn, pattern, near_step_4)
        given = (
            estimator.TrainSpec(input_fn, steps),
            estimator.EvalSpec(input_fn, steps=1, exporters=best, throttle_secs=0),
        )
        trained = estimator.Estimator(drawing_fn, params={"rate": 0.25}, config=config)
        estimator.train_and_evaluate(trained, *given)
        newest = max((tmp_path / "export" / "best").glob("[0-9]*"))
        attempts.append(tf.train.load_variable(f"{newest}/variables/variables", "global_step"))
    assert attempts == [4, 4]


def stopping_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    hooks = [tf.compat.v1.train.StopAtStepHook(4)]
    return line_fn(features, labels, mode, params)._replace(training_hooks=hooks)


def test_only_what_would_never_end_is_refused() -> None:
    both, once = estimator.train_and_evaluate, functools.partial(input_fn, 1)
    endless, step = estimator.TrainSpec(input_fn), estimator.EvalSpec(input_fn, steps=1)
    with pytest.raises(ConfigurationError, match=r"TrainSpec\(input_fn\) .* repeats forever"):
        both(one_weight(), endless, step)
    with pytest.raises(ConfigurationError, match=r"EvalSpec\(input_fn\) .* repeats forever"):
        both(one_weight(), estimator.TrainSpec(input_fn, 2), estimator.EvalSpec(input_fn, None))
    own = estimator.Estimator(stopping_fn, params={"rate": 0.1}), endless, step
    hooked = estimator.TrainSpec(input_fn, hooks=[tf.compat.v1.train.StopAtStepHook(4)])
    finite = estimator.TrainSpec(once), estimator.EvalSpec(once, steps=None)
    line = estimator.LinearClassifier(columns()), *finite
    trained = estimator.LinearClassifier(columns())  # whose steps read data, and end with them
    within = estimator.experimental.InMemoryEvaluatorHook(trained, input_fn, steps=1)
    evaluated = trained, estimator.TrainSpec(input_fn, 4, [within]), finite[1]
    for given in ((one_weight(), hooked, step), own, line, evaluated):
        assert both(*given)[0]["global_step"] == 4


def reading_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """As `line_fn`, but each step waits for its data, so that it ends with them."""
    spec = line_fn(features, labels, mode, params)
    with tf.control_dependencies([features["x"]]):
        return spec._replace(train_op=tf.group(spec.train_op), loss=tf.identity(spec.loss))


def arrays_fn(epochs: int | None) -> Any:
    x = {"x": np.arange(4.0)}
    return v1.inputs.numpy_input_fn(x, x["x"], 1, num_epochs=epochs, shuffle=False)


def frame_fn(epochs: int | None) -> Any:
    x = pandas.DataFrame({"x": np.arange(4.0)})
    return v1.inputs.pandas_input_fn(x, x["x"], batch_size=1, num_epochs=epochs, shuffle=False)


def queue_fn(epochs: int | None) -> Any:
    def queued() -> Any:
        queue = tf.compat.v1.train.string_input_producer(["1", "2", "3", "4"], epochs)
        x = tf.compat.v1.train.batch([tf.strings.to_number(queue.dequeue())], 1)
        return {"x": x}, x

    return queued


@pytest.mark.parametrize("make", [arrays_fn, frame_fn, queue_fn])
def test_queues_that_are_filled_forever_are_refused(make: Callable[[int | None], Any]) -> None:
    def both(train: int | None, evaluated: int | None, **limits: int) -> Any:
        specs = (
            estimator.TrainSpec(make(train), limits.get("max_steps")),
            estimator.EvalSpec(make(evaluated), limits.get("steps")),
        )
        own = estimator.Estimator(reading_fn, params={"rate": 0.1})
        return estimator.train_and_evaluate(own, *specs)[0]["global_step"]

    with pytest.raises(ConfigurationError, match=r"TrainSpec\(input_fn\) .* repeats forever"):
        both(None, 1)
    with pytest.raises(ConfigurationError, match=r"EvalSpec\(input_fn\) .* repeats forever"):
        both(1, None)
    assert both(None, None, max_steps=2, steps=1) == 2
    assert both(1, 1) in (4, 5)  # TensorFlow counts the step that finds no data


def by_hand(trained: Any, train_fn: Any, eval_fn: Any) -> Any:
    trained.train(train_fn)
    return trained.evaluate(eval_fn)


def by_both(trained: Any, train_fn: Any, eval_fn: Any) -> Any:
    specs = estimator.TrainSpec(train_fn), estimator.EvalSpec(eval_fn, steps=None)
    return estimator.train_and_evaluate(trained, *specs)[0]


def by_experiment(trained: Any, train_fn: Any, eval_fn: Any) -> Any:
    experiment = Experiment(trained, train_fn, eval_fn, eval_steps=None)
    return experiment.train_and_evaluate()[0]


def test_without_steps_input_functions_are_called_for_their_data_alone() -> None:
    """They may draw random numbers, of NumPy or of the graph, or consume a generator."""

    def run(way: Callable[..., Any]) -> tuple[list[str], Any]:
        generator, calls = np.random.default_rng(1), []

        def drawn(mode: str) -> Any:
            calls.append(mode)
            x = generator.random([32, 1], np.float32)
            return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x)).batch(8)

        config = estimator.RunConfig(tf_random_seed=1)
        trained = estimator.DNNRegressor([4], columns(), config=config)
        return calls, way(trained, *(functools.partial(drawn, mode) for mode in ("train", "eval")))

    calls, expected = run(by_hand)
    for way in (by_both, by_experiment):
        assert run(way) == (calls, expected)


def premade() -> dict[str, Callable[[], Any]]:
    hidden = {"hidden_units": [4], "feature_columns": columns()}
    both = {
        "linear_feature_columns": columns(),
        "dnn_feature_columns": columns(),
        "dnn_hidden_units": [4],
    }
    head = estimator.BinaryClassHead()
    return {
        "linear head": lambda: estimator.LinearEstimator(head, columns()),
        "dnn with Adam": lambda: estimator.DNNClassifier(
            **hidden, optimizer=lambda: tf.keras.optimizers.Adam(0.1)
        ),
        "wide and deep": lambda: estimator.DNNLinearCombinedClassifier(**both),
        "TF 1 dnn": lambda: v1.DNNClassifier(
            **hidden, optimizer=tf.compat.v1.train.AdamOptimizer(0.1)
        ),
        "TF 1 baseline": lambda: v1.BaselineRegressor(),
        "classifier": lambda: estimator.LinearClassifier(columns()),
    }


@pytest.mark.parametrize("kind", premade())
def test_premade(kind: str, train: Train) -> None:
    evaluation = train(premade()[kind]())
    assert np.isfinite(evaluation["loss"])
    assert kind != "classifier" or evaluation["accuracy"] == 1.0


def test_autograph_converts_nothing_of_keras_2(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[str] = []
    transform = transpiler.PyToPy.transform_function

    def noted(self: Any, function: Any, context: Any) -> Any:
        converted.append(getattr(function, "__module__", ""))
        return transform(self, function, context)

    monkeypatch.setattr(transpiler.PyToPy, "transform_function", noted)
    estimator.DNNClassifier([4], columns()).train(input_fn, steps=1)
    assert converted
    assert not [module for module in converted if module.startswith("tf_keras")]


@pytest.mark.filterwarnings("ignore:`tf.layers.dense` is deprecated")
def test_layers_in_a_model_fn(train: Train) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        hidden = tf.keras.layers.Dense(4, activation="tanh")(features["x"])
        logits = tf.compat.v1.layers.dense(hidden, 1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, {"logits": logits})
        loss = tf.compat.v1.losses.sigmoid_cross_entropy(labels, logits)
        train_op = tf.compat.v1.train.AdamOptimizer(0.1).minimize(
            loss, tf.compat.v1.train.get_global_step()
        )
        mean = tf.keras.metrics.Mean()
        mean.update_state(labels)
        metrics = {"positive": mean}
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
        )

    evaluation = train(tf.estimator.Estimator(model_fn))
    assert evaluation["loss"] < 0.5
    assert evaluation["positive"] == pytest.approx(0.5)


def test_a_strategy_over_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config("chief", chief=1, worker=1))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with pytest.raises(ConfigurationError, match="TF_CONFIG describes a cluster of chief, worker"):
        estimator.RunConfig(train_distribute=strategy)
    config = estimator.RunConfig()  # of a session that knows of no other
    assert (config.is_chief, config.num_worker_replicas) == (True, 1)


def keras_model(keras: Any) -> Any:
    model = keras.Sequential(
        [keras.layers.Input((1,), name="x"), keras.layers.Dense(1, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
    return model


@pytest.mark.parametrize(
    "convert",
    [estimator.model_to_estimator, tf.compat.v1.keras.estimator.model_to_estimator],
    ids=["estimator", "tf.compat.v1.keras"],
)
def test_a_keras_model_becomes_an_estimator(convert: Any) -> None:
    trained = convert(keras_model(tf.keras))
    untrained_loss = np.mean(np.square(examples()[1]))
    trained.train(input_fn, steps=20)
    assert trained.evaluate(lambda: input_fn(1))["loss"] < untrained_loss / 2


@pytest.mark.skipif(
    tensorflow.keras.Model is tf.keras.Model, reason="this process has Keras 2 only"
)
def test_a_model_of_keras_3_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Keras 2 model, but got .*keras\.src\.models"):
        estimator.model_to_estimator(keras_model(tensorflow.keras))
