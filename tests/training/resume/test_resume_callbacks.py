"""A fit that was killed and resumed is the fit that was not."""

import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer.data import TensorFlowDatasetOptions, make_dataset_factory
from generic_trainer.errors import ConfigurationError, TrainingError, WorkerLostError
from generic_trainer.training import restore_weights, resume_callbacks
from generic_trainer.training.resume import _manager, _schedule, exports_trained_weights
from tests import helpers
from tests.house import run_python
from tests.training.resume import fit_in_child, fit_in_replicas
from tests.training.resume.fits import Ended, at_batch, ending, fn_args, ones, values


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("examples") / "data.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(100):
            writer.write(helpers.example(number % 13 / 13))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "legacy", "keras"),
    [
        ("endless", False, "tensorflow.keras"),
        ("finite", True, "tensorflow.keras"),
        # The Keras of the model counts, and not that of TensorFlow.
        pytest.param("finite", False, "tf_keras", marks=pytest.mark.campaign("training")),
        pytest.param("endless", True, "keras", marks=pytest.mark.campaign("training")),
    ],
)
def test_a_killed_fit_ends_with_the_weights_and_the_history_of_an_unbroken_one(
    tmp_path: Path, examples: str, kind: str, legacy: bool, keras: str
) -> None:
    # Killed in epoch 1, then in epoch 3 (of what it replays and what it goes on with), then not.
    runs = (("unbroken", 0), ("killed", 7), ("killed", 26), ("killed", 0))
    words = [word for name, kill in runs for word in (tmp_path / name, kill)]
    program = fit_in_child.__name__, examples, kind, keras
    done = run_python("-m", *program, *words, TF_USE_LEGACY_KERAS=str(int(legacy)))
    (status, unbroken), *killed, resumed = json.loads(done.stdout.splitlines()[-1])
    assert [status for status, _ in killed] == [-signal.SIGKILL] * 2, done.stderr
    assert resumed == [status, unbroken] == [0, unbroken], done.stderr


def test_sigterm_saves_and_then_ends_the_run(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *args: pytest.fail("not noticed"))
    try:
        preempt = at_batch(tf.keras, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        callbacks = [*resume_callbacks(fn_args(tmp_path)), preempt]
        with pytest.raises(WorkerLostError, match=r"SIGTERM: .* preempted in epoch 1 after"):
            tiny_model().fit(ones(20), verbose=0, callbacks=callbacks)
    finally:
        signal.signal(signal.SIGTERM, before)
    saved = [path.name for path in (tmp_path / "fit").glob("step-*")]
    assert {"step-000000000007.0", "step-000000000008.0"} & set(saved)


@pytest.mark.slow
def test_what_replicas_have_of_their_own_goes_on_exactly(tmp_path: Path) -> None:
    done = run_python("-m", fit_in_replicas.__name__, tmp_path, 7)
    assert "start anew" not in done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results.keys() == {"keras", "tf_keras"}
    for straight, resumed in results.values():
        assert resumed == straight


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every_steps": 1, "every_s": 1.0}, "expected every_steps or every_s, found both"),
        ({"every_steps": 0}, "every_steps: expected at least 1, found 0"),
        ({"every_s": 0.0}, "every_s: expected more than 0 s, found 0"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resume_callbacks(fn_args(tmp_path), **arguments)
    with pytest.raises(ConfigurationError, match="fn_args has no checkpoint_dir"):
        resume_callbacks(object(), **arguments)


def test_where_a_fit_cannot_be_resumed_exactly_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keras: Any
) -> None:

    is_keras_2 = keras.__name__ == "tf_keras"

    class Noise(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs + tf.random.normal(tf.shape(inputs))

    if is_keras_2:  # a trial that ran in this process before has enabled it
        keras.backend.experimental.disable_tf_random_generator()
    layer = keras.layers.Dropout(0.5, name="drops") if is_keras_2 else Noise(name="own")
    model = keras.Sequential([layer, keras.layers.Dense(1)], name="model")
    model.compile("sgd", "mse")
    model.fit(ones(8), verbose=0, callbacks=resume_callbacks(fn_args(tmp_path)))
    expected = "model/drops/" if is_keras_2 else "own"
    (said,) = [one for one in caplog.messages if "it draws other random numbers" in one]
    assert expected in said


@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_layers_that_could_draw_and_do_not_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keras: Any, layer: str
) -> None:
    model = keras.Sequential([getattr(keras.layers, layer)(2), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    sequences = ones(2).map(lambda rows, labels: (rows[:, tf.newaxis], labels))
    model.fit(sequences, verbose=0, callbacks=resume_callbacks(fn_args(tmp_path)))
    assert "If this fit is resumed" not in caplog.text


def tiny_model(*, eager: bool = True) -> Any:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=eager)
    return model


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, may_end = _manager._sync, threading.Event()

    def slow(path: str) -> None:
        assert may_end.wait(60)
        sync(path)

    def go_on(batch: int, logs: Any = None) -> None:
        if batch == 5:
            may_end.set()

    monkeypatch.setattr(_manager, "_sync", slow)
    watch = tf.keras.callbacks.LambdaCallback(on_train_batch_end=go_on)
    monkeypatch.setattr(_schedule, "_SHORTEST_S", 0.0)
    monkeypatch.setattr(_schedule, "_MAX_LOSS", 0.0)
    monkeypatch.setattr(_schedule, "_MAX_OVERHEAD", 1e9)
    callbacks = resume_callbacks(fn_args(tmp_path), max_to_keep=9)
    tiny_model().fit(ones(8), verbose=0, callbacks=[watch, *callbacks])
    saved = sorted(each.name for each in (tmp_path / "fit").glob("step-*"))
    # The next one was due until the first one was there, and then it was that of another step.
    assert saved[0] == "step-000000000001.0"
    assert all(name >= "step-000000000006" for name in saved[1:])
    assert saved[-1].startswith("step-000000000008")


def test_each_fit_of_a_run_needs_a_name(tmp_path: Path) -> None:
    args = fn_args(tmp_path)
    callbacks = resume_callbacks(args)
    with pytest.raises(ConfigurationError, match="another fit of this run is called 'fit'"):
        resume_callbacks(args)
    resume_callbacks(args, name="fine_tuning")
    model = tiny_model()
    model.fit(ones(8), verbose=0, callbacks=callbacks)
    with pytest.raises(ConfigurationError, match="have served one fit already"):
        model.fit(ones(8), verbose=0, callbacks=callbacks)


def test_a_fit_leaves_the_model_as_it_found_it(tmp_path: Path) -> None:
    model = tiny_model(eager=False)
    model.fit(ones(8), verbose=0)
    train_function, handler = model.train_function, signal.getsignal(signal.SIGTERM)
    model.fit(ones(8), epochs=2, verbose=0, callbacks=resume_callbacks(fn_args(tmp_path)))
    assert model.train_function is train_function
    assert signal.getsignal(signal.SIGTERM) == handler
    again = model.fit(ones(8), epochs=2, verbose=0)
    assert again.epoch == [0, 1]


def test_a_retry_in_the_same_process_ends_what_the_fit_that_raised_had_begun(
    tmp_path: Path,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    callbacks = [*resume_callbacks(fn_args(tmp_path)), ending(tf.keras, 1)]
    with pytest.raises(Ended):
        tiny_model().fit(ones(8), verbose=0, callbacks=callbacks)
    tiny_model().fit(ones(8), verbose=0, callbacks=resume_callbacks(fn_args(tmp_path)))
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_nothing_is_kept_of_a_fit_that_has_ended(tmp_path: Path) -> None:
    (callback,) = resume_callbacks(fn_args(tmp_path))
    tiny_model().fit(ones(8), verbose=0, callbacks=[callback])
    left = weakref.ref(callback)
    del callback
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("batches", [3, 6])
def test_data_of_another_length_than_before_are_refused(
    tmp_path: Path, keras: Any, batches: int
) -> None:
    def fit(batches: int, end: int = 0) -> None:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        callbacks = [*resume_callbacks(fn_args(tmp_path), every_steps=1), ending(keras, end)]
        model.fit(ones(batches), epochs=3, verbose=0, callbacks=callbacks)

    with pytest.raises(Ended):
        fit(4, end=6)
    with pytest.raises(TrainingError, match="are not those of the checkpoint"):
        fit(batches)
    fit(4)


def test_a_fit_that_has_ended_is_known_to_have_been_stopped(tmp_path: Path, keras: Any) -> None:
    for _ in range(2):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1)
        callbacks = resume_callbacks(fn_args(tmp_path), callbacks=[stop])
        model.fit(ones(), epochs=3, verbose=0, callbacks=callbacks)
        assert model.stop_training


def test_other_callbacks_than_before_are_named(tmp_path: Path) -> None:
    stop = tf.keras.callbacks.EarlyStopping("loss")
    tiny_model().fit(
        ones(8), verbose=0, callbacks=resume_callbacks(fn_args(tmp_path), callbacks=[stop])
    )
    with pytest.raises(ConfigurationError, match=r"'EarlyStopping', 'History'.*now.*'History'"):
        tiny_model().fit(ones(8), verbose=0, callbacks=resume_callbacks(fn_args(tmp_path)))


def test_an_export_alone_finds_the_trained_weights(tmp_path: Path, keras: Any) -> None:

    def model(units: int = 1) -> Any:
        inputs = keras.Input([1], name="x")
        return keras.Model(inputs, keras.layers.Dense(units)(inputs))

    args = fn_args(tmp_path)
    assert not restore_weights(model(), args)  # as in a rehearsal
    trained = model()
    trained.compile("adam", "mse", run_eagerly=True)
    data = tf.data.Dataset.from_tensors(([[1.0]], [[3.0]]))
    trained.fit(data, callbacks=resume_callbacks(args), verbose=0)
    untrained = model()
    assert restore_weights(untrained, args)
    assert values(untrained) == values(trained)
    with pytest.raises(TrainingError, match="does not fit the model"):
        restore_weights(model(units=2), args)


@pytest.mark.parametrize("loss", ["deleted by another run", "never written"])
def test_weights_are_never_silently_those_from_before_the_end_of_the_fit(
    tmp_path: Path, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = fn_args(tmp_path)
    args.model_run_dir = str(tmp_path / "model_run")
    callbacks = resume_callbacks(args, every_steps=1)
    if loss == "never written":  # at the end of the fit, as if the disk were full

        def full(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        end = tf.keras.callbacks.LambdaCallback(
            on_train_end=lambda logs: monkeypatch.setattr(_manager, "_publish", full)
        )
        callbacks = resume_callbacks(args, name="full", every_steps=1, callbacks=[end])
    tiny_model().fit(ones(8), verbose=0, callbacks=callbacks)
    name = "fit" if loss == "deleted by another run" else "full"
    if name == "fit":
        shutil.rmtree(tmp_path / name)
    with pytest.raises(TrainingError, match="no checkpoint of the end of the fit"):
        restore_weights(tiny_model(), args, name=name)
    # Another run in the same process begins as if there had been none.
    later = fn_args(tmp_path)
    assert restore_weights(tiny_model(), later, name=name) == (name == "full")
    with (
        exports_trained_weights(),
        pytest.raises(TrainingError, match="no checkpoint of the end of the fit"),
    ):
        restore_weights(tiny_model(), later, name=name)


def test_a_fit_that_the_run_has_left_out_is_no_lost_one(tmp_path: Path) -> None:
    """`export_fn` of `publish --module-file` may restore an optional second fit."""
    args = fn_args(tmp_path)
    tiny_model().fit(ones(8), verbose=0, callbacks=resume_callbacks(args))
    with exports_trained_weights():
        assert restore_weights(tiny_model(), args)
        assert not restore_weights(tiny_model(), args, name="fine_tuning")


@pytest.mark.parametrize(
    ("keras", "ways"),
    [("keras", ("memory", "stream")), ("tf_keras", ("stream", "disk"))],
    indirect=["keras"],
)
def test_examples_that_come_another_way_than_before_are_told_of(
    tmp_path: Path, keras: Any, examples: str, ways: tuple[str, str], caplog: Any
) -> None:
    def fit(path: Any, end: int = 0) -> None:
        read = make_dataset_factory(seed=1, path=path)
        options = TensorFlowDatasetOptions(batch_size=10, num_epochs=None, label_key="y")
        model = keras.Sequential([keras.Input([1], name="x"), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        callbacks = [*resume_callbacks(fn_args(tmp_path), every_steps=1), ending(keras, end)]
        caplog.clear()
        with contextlib.suppress(Ended):
            data = read([examples], options, helpers.read_schema())
            model.fit(data, steps_per_epoch=5, epochs=2, verbose=0, callbacks=callbacks)

    fit(ways[0], end=3)
    fit(ways[0], end=2)
    assert "some rows come twice" not in caplog.text
    fit(ways[1])
    assert "some rows come twice" in caplog.text
