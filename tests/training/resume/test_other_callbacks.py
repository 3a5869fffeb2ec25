"""Callbacks of a resumed fit see no batch twice, and write into the directory of the new run."""

import collections
import contextlib
import copy
import datetime
import enum
import functools
import json
import logging
import os
import random
import shutil
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import training
from generic_trainer._core.progress import ProgressReader
from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.training.resume import _callback_files
from generic_trainer.training.resume._callback_state import CallbackState
from generic_trainer.training.resume._clocks import now
from tests.training.resume.fits import Ended, ending, fn_args, ones, values


def recorder(keras: Any, end: int = 0) -> Any:
    """Returns a callback that records its calls and writes a file after each batch."""

    class Recorder(keras.callbacks.Callback):
        def __init__(self, directory: str) -> None:
            super().__init__()
            self.directory, self.latest = directory, ""
            self.places, self.queue = {directory}, collections.deque([directory])
            self.calls: list[str] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.calls.append(f"epoch {epoch}")

        def on_test_begin(self, logs: Any = None) -> None:
            self.calls.append("test")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.calls.append(f"batch {batch}")
            iterations = int(self.model.optimizer.iterations)
            self.latest = os.path.join(self.directory, f"{iterations}.json")
            Path(self.latest).write_text(json.dumps(len(self.calls)), encoding="utf-8")
            if iterations == end:
                raise Ended

        def on_train_end(self, logs: Any = None) -> None:
            self.model.set_weights([each / 2 for each in self.model.get_weights()])

    return Recorder


def fit(keras: Any, tmp_path: Path, run: str, end: int = 0) -> Any:
    """Trains for 3 epochs of 4 steps, and writes into a directory of the run."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    directory = tmp_path / run
    directory.mkdir()
    callback = recorder(keras, end)(str(directory))
    resume = training.resume_callbacks(fn_args(tmp_path / "checkpoints"), every_steps=1)
    calls, data = callback.calls, ones(4).filter(lambda x, y: True)  # of unknown length
    with training.watched(str(tmp_path)):
        fit = functools.partial(model.fit, data, epochs=3, verbose=0, validation_data=ones(4))
        fit(callbacks=[*resume, callback])
    assert callback.calls is calls  # `run_fn` may hold it too
    return callback


def test_callbacks_are_not_called_in_a_replay_and_keep_the_paths_of_the_new_run(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Ended), caplog.at_level(logging.WARNING):
        fit(keras, tmp_path, "first", end=7)
    assert "because they hold paths (texts with a slash): Recorder.latest" in caplog.text
    resumed = fit(keras, tmp_path, "second")
    assert sorted(int(path.stem) for path in (tmp_path / "second").iterdir()) == [*range(7, 13)]
    assert ProgressReader(str(tmp_path)).look().step == 12
    assert resumed.directory == str(tmp_path / "second")
    assert {*resumed.places, *resumed.queue} == {resumed.directory}
    calls = [f"batch {batch}" for batch in range(4)]
    assert resumed.calls == [
        *("epoch 0", *calls, "test", "epoch 1", *calls, "test", "epoch 2", *calls, "test")
    ]
    finished = fit(keras, tmp_path, "third")
    assert not list((tmp_path / "third").iterdir())
    assert finished.calls == resumed.calls
    assert values(finished.model) == values(resumed.model)


@pytest.mark.parametrize("place", ["class", "around", "nonlocal", "argument", "method"])
def test_paths_anywhere_in_callbacks_are_named_if_they_change(
    caplog: pytest.LogCaptureFixture, place: str
) -> None:
    class Holder:
        lines: ClassVar[list[str]] = ["a/b"]

        def __init__(self) -> None:
            self.best: dict[str, Any] = {"loss": 1.0, "file": "a/b"}

        def note(self, *args: Any) -> None:
            self.best["loss"] = 0.5

    best, constant = {"loss": 1.0, "file": "a/b"}, ["a/b"]
    last = ""

    def around(*args: Any) -> None:
        best["loss"] = len(constant) / 2

    def assign(*args: Any) -> None:
        nonlocal last
        last = "a/b"

    def argument(held: dict[str, Any], *args: Any) -> None:
        held["loss"] = 0.5

    changes: dict[str, Callable[[], None]] = {
        "class": lambda: Holder.lines.append("a/c"),
        "around": around,
        "nonlocal": assign,
        "argument": functools.partial(argument, best),
        "method": Holder().note,
    }
    change = changes[place]
    callback = Holder() if place == "class" else types.SimpleNamespace(function=change)
    state = CallbackState([callback])
    state.values()
    assert not caplog.text
    change()
    state.values()
    name = {"class": "Holder.lines", "nonlocal": ".last", "argument": "(argument 0)"}
    assert f"{name.get(place, '.best')}" in caplog.text and "constant" not in caplog.text


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("kind", ["object", "number", "variable", "array"])
def test_only_what_is_lost_beside_a_path_is_named_whatever_else_is_there(
    caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    class Number(Unprintable, float):
        pass

    variable, array = tf.Variable(1.0), np.zeros(2)
    parts = {"object": Unprintable(), "number": Number(1), "variable": variable, "array": array}
    state = CallbackState([types.SimpleNamespace(held={"file": "a/b", "part": parts[kind]})])
    state.values()
    variable.assign(2.0)
    array += 1
    state.values()
    assert ("held" in caplog.text) == (kind == "array")


def test_paths_of_two_callbacks_of_one_class_are_not_mistaken_for_changes(
    caplog: pytest.LogCaptureFixture, keras: Any
) -> None:
    def writing(file: str) -> Any:
        lines = [file]
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda *args: lines.append("end"))

    callbacks = [writing("a/b"), writing("a/c")]
    state = CallbackState(callbacks)
    state.values()
    assert not caplog.text
    callbacks[0].on_epoch_end(0, {})
    state.values()
    assert "LambdaCallback" in caplog.text


class Kind(enum.IntEnum):
    LATE = 1


class Pair(NamedTuple):
    first: int
    second: int


def changing(keras: Any, epochs: tuple[int, ...], anew: tuple[int, ...]) -> Any:
    """Returns a callback that changes the model, or makes its step anew, at the start of epochs."""

    class Changing(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch in epochs:
                layer = self.model.layers[0]
                layer.trainable = not layer.trainable
                self.model.scale /= 2
                self.model.phase, self.model.shares = "main", (0.5, self.model.shares[0])
                self.model.kind, self.model.pair = Kind.LATE, Pair(1, 2)  # no data: no error
            if epoch in anew:
                self.model.make_train_function(force=True)

    return Changing()


# A step that is not made anew keeps the numbers with which it was traced.
@pytest.mark.parametrize(
    ("epochs", "anew", "eagerly"),
    [
        *(((0, 1, 2), (0, 1, 2), False), ((1,), (1,), True)),
        *(((0, 1, 2), (), False), ((0, 1, 2), (1,), False)),
    ],
)
def test_what_callbacks_and_steps_change_of_a_model_goes_on(
    tmp_path: Path, keras: Any, epochs: tuple[int, ...], anew: tuple[int, ...], eagerly: bool
) -> None:
    class Scaled(keras.Sequential):
        scale = 1.0
        _shift = 0.0
        phase: str | None = None
        shares: tuple[Any, ...] = (1.0, None)

        @property
        def shift(self) -> float:
            return self._shift

        @shift.setter
        def shift(self, value: float) -> None:
            self._shift = value

        def train_step(self, data: Any) -> Any:
            x, y = data
            if eagerly:
                self.scale, self.shift = self.scale + 0.125, self.shift + 0.25
            if self.phase == "main":
                y = y * self.shares[0]
            return super().train_step((x * self.scale + self.shift, y))

    def fit(run: str, end: int = 0) -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(2), keras.layers.Dense(1)]
        model = Scaled([keras.Input([1]), *layers])
        model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=eagerly)
        model.optimizer.build(model.trainable_variables)  # else it refuses layers that thaw
        callbacks = training.resume_callbacks(fn_args(tmp_path / run), every_steps=1)
        callbacks += [changing(keras, epochs, anew), ending(keras, end)]
        history = model.fit(ones(4), epochs=3, verbose=0, callbacks=callbacks)
        flags = [each.trainable for each in layers]
        return values(model), history.history, flags, model.scale

    straight = fit("straight")
    for end in (3, 7):  # within the first epoch, and then within the third
        with pytest.raises(Ended):
            fit("ended", end)
    assert fit("ended") == straight


def test_min_delta_keeps_its_sign_if_the_best_value_is_still_to_come(keras: Any) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    arguments = {"min_delta": 1.0, "start_from_epoch": 2}
    first, second = (keras.callbacks.EarlyStopping("loss", **arguments) for _ in range(2))
    model.fit(ones(), verbose=0, callbacks=[first])
    second.set_model(model)
    CallbackState([second]).assign(CallbackState([first]).values(), "path")
    second.on_epoch_end(1, {"loss": 1.0})
    assert second.min_delta == first.min_delta == -1.0


def test_a_copy_of_the_callbacks_starts_afresh(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    record = recorder(keras)(str(tmp_path))
    original = training.resume_callbacks(fn_args(tmp_path), callbacks=[record])
    for make in (copy.deepcopy, lambda each: [*map(copy.copy, each)]):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse", run_eagerly=True)
        caplog.clear()
        model.fit(ones(), verbose=0, callbacks=make(original))
        assert int(model.optimizer.iterations) == 1
        assert "starts afresh and saves no checkpoints" in caplog.text
    assert not (tmp_path / "fit").exists()


def test_a_replay_whose_first_step_raises_leaves_keras_as_it_was(
    tmp_path: Path, keras: Any
) -> None:
    with pytest.raises(Ended):
        fit(keras, tmp_path, "first", end=2)
    on_batch_end = keras.callbacks.CallbackList.on_train_batch_end

    class Broken(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            raise RuntimeError("the user's own")

    model = Broken([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    record = recorder(keras)(str(tmp_path))
    resume = training.resume_callbacks(fn_args(tmp_path / "checkpoints"), callbacks=[record])
    with pytest.raises(RuntimeError, match="the user's own"):
        model.fit(ones(), verbose=0, callbacks=resume)
    assert keras.callbacks.CallbackList.on_train_batch_end is on_batch_end
    assert "evaluate" not in vars(model)


# Makes a callback, and a function that returns what it has recorded.
Make = Callable[[], tuple[Any, Callable[[], Any]]]


def batch_recorders(keras: Any) -> dict[str, Make]:
    """Returns name → callback, which may record beside the others."""

    def of_class() -> Any:
        class Recorder(keras.callbacks.Callback):
            losses: ClassVar[list[float]] = []

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.losses.append(float(logs["loss"]))

        return Recorder(), lambda: Recorder.losses

    def called_as_ours() -> Any:
        class Progress(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.losses: list[float] = []

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.losses.append(float(logs["loss"]))

        callback = Progress()
        return callback, lambda: callback.losses

    def around() -> Any:
        losses: list[float] = []
        count = 0

        def on_end(batch: int, logs: Any) -> None:
            nonlocal count
            count += 1
            losses.append(float(logs["loss"]))

        return keras.callbacks.LambdaCallback(on_train_batch_end=on_end), lambda: (losses, count)

    def under_two_names() -> Any:
        class Recorder(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.all: dict[str, Any] = {"losses": [], "counts": [{"steps": 0}]}
                self.losses, self.counts = self.all["losses"], self.all["counts"][0]
                self.recent: list[Any] = []

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.losses.append(float(logs["loss"]))
                self.counts["steps"] += 1
                if batch == 2:  # one list under two names that this fit gave
                    self.recent = self.all["recent"] = [float(logs["loss"])]
                self.recent.append(batch)

        callback = Recorder()
        return callback, lambda: (callback.all, callback.losses, callback.recent)

    def apart_later() -> Any:
        class Recorder(keras.callbacks.Callback):
            def on_train_begin(self, logs: Any = None) -> None:
                self.first = self.last = list[float]()

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.last = [float(logs["loss"])]
                self.first = self.first or self.last

        callback = Recorder()
        return callback, lambda: (callback.first, callback.last)

    def arrays_around() -> Any:
        best, sums, kept = None, np.zeros(2), {"losses": np.zeros(1)}
        data = [np.zeros(1_000_000)]

        def on_end(batch: int, logs: Any) -> None:
            nonlocal best
            best = [np.full(2, logs["loss"])] if batch == 1 else best
            sums[:] += logs["loss"]
            kept["losses"] = np.append(kept["losses"] + data[0][0], logs["loss"])

        end = keras.callbacks.LambdaCallback(on_train_batch_end=on_end)
        return end, lambda: [each.tolist() for each in (*(best or ()), sums, kept["losses"])]

    return {
        "of_class": of_class,
        "called_as_ours": called_as_ours,
        "around": around,
        "under_two_names": under_two_names,
        "apart_later": apart_later,
        "arrays_around": arrays_around,
    }


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return call


def functions_of_others(keras: Any) -> dict[str, Make]:
    """Returns name → callback, whose functions record in what other functions and objects hold."""

    def of(function: Any) -> Any:
        return keras.callbacks.LambdaCallback(on_train_batch_end=function)

    def partial() -> Any:
        def on_end(losses: list[float], batch: int, logs: Any, *, counts: dict[str, int]) -> None:
            losses.append(float(logs["loss"]))
            counts["steps"] = counts.get("steps", 0) + 1

        losses: list[float] = []
        counts: dict[str, int] = {}
        return of(functools.partial(on_end, losses, counts=counts)), lambda: (losses, counts)

    def method() -> Any:
        class Trainer:
            def __init__(self) -> None:
                self.steps, self.losses, self.sums = 0, list[float](), np.zeros(2)
                self.limit = time.time()  # which no method assigns: that of the new run

            def on_end(self, batch: int, logs: Any) -> None:
                self.steps += 1
                self.losses.append(float(logs["loss"]))
                self.sums[:] += logs["loss"]

        trainer = Trainer()
        made_s, losses = trainer.limit, trainer.losses
        return of(trainer.on_end), lambda: [
            *(trainer.steps, trainer.losses, trainer.sums.tolist()),
            *(trainer.limit == made_s, trainer.losses is losses),
        ]

    def helper() -> Any:
        losses: list[float] = []
        count = 0

        def note(value: float) -> None:
            nonlocal count
            count += 1
            losses.append(value)

        return of(lambda batch, logs: note(float(logs["loss"]))), lambda: (losses, count)

    def default() -> Any:
        def on_end(batch: int, logs: Any, losses: list[float] = []) -> None:  # noqa: B006
            losses.append(float(logs["loss"]))

        return of(on_end), lambda: on_end.__defaults__

    def attribute() -> Any:
        def on_end(batch: int, logs: Any) -> None:
            kept: Any = on_end
            kept.steps = getattr(kept, "steps", 0) + 1

        on_end.steps = 0  # type: ignore[attr-defined]
        return of(on_end), lambda: on_end.steps  # type: ignore[attr-defined]

    def of_a_logger() -> Any:
        logger = logging.Logger("of this run", level=random.randrange(1, 9))
        level, write = logger.level, logger.debug
        return of(lambda batch, logs: write("%s", logs)), lambda: logger.level == level

    def of_a_base_and_its_child() -> Any:
        class Base(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None, seen: Any = []) -> None:  # noqa: B006
                seen.append(batch)

        class Child(Base):
            def on_train_batch_end(self, batch: int, logs: Any = None, seen: Any = []) -> None:  # noqa: B006
                seen.append(-batch)
                super().on_train_batch_end(batch, logs)

        hooks = Base.on_train_batch_end, Child.on_train_batch_end
        return Child(), lambda: [hook.__defaults__ for hook in hooks]

    def argument_and_default() -> Any:
        losses: list[float] = []

        def on_end(kept: list[float], batch: int, logs: Any, last: Any = [0]) -> None:  # noqa: B006
            kept.append(float(logs["loss"]))
            last[0] = batch

        end = functools.partial(on_end, losses)
        return of(end), lambda: (losses, on_end.__defaults__)

    def deadline() -> Any:
        class Trainer:
            def begin(self) -> float:
                self.deadline, self.steps = time.time() + 3600, 0
                return self.deadline

            @decorated
            def on_end(self, batch: int, logs: Any) -> None:
                self.steps += 1

        trainer = Trainer()
        begun = trainer.begin()  # which is not changed while the fit runs
        return of(trainer.on_end), lambda: (trainer.steps, trainer.deadline == begun)

    def counter(begin: int) -> Any:
        class Counter:
            def __init__(self) -> None:
                self.steps = begin

            def on_end(self, batch: int, logs: Any) -> None:
                self.steps += 1

        counter = Counter()
        return of(counter.on_end), lambda: counter.steps

    def counter_from_0() -> Any:
        return counter(0)

    def counter_from_7() -> Any:  # what the other one has when the fit is killed
        return counter(7)

    def tree() -> Any:
        root: dict[str, Any] = {"children": [{"steps": 0}]}
        root["children"][0]["parent"] = root

        def on_end(batch: int, logs: Any) -> None:
            root["children"][0]["steps"] += 1

        return of(on_end), lambda: root["children"][0]["steps"]

    def two_of_one_factory() -> Any:
        def make() -> Any:
            losses: list[float] = []

            def on_end(number: int, logs: Any) -> None:
                losses.append(float(logs["loss"]))

            return on_end, losses

        (of_batch, batches), (of_epoch, epochs) = make(), make()
        both = keras.callbacks.LambdaCallback(on_train_batch_end=of_batch, on_epoch_end=of_epoch)
        return both, lambda: (batches, epochs)

    def numbers_of_class() -> Any:
        class Counting(keras.callbacks.Callback):
            steps, limit = 0, time.time()
            sums = np.zeros(2)

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                Counting.steps += 1
                self.sums[0] += logs["loss"]

        made_s, sums = Counting.limit, Counting.sums
        return Counting(), lambda: [
            *(Counting.steps, Counting.sums.tolist()),
            *(Counting.limit == made_s, Counting.sums is sums),
        ]

    return {
        each.__name__: each
        for each in (
            *(partial, method, helper, default, attribute),
            *(of_a_logger, of_a_base_and_its_child, argument_and_default, deadline, tree),
            *(two_of_one_factory, numbers_of_class, counter_from_0, counter_from_7),
        )
    }


def evaluators(keras: Any) -> dict[str, Make]:
    """Returns hook → callback that evaluates the model there."""

    def make(hook: str) -> Any:
        class Evaluating(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.losses: list[float] = []

        def evaluate(self: Any, *args: Any) -> None:
            result = self.model.evaluate(ones(), verbose=0, return_dict=True)
            self.losses.append(float(result["loss"]))

        setattr(Evaluating, hook, evaluate)
        callback = Evaluating()
        return callback, lambda: callback.losses

    return {hook: functools.partial(make, hook) for hook in ("on_epoch_begin", "on_train_begin")}


def fit_with(keras: Any, directory: Path, *callbacks: Any, end: int = 0, run_dir: str = "") -> Any:
    """Trains for 3 epochs of 4 steps, at the end of one of which the fit may be killed."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    args = fn_args(directory)
    args.model_run_dir = run_dir
    resume = training.resume_callbacks(args, every_steps=1)
    how = {"callbacks": [*callbacks, *resume, ending(keras, end)], "validation_data": ones()}
    with contextlib.suppress(Ended):
        model.fit(ones(4), epochs=3, verbose=0, **how)
    return model


@pytest.mark.parametrize("kind", [batch_recorders, functions_of_others, evaluators])
def test_what_callbacks_record_is_that_of_an_unbroken_fit(
    tmp_path: Path, keras: Any, kind: Callable[[Any], dict[str, Make]]
) -> None:
    def fit(directory: str, end: int = 0) -> dict[str, Any]:
        made = {name: make() for name, make in kind(keras).items()}
        callbacks = [callback for callback, _ in made.values()]
        model = fit_with(keras, tmp_path / directory, *callbacks, end=end)
        recorded = {name: recorded() for name, (_, recorded) in made.items()}
        return {**recorded, "weights": values(model)}

    expected = fit("unbroken")
    fit("killed", end=7)
    assert fit("killed") == expected


def probe(keras: Any, hook: str) -> Any:
    """Returns a callback that trains a model of its own, whose optimizer it builds in a hook."""

    class Probe(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.probe = keras.Sequential([keras.layers.Dense(1)])
            self.probe.build((None, 1))
            self.probe.compile(keras.optimizers.SGD(momentum=0.9), "mse", run_eagerly=True)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.probe.fit(ones(), verbose=0)

    def build(self: Any, *args: Any, **logs: Any) -> None:
        self.probe.optimizer.build(self.probe.trainable_variables)
        self.probe.evaluate(ones(), verbose=0)

    if hook != "on_epoch_end":
        setattr(Probe, hook, build)
    return Probe()


@pytest.mark.parametrize(
    ("hook", "is_late"),
    [
        *(("on_epoch_end", True), ("on_train_batch_begin", True), ("on_train_batch_end", True)),
        *(("on_train_begin", False), ("on_epoch_begin", False)),
    ],
)
def test_variables_that_no_resumed_fit_can_have_are_named_in_the_first(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture, hook: str, is_late: bool
) -> None:
    fit_with(keras, tmp_path, probe(keras, hook), end=7)
    late = [each for each in caplog.messages if "it ends with an error" in each]
    assert len(late) == is_late and all("optimizer" in each for each in late)
    with pytest.raises(TrainingError) if is_late else contextlib.nullcontext():
        fit_with(keras, tmp_path, probe(keras, hook))


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin"])
@pytest.mark.parametrize("is_resumed", [True, False])
def test_an_error_before_the_first_step_leaves_the_model_as_it_was(
    tmp_path: Path, keras: Any, hook: str, is_resumed: bool
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("the user's own")

    if is_resumed:
        fit_with(keras, tmp_path, keras.callbacks.Callback(), end=3)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    failing = keras.callbacks.LambdaCallback(**{hook: fail})
    callbacks = [keras.callbacks.Callback(), *training.resume_callbacks(fn_args(tmp_path)), failing]
    with pytest.raises(RuntimeError, match="the user's own"):
        model.fit(ones(4), verbose=0, callbacks=callbacks)
    model.evaluate(ones(), verbose=0)
    before = values(model)
    history = model.fit(ones(4), verbose=0).history
    assert history["loss"][0] > 0
    assert values(model) != before


def test_a_time_limit_goes_on_where_it_was(
    tmp_path: Path, keras: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TimeStopping(keras.callbacks.Callback):
        def __init__(self, clock: str) -> None:
            super().__init__()
            self.clock = clock

        def on_train_begin(self, logs: Any = None) -> None:
            self.deadline = getattr(time, self.clock)() + 1000.0
            self.drawn = float(tf.random.uniform([]))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch_start = getattr(time, self.clock)()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if getattr(time, self.clock)() > self.deadline:
                self.model.stop_training = True

    passed = {"time": 7200.0, "monotonic": 3600.0}  # which stands still while a machine sleeps
    first, second = ([*map(TimeStopping, passed)] for _ in range(2))
    fit_with(keras, tmp_path, *first, end=7)
    for clock, passed_s in passed.items():
        later = functools.partial(lambda read, more: read() + more, getattr(time, clock), passed_s)
        monkeypatch.setattr(time, clock, later)
    model = fit_with(keras, tmp_path, *second)
    assert int(model.optimizer.iterations) == 12
    for before, after in zip(first, second, strict=True):
        assert before.deadline + passed[before.clock] <= after.deadline
        # Less than a new limit.
        assert after.deadline < getattr(time, after.clock)() + 1000.0
        assert after.epoch_start > before.deadline
        assert after.drawn == before.drawn


READINGS: dict[str, Callable[[], Any]] = {
    "seconds": lambda: int(time.time()),
    "milliseconds": lambda: time.time() * 1000,
    "nanoseconds": lambda: int(time.time() * 1e9),
    "monotonic_ns": lambda: int(time.monotonic() * 1e9),
    "numpy": lambda: np.float64(time.time()),
    "dict": lambda: {"begin": time.time()},
    "list": lambda: [time.monotonic()],
    "date": lambda: datetime.datetime.fromtimestamp(time.time()),
}


@pytest.mark.parametrize("place", ["attribute", "before_fit", "around"])
@pytest.mark.parametrize("kind", READINGS)
def test_readings_of_clocks_are_moved_in_any_unit_and_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    read = READINGS[kind]

    def begun() -> tuple[CallbackState, Callable[[], Any]]:
        callback: Any = types.SimpleNamespace(drawn=random.random(), seed=random.getrandbits(40))
        begin, since = None, now()
        if place == "before_fit":
            callback.begin, since = read(), [each + 0.01 for each in now()]
        elif place == "attribute":
            callback.begin = read()
        else:

            def on_begin(*args: Any) -> None:
                nonlocal begin
                begin = read()

            callback.function = on_begin
            on_begin()
        drawn = callback.drawn, callback.seed
        state = CallbackState([callback], since)
        return state, lambda: (begin or callback.begin, (callback.drawn, callback.seed), drawn)

    def seconds(begin: Any) -> float:
        value = next(iter(begin.values() if isinstance(begin, dict) else np.ravel(begin)))
        scale = {"milliseconds": 1e3, "nanoseconds": 1e9, "monotonic_ns": 1e9}.get(kind, 1)
        return (value.timestamp() if isinstance(value, datetime.datetime) else value) / scale

    first, of_first = begun()
    begin, drawn, _ = of_first()
    before_s, saved, shift_s = seconds(begin), first.values(), 7200.0
    for name in ("time", "monotonic"):
        original = getattr(time, name)
        monkeypatch.setattr(time, name, lambda original=original: original() + shift_s)
    second, of_second = begun()
    second.assign(saved, "path")
    begin, moved_drawn, own_drawn = of_second()
    assert abs(seconds(begin) - before_s - shift_s) < 1.5 and type(begin) is type(of_first()[0])
    assert moved_drawn == drawn != own_drawn


def test_a_reading_that_callbacks_share_is_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun() -> tuple[CallbackState, dict[str, float]]:
        since, begin, begin_s = now(), {"time": time.time()}, time.time()

        def on_begin(*args: Any) -> None:
            nonlocal begin_s
            begin_s = begin["time"] = time.time()

        def on_end(*args: Any) -> float:
            return begin["time"] - begin_s

        first = types.SimpleNamespace(begin=begin, end=on_end)
        callbacks = [first, types.SimpleNamespace(begin=on_begin, end=on_end)]
        return CallbackState(callbacks, since), begin

    state, first = begun()
    saved, original = state.values(), time.time
    monkeypatch.setattr(time, "time", lambda: original() + 7200.0)
    state, second = begun()
    state.assign(saved, "path")
    assert abs(second["time"] - first["time"] - 7200.0) < 1.0


@pytest.mark.parametrize("later", [None, 0.0, "ended"])
def test_a_reading_that_a_callback_replaces_is_not_moved(later: Any) -> None:
    def begun(value: float) -> tuple[Any, CallbackState]:
        callback = types.SimpleNamespace(begin=value)
        return callback, CallbackState([callback], [value - 1, 0.0])

    (first, state), (second, other) = begun(time.time() - 3600), begun(time.time())
    first.begin = later
    other.assign(state.values(), "path")
    assert second.begin == later


def test_a_log_that_runs_append_to_has_one_header(tmp_path: Path, keras: Any) -> None:
    log = tmp_path / "log.csv"
    logger = functools.partial(keras.callbacks.CSVLogger, str(log), append=True)
    fit_with(keras, tmp_path, logger(), end=6)
    fit_with(keras, tmp_path, logger())
    rows = log.read_text(encoding="utf-8").splitlines()
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1", "2"]


@pytest.mark.parametrize(
    ("earlier", "name"),
    [
        *(("killed", "best.weights.h5"), ("gone", "best.weights.h5")),
        ("failed", "{epoch}.weights.h5"),
    ],
)
def test_the_best_model_of_an_earlier_run_comes_along(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture, earlier: str, name: str
) -> None:
    def fit(run: str, end: int = 0) -> list[str]:
        directory = tmp_path / run
        directory.mkdir()
        best = keras.callbacks.ModelCheckpoint(  # of the first epoch, as the loss becomes smaller
            str(directory / name), "loss", mode="max", save_best_only=True, save_weights_only=True
        )
        fit_with(keras, tmp_path / "checkpoints", best, end=end, run_dir=str(directory))
        return sorted(each.name for each in directory.iterdir())

    assert fit("first", end=7) == [name.format(epoch=1)]
    weights = (tmp_path / "first" / name.format(epoch=1)).read_bytes()
    if earlier == "failed":
        (tmp_path / "first").rename(tmp_path / "first.failed")
    elif earlier == "gone":
        shutil.rmtree(tmp_path / "first")
    is_gone = earlier == "gone"
    assert fit("second") == [name.format(epoch=2 if is_gone else 1)]
    assert ("begins with the best model anew" in caplog.text) == is_gone
    copied = (tmp_path / "second" / name.format(epoch=2 if is_gone else 1)).read_bytes()
    assert (copied == weights) != is_gone
    assert "hold paths" not in caplog.text


def test_the_newer_file_of_two_fits_comes_along_unless_the_new_run_has_its_own(
    tmp_path: Path,
) -> None:
    runs = {name: tmp_path / name for name in ("first", "second", "third")}
    for name, directory in runs.items():
        directory.mkdir()
        for file in ("best", "both"):
            if name != "third":
                (directory / file).write_text(name)
    _callback_files.bring_files(str(runs["first"]), str(runs["third"]))  # of a fit that had ended
    (runs["third"] / "both").write_text("of the third")
    _callback_files.bring_files(str(runs["second"]), str(runs["third"]))
    assert (runs["third"] / "best").read_text() == "second"
    assert (runs["third"] / "both").read_text() == "of the third"


def test_a_file_of_an_earlier_run_is_copied_once_unless_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    (first / "best").write_text("old")
    copied = []
    copy_tree = _callback_files.copy_tree
    monkeypatch.setattr(
        _callback_files, "copy_tree", lambda *paths: copied.append(copy_tree(*paths))
    )
    for _ in range(3):
        _callback_files.bring_files(str(first), str(second))
    assert len(copied) == 1
    (first / "best").write_text("newer")
    _callback_files.bring_files(str(first), str(second))
    assert (second / "best").read_text() == "newer"


def test_files_of_the_user_come_along_whatever_paths_callbacks_make(
    tmp_path: Path,
) -> None:
    keras = tf.keras

    def fit(run: str, end: int = 0) -> dict[str, str]:
        directory = tmp_path / run
        directory.mkdir()
        args = types.SimpleNamespace(model_run_dir=str(directory))

        class Snapshots(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.args = args

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                Path(f"{self.args.model_run_dir}/snapshots").mkdir(exist_ok=True)
                Path(f"{self.args.model_run_dir}/snapshots/{epoch}").write_text(run)

        around = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: (directory / f"around-{epoch}").write_text(run)
        )
        for name in ("progress-chief.jsonl", "report.html", ".hidden"):  # our own
            (directory / name).write_text(run)
        callbacks = [Snapshots(), around]
        fit_with(keras, tmp_path / "checkpoints", *callbacks, end=end, run_dir=str(directory))
        files = [path for path in directory.rglob("*") if path.is_file()]
        return {str(path.relative_to(directory)): path.read_text() for path in files}

    fit("first", end=10)
    expected = {"progress-chief.jsonl": "second", "report.html": "second", ".hidden": "second"}
    for epoch, run in ((0, "first"), (1, "first"), (2, "second")):
        expected |= {f"snapshots/{epoch}": run, f"around-{epoch}": run}
    assert fit("second") == expected


def test_backups_of_keras_are_named_beside_which_no_fit_resumes(
    keras: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    callbacks = [backup, *training.resume_callbacks(fn_args(tmp_path))]
    model.fit(ones(2), verbose=0, callbacks=callbacks)
    assert "BackupAndRestore sets the epoch" in caplog.text


def test_a_model_of_another_backend_is_refused(tmp_path: Path) -> None:
    (resume,) = training.resume_callbacks(fn_args(tmp_path))
    resume.set_model(types.SimpleNamespace())
    with pytest.raises(ConfigurationError, match="KERAS_BACKEND=tensorflow"):
        resume.on_train_begin()
