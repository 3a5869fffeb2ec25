"""Hooks around `fit` of Keras 2 and Keras 3, and the progress that one of them writes.

Others are around the passes over data outside of `fit`: `evaluate`, `predict` and `adapt`.

`fit` gets an additional callback, which stores its position in memory. Once a second a thread
writes it into the run's progress, with the CPU, GPU and memory usage of the process. That costs
about a microsecond a step, and needs no cooperation from `run_fn`.
"""

import contextlib
import functools
import inspect
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.machine import IDLE_SHARE, available_cpus, gpu_usage, resident_memory_mb
from generic_trainer._core.progress import LOG_FILE, ProgressLog, recording
from generic_trainer.errors import ConfigurationError

_logger = logging.getLogger(__name__)

_EVERY_S = 1.0
# Long runs write fewer lines: the interval grows to this share of the time so far.
_SHARE = 1e-3
_EPOCHS_PER_LINE = 0.1  # the end of an epoch writes a line after this share of the interval
_GPU_EVERY_S = 10.0
_ARRAYS_BATCH_SIZE = 32  # Keras's default for arrays
# The steps before the epoch in which a `fit` resumes; one of the `params` of its callbacks.
RESUMED = "generic_trainer_resumed_steps"
_LIBRARIES = ("generic_trainer", "keras", "tf_keras")
# Method of models or layers → its phase, and the argument with the data.
_PASSES = {
    "evaluate": ("evaluating", "x"),
    "predict": ("predicting", "x"),
    "adapt": ("adapting", "data"),
}
# From the package of the model's Keras and the arguments of `fit` by their names, `self` included,
# which it may change, to a context of the call.
FitHook: TypeAlias = Callable[[ModuleType, dict[str, Any]], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def watched(run_dir: str) -> Iterator[None]:
    """Writes the progress of training within the context into `progress-chief.jsonl`.

    Within the context, methods of Keras that would read a dataset forever raise an error.

    Args:
        run_dir: the directory of the ModelRun artifact; empty to disable monitoring, as in all
            workers except the chief.
    """
    if not run_dir:
        with hooked_fits(_ending_fit), _hooked_passes(None):
            yield
        return
    with recording(run_dir, "chief") as log:
        watch = _Watch(log)
        fits = hooked_fits(functools.partial(_watched_fit, watch, run_dir))
        with fits, _hooked_passes(watch), watch.sampled():
            yield


class _Watch:
    """The position of the training, stored by the training thread and written by another thread.

    Attributes:
        is_due: whether the next step must store its position and metrics.
        fitting: the threads in which a `fit` is under way.
        has_fitted: whether there was a `fit` before.
    """

    def __init__(self, log: ProgressLog) -> None:
        self._log = log
        self._start_s = time.monotonic()
        self._epoch_s = -_EVERY_S
        self._gpu_s = -_GPU_EVERY_S
        self._pending: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._is_warned = False
        self.is_due = True
        self.fitting: set[int] = set()
        self.has_fitted = False

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        self._mark = time.monotonic(), time.process_time()
        thread = threading.Thread(target=self._sample, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._flush()

    def begin_curves(self) -> None:
        """Forgets the metrics of an earlier fit, as that of another model has the same names."""
        self._flush()
        self.store(curves="anew")

    def step_ends(self, line: Mapping[str, Any], logs: Any) -> None:
        """Stores the position of a `fit`, with its metrics."""
        self.is_due = False
        metrics = _numbers(logs)
        self.store(**line, metrics=metrics)
        loss = metrics.get("loss", 0.0)
        if not (math.isfinite(loss) or self._is_warned):
            self._is_warned = True
            _logger.warning(
                "Loss is %s at step %s. A model with weights that are NaN will be rejected after "
                "the training; with training.resume_callbacks(fn_args), fit ends at once, and the "
                "rows that are to blame are named",
                loss,
                line.get("step"),
            )

    def store(self, **line: Any) -> None:
        """Stores fields, such as the phase, which the next sample writes."""
        with self._lock:
            self._pending = {**self._pending, **line}

    def epoch_ends(self, line: Mapping[str, Any], logs: Any) -> None:
        """Stores the metrics of an epoch and writes them, unless the last such line is recent."""
        self.step_ends(line, logs)
        now_s = time.monotonic()
        if now_s - self._epoch_s > _EPOCHS_PER_LINE * self._interval_s:
            self._epoch_s = now_s
            self._flush()

    @property
    def _interval_s(self) -> float:
        return max(_EVERY_S, _SHARE * (time.monotonic() - self._start_s))

    def _sample(self) -> None:
        while not self._over.wait(self._interval_s):
            with contextlib.suppress(Exception):  # failing to write progress must not fail the run
                before = self._mark
                now = time.monotonic(), time.process_time()
                wall_s, cpu_s = (b - a for a, b in zip(before, now, strict=True))
                # A process without input and output is considered to hang. So if it is idle, this
                # thread must not write either.
                if self._pending or cpu_s > IDLE_SHARE * wall_s:
                    self._flush(**self._machine(cpu_s / wall_s))
                    self._mark = now
                self.is_due = True

    def _flush(self, **more: Any) -> None:
        with self._lock:
            line = {**self._pending, **more}
            self._pending = {}
        if line:
            self._log.write(**line)

    def _machine(self, cpu: float) -> dict[str, Any]:
        """Returns the usage of the machine; `cpu`: processors that were busy since the last one."""
        line: dict[str, Any] = {
            "cpu": round(min(1.0, cpu / len(available_cpus())), 3),
            "memory_mb": resident_memory_mb(),
        }
        if time.monotonic() > self._gpu_s + _GPU_EVERY_S:
            self._gpu_s = time.monotonic()
            if gpus := gpu_usage():
                line["gpu"] = max(share for share, _ in gpus)
        return line


def _numbers(logs: Any) -> dict[str, float]:
    numbers = {}
    for name, value in dict(logs or {}).items():
        with contextlib.suppress(TypeError, ValueError):  # a metric that is not a number
            numbers[str(name)] = float(value)
    return numbers


# ---- fit -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _watched_fit(
    watch: _Watch, run_dir: str, keras: ModuleType, arguments: dict[str, Any]
) -> Iterator[None]:
    log = os.path.abspath(os.path.join(run_dir, LOG_FILE))
    for callback in tf.nest.flatten(arguments.get("callbacks") or ()):
        path = getattr(callback, "filename", None)  # of a CSVLogger, which may empty the file
        if isinstance(path, str) and os.path.abspath(path) == log:
            _logger.warning(
                "%s writes into %s, which is the log of this run as well: each may lose what the "
                "other has written. Give the file another name, such as history.csv.",
                type(callback).__name__,
                path,
            )
    with _ending_fit(keras, arguments):
        thread = threading.get_ident()
        if thread in watch.fitting:  # it is part of that one, whose position and metrics stay
            yield
            return
        watch.fitting.add(thread)
        try:
            progress = _fit_callback(keras, watch, _batch_size(arguments))
            with one_more_callback(keras, arguments, progress):
                yield
        finally:
            watch.fitting.discard(thread)


@contextlib.contextmanager
def _ending_fit(keras: ModuleType, arguments: dict[str, Any]) -> Iterator[None]:
    """Refuses a `fit` that would never end; Keras 2 rejects such datasets itself."""
    pairs = {"x": "steps_per_epoch", "validation_data": "validation_steps"}
    for data, steps in pairs.items():
        if not (data == "x" and _may_stop(arguments)):
            _refuse_endless("fit", arguments, data, steps)
    yield


def _may_stop(arguments: Mapping[str, Any]) -> bool:
    """Returns whether a callback of the user's own code could end a pass over endless data."""
    callbacks = arguments.get("callbacks") or ()
    callbacks = callbacks if isinstance(callbacks, (list, tuple)) else (callbacks,)
    return not all(map(_is_of_library, callbacks))


def _is_of_library(callback: Any) -> bool:
    kind = type(callback)
    # The functions of a LambdaCallback are the user's.
    return kind.__name__ != "LambdaCallback" and kind.__module__.split(".")[0] in _LIBRARIES


def _refuse_endless(method: str, arguments: Mapping[str, Any], data: str, steps: str) -> None:
    """Raises an error for a call that would never end.

    Args:
        method: the name of the called method.
        arguments: of the call, by name.
        data: the name of the argument with the data.
        steps: the name of the argument with the number of steps; some `adapt` have none.

    Raises:
        ConfigurationError: the dataset repeats forever, and no number of steps limits it.
    """
    dataset = arguments.get(data)
    if (
        isinstance(dataset, tf.data.Dataset)
        and arguments.get(steps) is None
        and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    ):
        numbers = (
            "the component's numbers are fn_args.train_steps and fn_args.eval_steps; without a "
            "component they are None, unless --train-steps and --eval-steps are given, or "
            "fn_args.data_accessor makes the endless datasets"
        )
        limit = "a part of it, such as data.take(100)" if method == "adapt" else steps
        raise ConfigurationError(
            f"{method} would never end: the dataset {data} repeats forever, and nothing limits it. "
            f"Pass {limit} ({numbers}), or read one pass: without repeat(), or with "
            "TensorFlowDatasetOptions(num_epochs=1)."
        )


def _batch_size(arguments: Mapping[str, Any]) -> int | None:
    """Returns the number of examples in a step; None if the dataset's shapes do not define it."""
    x = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        shapes = [getattr(spec, "shape", None) for spec in tf.nest.flatten(x.element_spec)]
        first = next((shape for shape in shapes if shape is not None and shape.rank), [None])
        return first[0]
    given = arguments.get("batch_size")
    is_array = hasattr(x, "shape") or isinstance(x, (dict, list, tuple))
    return int(given or _ARRAYS_BATCH_SIZE) if given or is_array else None


def _fit_callback(package: ModuleType, watch: _Watch, batch_size: int | None) -> Any:
    class Progress(package.callbacks.Callback):  # type: ignore[name-defined,misc]
        """Stores the position of `fit`."""

        # Without these, Keras would wait for the logs of each step, to pass them as numbers.
        _supports_tf_logs = True
        async_safe = True

        def on_train_begin(self, logs: Any = None) -> None:
            self._epoch = 0
            self._done = 0
            self._has_begun = False
            if epochs := self.params.get("epochs"):
                watch.store(epochs=epochs)  # shows that the first step is traced

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._begin(epoch)
            self._epoch = epoch
            self._first = self._done

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._done = self._first + batch + 1
            if watch.is_due:
                watch.step_ends(self._line(), logs)

        def on_test_begin(self, logs: Any = None) -> None:
            watch.store(phase="validating")

        def on_test_end(self, logs: Any = None) -> None:
            watch.store(phase="training")

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            watch.epoch_ends(self._line(), logs)

        def on_train_end(self, logs: Any = None) -> None:
            # What was before a kill, and what other callbacks add, is in the history alone.
            history = getattr(self.model.history, "history", {})
            if latest := {name: values[-1] for name, values in history.items() if values}:
                self._begin(0)  # a resumed fit that ended before the kill has no epoch
                watch.store(**self._line(), metrics=_numbers(latest))

        def _begin(self, epoch: int) -> None:
            if self._has_begun:
                return
            self._has_begun = True
            # A `fit` that is resumed, or has `initial_epoch`, goes on.
            resumed = self.params.get(RESUMED, 0)
            self._done = max(epoch * (self.params.get("steps") or 0), resumed)
            if not self._done or (resumed and watch.has_fitted):
                watch.begin_curves()
            watch.has_fitted = True

        def _line(self) -> dict[str, Any]:
            steps = self.params.get("steps")
            epochs = self.params.get("epochs")
            line = {"step": self._done, "epoch": self._epoch + 1, "epochs": epochs}
            if steps and epochs:
                line["steps"] = steps * epochs
            return {**line, "batch_size": batch_size} if batch_size else line

    return Progress()


def is_progress(callback: Any) -> bool:
    """Returns whether a callback is the one that stores the position of a watched `fit`."""
    return type(callback).__module__ == __name__


# ---- evaluate, predict, adapt --------------------------------------------------------------------


@contextlib.contextmanager
def _hooked_passes(watch: _Watch | None) -> Iterator[None]:
    """Refuses passes without an end within the context, and stores the phases of the others."""
    with contextlib.ExitStack() as stack:
        for name in ("keras", "tf_keras"):
            keras: Any = sys.modules.get(name)
            for owner, method in _methods(keras) if keras else ():
                around = functools.partial(_pass, watch, method)
                stack.enter_context(internals.replaced_method(owner, method, around))
        yield


def _methods(keras: Any) -> Iterator[tuple[type, str]]:
    """Yields the classes and names of the methods; keras may be there without its API."""
    if model := getattr(keras, "Model", None):
        yield model, "evaluate"
        yield model, "predict"
    layers = vars(getattr(keras, "layers", None) or ModuleType("none")).values()
    for layer in {member for member in layers if inspect.isclass(member)}:
        if "adapt" in vars(layer):
            yield layer, "adapt"


def _pass(
    watch: _Watch | None, method: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    phase, data = _PASSES[method]
    try:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
    except TypeError:  # raise Keras's own error for wrong arguments
        return original(*args, **kwargs)
    if not _may_stop(arguments):
        _refuse_endless(method, arguments, data, "steps")
    # `fit` and trials pass such callbacks, and note the phase themselves.
    is_part = arguments.get("callbacks") is not None and _is_of_library(arguments["callbacks"])
    if watch is None or is_part:
        return original(*args, **kwargs)
    watch.store(phase=phase)
    try:
        return original(*args, **kwargs)
    finally:
        watch.store(phase="training")


@contextlib.contextmanager
def hooked_fits(hook: FitHook) -> Iterator[None]:
    """Runs each call of `fit` within the context in the context of a hook."""
    with contextlib.ExitStack() as stack:
        for name in ("keras", "tf_keras"):  # imported by the user's module, or as `tf.keras`
            model = getattr(sys.modules.get(name), "Model", None)
            if model is not None:
                around = functools.partial(_fit, sys.modules[name], hook)
                stack.enter_context(internals.replaced_method(model, "fit", around))
        yield


def _fit(
    keras: ModuleType, hook: FitHook, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    try:
        bound = inspect.signature(original).bind(*args, **kwargs)
    except TypeError:  # raise Keras's own error for wrong arguments
        return original(*args, **kwargs)
    with hook(keras, bound.arguments):
        return original(*bound.args, **bound.kwargs)


@contextlib.contextmanager
def one_more_callback(
    keras: ModuleType | Any, arguments: dict[str, Any], callback: Any
) -> Iterator[None]:
    """Adds a callback to a call of `fit`, before its other callbacks.

    Args:
        keras: the package of the model's Keras.
        arguments: of `fit`, by name.
        callback: of that Keras.
    """
    given = arguments.get("callbacks")
    # `fit` passes neither the model nor its parameters on to those in a list of Keras's own class.
    given = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else given
    arguments["callbacks"] = [callback, *([] if given is None else tf.nest.flatten(given))]
    yield
