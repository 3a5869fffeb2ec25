"""Watch over a training whose `run_fn` does not know of it.

`fit` of Keras 2 and Keras 3 gets one more callback, and iterators in loops of one's own count what
they hand out. Both note in passing how far they are; once a second a thread writes that into the
run's progress, with what the process uses of the machine. A step pays less than a microsecond.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import one_more_callback
from generic_trainer._core.machine import (
    IDLE_MAIN_SHARE,
    IDLE_SHARE,
    available_cpus,
    gpu_usage,
    resident_memory_mb,
)
from generic_trainer._core.progress import ProgressLog, recording
from generic_trainer.errors import ConfigurationError

_EVERY_S = 1.0
# Of a long run there are fewer lines: each comes after this share of the time so far.
_SHARE = 1e-3
_EPOCHS_PER_LINE = 0.1  # an epoch is worth a line of its own after this share of the interval
_GPU_EVERY_S = 10.0
_ARRAYS_BATCH_SIZE = 32  # of Keras, where nobody says
_BUSY, _WAITING = 0.8, 0.3


@contextlib.contextmanager
def watched(run_dir: str) -> Iterator[None]:
    """Writes the progress of what is trained inside, by this process, into `progress-chief.jsonl`.

    Args:
        run_dir: of the ModelRun artifact; empty to watch nothing, as in workers but the chief.
    """
    if not run_dir:
        yield
        return
    with contextlib.ExitStack() as stack:
        watch = _Watch(stack.enter_context(recording(run_dir, "chief")))
        for name in ("keras", "tf_keras"):
            if name in sys.modules:  # that is what the module has imported, or `tf.keras` is
                with contextlib.suppress(AttributeError):  # a Keras that is nobody's
                    stack.enter_context(_watched_fits(sys.modules[name], watch))
        with contextlib.suppress(ConfigurationError):  # a release that has no such iterators
            stack.enter_context(_watched_iterators(watch))
        stack.enter_context(watch.sampled())
        yield


class _Watch:
    """How far the training is; the thread that trains writes, another one looks now and then.

    Attributes:
        fits: how many calls of `fit` are under way; `has_fitted`: whether there was any.
        batches: handed out by iterators to loops of one's own, where there was none.
        wait_s: how long these have waited for them.
        is_due: whether the next step is to note its metrics as well.
    """

    def __init__(self, log: ProgressLog) -> None:
        self._log = log
        self._start_s, self._epoch_s = time.monotonic(), -_EVERY_S
        self._gpu_s, self._gpus = -_GPU_EVERY_S, list[tuple[float, float]]()
        self._pending: dict[str, Any] = {}
        self._clock: int | None = None  # of the processor time of the thread that trains
        self._lock, self._over = threading.Lock(), threading.Event()
        self.fits = self.batches = 0
        self.has_fitted = False
        self.wait_s = 0.0
        self.is_due = True

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        if hasattr(time, "pthread_getcpuclockid"):  # not on macOS
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._mark = self._used()
        thread = threading.Thread(target=self._sample, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._flush()

    def step_ends(self, line: Mapping[str, Any], logs: Any) -> None:
        """Notes how far a `fit` is, with its metrics."""
        self.is_due = False
        with self._lock:
            self._pending = {**line, "metrics": _numbers(logs)}

    def epoch_ends(self, line: Mapping[str, Any], logs: Any) -> None:
        """Writes the metrics of an epoch, unless epochs are too short for that."""
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
            with contextlib.suppress(Exception):  # nothing of this is worth a run
                if self._pending or self._works():
                    self._flush(**self._machine())
                self.is_due = True

    def _works(self) -> bool:
        """Returns whether the process has computed since it was looked at.

        One that hangs is known by that it reads and writes nothing, so neither may this thread.
        """
        wall_s, cpu_s, main_s, _ = (b - a for a, b in zip(self._mark, self._used(), strict=True))
        return cpu_s > IDLE_SHARE * wall_s or main_s > IDLE_MAIN_SHARE * wall_s

    def _flush(self, **more: Any) -> None:
        with self._lock:
            line, self._pending = {**self._pending, **more}, {}
        if line:
            self._log.write(**line)

    def _machine(self) -> dict[str, Any]:
        before, now = self._mark, self._used()
        self._mark = now
        wall_s, cpu_s, main_s, wait_s = (b - a for a, b in zip(before, now, strict=True))
        line: dict[str, Any] = {
            "cpu": round(min(1.0, cpu_s / wall_s / len(available_cpus())), 3),
            "memory_mb": resident_memory_mb(),
        }
        is_loop = self.batches > 0 and not self.has_fitted
        if is_loop:
            line["batches"] = self.batches
        if time.monotonic() > self._gpu_s + _GPU_EVERY_S:
            self._gpu_s, self._gpus = time.monotonic(), gpu_usage()
            if self._gpus:
                line["gpu"] = max(share for share, _ in self._gpus)
        if self.fits or is_loop:
            gpu = max((share for share, _ in self._gpus), default=None)
            wait = wait_s / wall_s if is_loop else None
            is_alone = os.getloadavg()[0] <= len(available_cpus())
            line["bound"] = bound_of(line["cpu"], main_s / wall_s, gpu, wait, is_alone=is_alone)
        return line

    def _used(self) -> tuple[float, ...]:
        main_s = 0.0 if self._clock is None else time.clock_gettime(self._clock)
        return time.monotonic(), time.process_time(), main_s, self.wait_s


def bound_of(
    cpu: float, main_thread: float, gpu: float | None, wait: float | None, *, is_alone: bool = True
) -> str:
    """Returns what limits the speed of a training: `"input"`, `"compute"`, `"overhead"` or nothing.

    A loop of one's own tells how long it waits for data. Of `fit`, whose steps fetch their data
    inside TensorFlow, what is busy tells as much: a GPU that works, or all processors where there
    is none, compute; a main thread that works alone prepares steps that are too small.

    Args:
        cpu: share of all processors that the process has used, from 0 to 1.
        main_thread: that of one processor that its main thread has used.
        gpu: that of the busiest GPU; None where there is none.
        wait: share of the time that a loop has waited for its iterator; None where nobody knows.
        is_alone: whether the machine has processors to spare. Else who does little may have to wait
            for others, and nothing can be told.
    """
    if wait is not None:
        return "input" if wait > _WAITING else "compute"
    if (gpu if gpu is not None else cpu) > _BUSY:
        return "compute"
    if main_thread > _BUSY:
        return "overhead"
    return "input" if is_alone else ""


def _numbers(logs: Any) -> dict[str, float]:
    found = {}
    for name, value in dict(logs or {}).items():
        with contextlib.suppress(TypeError, ValueError):  # a metric that is no number
            found[str(name)] = float(value)
    return found


# ---- fit -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _watched_fits(package: ModuleType, watch: _Watch) -> Iterator[None]:
    signature = inspect.signature(package.Model.fit)

    def fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:  # says it in its own words
            return original(self, *args, **kwargs)
        callback = _fit_callback(package, watch, _batch_size(bound.arguments))
        watch.fits, watch.has_fitted = watch.fits + 1, True
        try:
            with one_more_callback(package, bound.arguments, callback):
                return original(*bound.args, **bound.kwargs)
        finally:
            watch.fits -= 1

    with internals.replaced_method(package.Model, "fit", fit):
        yield


def _batch_size(arguments: Mapping[str, Any]) -> int | None:
    """Returns the examples of a step; None where the dataset leaves that open."""
    x = arguments.get("x")
    if isinstance(x, tf.data.Dataset):
        shapes = [getattr(each, "shape", None) for each in tf.nest.flatten(x.element_spec)]
        first = next((shape for shape in shapes if shape is not None and shape.rank), [None])
        return first[0]
    given = arguments.get("batch_size")
    is_array = hasattr(x, "shape") or isinstance(x, (dict, list, tuple))
    return int(given or _ARRAYS_BATCH_SIZE) if given or is_array else None


def _fit_callback(package: ModuleType, watch: _Watch, batch_size: int | None) -> Any:
    class Progress(package.callbacks.Callback):  # type: ignore[name-defined,misc]
        """Notes how far `fit` is."""

        # It has no need of the logs of each step as numbers, for which Keras would wait.
        _supports_tf_logs = True
        async_safe = True

        def on_train_begin(self, logs: Any = None) -> None:
            self._epoch, self._done = 0, 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if not self._done:  # a fit that goes on where another one has ended
                self._done = epoch * (self.params.get("steps") or 0)
            self._epoch, self._first = epoch, self._done

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._done = self._first + batch + 1
            if watch.is_due:
                watch.step_ends(self._line(), logs)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self._done == self._first:  # a user's CallbackList may call it for epochs only
                self._done += self.params.get("steps") or 0
            watch.epoch_ends(self._line(), logs)

        def _line(self) -> dict[str, Any]:
            steps, epochs = self.params.get("steps"), self.params.get("epochs")
            line = {"step": self._done, "epoch": self._epoch + 1, "epochs": epochs}
            if steps and epochs:
                line["steps"] = steps * epochs
            return {**line, "batch_size": batch_size} if batch_size else line

    return Progress()


# ---- loops of one's own --------------------------------------------------------------------------


@contextlib.contextmanager
def _watched_iterators(watch: _Watch) -> Iterator[None]:
    # Made with nobody's dataset: TensorFlow would start, before workers are connected.
    kind = internals.TF_OWNED_ITERATOR.get()
    original: Callable[[Any], Any] = kind.__next__
    now = time.perf_counter

    def following(self: Any) -> Any:
        if watch.has_fitted:
            return original(self)
        start_s = now()
        batch = original(self)
        watch.wait_s += now() - start_s
        watch.batches += 1
        return batch

    kind.__next__ = following
    try:
        yield
    finally:
        kind.__next__ = original
