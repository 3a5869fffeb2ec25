"""What is seen of a training that says nothing itself: `fit` of both Kerases, and plain loops."""

import contextlib
import functools
import threading
import time
import types
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from generic_trainer import training
from generic_trainer._core.progress import Progress, ProgressReader, last_metrics
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import watched
from tests.training.resume.fits import Ended


def linear(keras: Any, **options: Any) -> Any:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((tf.ones([2, 2]), tf.ones([2, 1])))


def progress_of(folder: Path) -> Progress:
    return ProgressReader(str(folder)).look()


def test_a_loss_that_is_not_finite_is_logged_once(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for value, times in ((1.0, 0), (float("nan"), 1)):
        caplog.clear()
        data = tf.data.Dataset.from_tensors((tf.fill([2, 2], value), tf.ones([2, 1])))
        with watched(str(tmp_path / str(value))):
            linear(keras).fit(data, epochs=3, verbose=0)
        assert caplog.text.count("Loss is nan at step 1.") == times == caplog.text.count("Loss is")


@pytest.mark.parametrize("callbacks", ["list", "CallbackList"])
def test_fit_is_seen(tmp_path: Path, keras: Any, callbacks: str) -> None:
    seen: list[float] = []

    class Own(keras.callbacks.Callback):  # type: ignore[name-defined,misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(logs["loss"])
            time.sleep(0.12)

    model = linear(keras, metrics=["mae"], run_eagerly=True)  # no minute to trace
    given: Any = [Own()]
    if callbacks == "CallbackList":
        given = keras.callbacks.CallbackList(
            given, add_history=True, model=model, verbose=0, epochs=3, steps=8
        )
    data = tf.data.Dataset.from_tensor_slices((tf.ones([16, 2]), tf.ones([16, 1])))
    fit = keras.Model.fit
    with watched(str(tmp_path)):
        model.fit(data.batch(2, drop_remainder=True), epochs=3, callbacks=given, verbose=0)

    assert keras.Model.fit is fit
    if callbacks == "CallbackList":
        assert "Progress" not in {type(each).__name__ for each in given.callbacks}
    progress = progress_of(tmp_path)
    assert (progress.step, progress.epoch, progress.batch_size) == (24, 3, 2)
    assert {"loss", "mae"} <= progress.curves.keys()
    if callbacks == "list":
        losses = dict(progress.curves["loss"])
        assert [losses[step] for step in (8, 16, 24)] == pytest.approx(seen)


@pytest.mark.parametrize("endless", ["x", "validation_data"])
def test_a_fit_without_an_end_is_refused_before_its_first_step(
    tmp_path: Path, keras: Any, endless: str
) -> None:
    model = linear(keras)
    data = batches()
    arguments = {"x": data, "validation_data": data, endless: data.repeat()}
    steps = {"x": "steps_per_epoch", "validation_data": "validation_steps"}[endless]
    with watched(str(tmp_path)):
        with pytest.raises(ConfigurationError, match=f"{endless} repeats .*Pass {steps}"):
            model.fit(**arguments, verbose=0)
        model.fit(**arguments, **{steps: 1}, verbose=0)


def test_a_callback_that_empties_the_log_of_the_run_is_named(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Drop-in: with TFX's Trainer it may have this name, which Keras' examples have."""
    model = linear(keras)
    for name in ("history.csv", "training.log"):
        assert "Give the file another name" not in caplog.text
        with watched(str(tmp_path)):
            logger = keras.callbacks.CSVLogger(str(tmp_path / name))
            model.fit(batches(), verbose=0, callbacks=[logger])
        assert "loss" in (tmp_path / name).read_text()
    assert "Give the file another name" in caplog.text


def test_a_callback_may_end_a_fit_on_endless_data(tmp_path: Path) -> None:
    class Stops(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    model = linear(keras)
    with watched(str(tmp_path)):
        model.fit(batches().repeat(), callbacks=[Stops()], verbose=0)


def test_a_function_of_a_callback_may_end_a_fit_on_endless_data(tmp_path: Path) -> None:
    def stop(batch: int, logs: Any) -> None:
        model.stop_training = True

    model = linear(keras)
    stops = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with watched(str(tmp_path)):
        model.fit(batches().repeat(), callbacks=[stops], verbose=0)


def test_a_long_validation_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generic_trainer.training._watch._EVERY_S", 0.05)
    model = linear(keras, run_eagerly=True)
    slow = batches().repeat(20).map(lambda x, y: (tf.py_function(wait, [x], tf.float32), y))
    with watched(str(tmp_path)):
        model.fit(batches(), validation_data=slow, verbose=0)
    text = (tmp_path / "progress-chief.jsonl").read_text()
    assert '"phase": "validating"' in text
    assert progress_of(tmp_path).phase == "training"


def rows() -> tf.data.Dataset:
    return batches().map(lambda x, y: x)


def words() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors([["a"], ["b"]])


PASSES: dict[str, tuple[Any, Any, Any]] = {
    "evaluate": (lambda keras: linear(keras).evaluate, batches, {"verbose": 0}),
    "predict": (lambda keras: linear(keras).predict, rows, {"verbose": 0}),
    "Normalization": (lambda keras: keras.layers.Normalization().adapt, rows, {}),
    "Discretization": (lambda keras: keras.layers.Discretization(num_bins=2).adapt, rows, {}),
    "StringLookup": (lambda keras: keras.layers.StringLookup().adapt, words, {}),
    "TextVectorization": (lambda keras: keras.layers.TextVectorization().adapt, words, {}),
}


@pytest.mark.parametrize(
    ("name", "is_chief"), [*((name, True) for name in PASSES), ("evaluate", False)]
)
def test_a_pass_without_an_end_is_refused(
    tmp_path: Path, keras: Any, name: str, is_chief: bool
) -> None:
    method_of, data, options = PASSES[name]
    with watched(str(tmp_path) if is_chief else ""):
        with pytest.raises(
            ConfigurationError, match=r"would never end: .*--train-steps.*num_epochs=1"
        ):
            method_of(keras)(data().repeat(), **options)
        method_of(keras)(data(), **options)
        method_of(keras)(data().repeat().take(2), **options)
        if keras.__name__ == "tf_keras" or name != "Normalization":  # Keras 3's has no steps
            method_of(keras)(data().repeat(), steps=2, **options)


def test_a_callback_may_end_a_pass_over_endless_data(tmp_path: Path) -> None:
    class Stops(keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_evaluating = True

    with watched(str(tmp_path)):
        linear(keras).evaluate(batches().repeat(), callbacks=[Stops()], verbose=0)


@pytest.mark.parametrize(
    ("name", "phase"),
    [("evaluate", "evaluating"), ("predict", "predicting"), ("Normalization", "adapting")],
)
def test_a_long_pass_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, phase: str
) -> None:
    monkeypatch.setattr("generic_trainer.training._watch._EVERY_S", 0.05)
    method_of, data, options = PASSES[name]

    def waiting(x: Any, *y: Any) -> Any:
        x = tf.ensure_shape(tf.py_function(wait, [x], tf.float32), [2, 2])
        return (x, *y) if y else x

    slow = data().repeat(20).map(waiting)
    with watched(str(tmp_path)):
        method_of(keras)(slow, **options)
    assert f'"phase": "{phase}"' in (tmp_path / "progress-chief.jsonl").read_text()
    assert progress_of(tmp_path).phase == "training"


def wait(x: tf.Tensor) -> tf.Tensor:
    time.sleep(0.02)
    return tf.ensure_shape(x, [2, 2])


def test_fit_says_itself_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    with watched(str(tmp_path)), pytest.raises(TypeError, match="epoch_count"):
        model.fit(tf.ones([2, 2]), epoch_count=3)


def test_a_loop_of_ones_own_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generic_trainer.training._watch._EVERY_S", 0.05)
    with watched(str(tmp_path)):
        for _ in tf.data.Dataset.range(120):
            time.sleep(0.01)
    progress = progress_of(tmp_path)
    assert progress.memory_mb and progress.cpu


def test_a_fit_within_another_or_without_an_epoch_leaves_the_metrics(
    tmp_path: Path, keras: Any
) -> None:
    def probe(*_: Any) -> None:
        linear(keras, metrics=["mse"]).fit(batches(), verbose=0)

    model = linear(keras, metrics=["mae"])
    within = keras.callbacks.LambdaCallback(on_epoch_end=probe, on_train_end=probe)
    with watched(str(tmp_path)):
        fit = functools.partial(model.fit, batches(), verbose=0, validation_data=batches())
        losses = fit(epochs=3, callbacks=[within]).history
        with contextlib.suppress(ValueError):  # Keras 2.21 refuses it
            fit(epochs=0)
        fit(epochs=3, initial_epoch=3)
    latest = {name: values[-1] for name, values in losses.items()}
    assert last_metrics(str(tmp_path)) == pytest.approx(latest)
    progress = progress_of(tmp_path)
    assert (progress.step, progress.epoch, progress.epochs) == (3, 3, 3)


def test_of_fits_in_threads_the_metrics_are_those_of_the_last(tmp_path: Path, keras: Any) -> None:
    begun, over = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        begun.set()
        over.wait(60)

    def fit(metric: str, **hooks: Any) -> None:
        callbacks = [keras.callbacks.LambdaCallback(**hooks)]
        linear(keras, metrics=[metric]).fit(batches(), verbose=0, callbacks=callbacks)

    other = threading.Thread(target=fit, args=["mse"], kwargs={"on_epoch_begin": wait})

    def start(*_: Any) -> None:
        other.start()
        begun.wait(60)

    with watched(str(tmp_path)):
        fit("mae", on_train_begin=start)
        over.set()
        other.join()
    assert "mse" in last_metrics(str(tmp_path))


@pytest.mark.parametrize("place", ["first", "second", "export"])
def test_metrics_are_those_of_the_last_fit_after_a_kill_too(
    tmp_path: Path, keras: Any, place: str
) -> None:
    def run_fn(run: str, checkpoints: str, end: str = "") -> dict[str, float]:
        def end_at(here: str) -> None:
            if here == end:
                raise Ended

        fn_args = types.SimpleNamespace(checkpoint_dir=str(tmp_path / checkpoints))
        with watched(str(tmp_path / run)):
            for name, metric, steps in (("first", "mae", 2), ("second", "mse", None)):
                keras.utils.set_random_seed(1)
                model = linear(keras, metrics=[metric])
                callbacks = keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, logs, name=name: epoch == 1 and end_at(name)
                )
                resume = training.resume_callbacks(fn_args, name=name)
                rate = keras.callbacks.ReduceLROnPlateau("loss")  # adds the rate to the logs
                fit = functools.partial(model.fit, batches(), epochs=3, verbose=0)
                fit(validation_data=steps and batches(), callbacks=[*resume, callbacks, rate])
        end_at("export")
        return last_metrics(str(tmp_path / run))

    straight = run_fn("straight", "of one")
    assert len(straight) == 3, "a loss, a metric and a rate, and nothing of the first fit"
    with pytest.raises(Ended):
        run_fn("killed", "of two", end=place)
    assert run_fn("again", "of two") == pytest.approx(straight)
