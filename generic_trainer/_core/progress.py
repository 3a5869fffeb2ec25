"""Progress of a run: lines of JSON in its ModelRun, written while it trains.

Every process of a run writes a separate file, `progress-<process>.jsonl`, with a line for each
event; readers merge all of them. No process waits for another, and failing to write progress never
fails a run.

::

    with recording(run_dir, "run"):
        note(phase="training")
        ...
    ProgressReader(run_dir).look().phase  # in any process

The fields of a line: `at` (seconds since the epoch), and those of `Progress` that are new.
"""

import contextlib
import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from generic_trainer._core.event_files import last_scalars
from generic_trainer._core.files import gfile, is_remote, read_whole, write_whole
from generic_trainer._core.texts import is_number

LOG_FILE = "training.log"  # of the run, in the same directory
_PREFIX = "progress-"
_SUFFIX = ".jsonl"
# An object store cannot append a line: the whole file is written again, at most this often.
_REMOTE_EVERY_S = 10.0
# Samples closer together than this are too noisy to compute a speed from.
_LEAST_S = 0.5
_LATEST = 10  # speeds from which the time left is estimated

# What the time of a training goes into. The names are those of Google's ml-goodput-measurement, as
# far as that has one.
_PRODUCTIVE = "productive_training"
_STARTUP = "program_startup"
_EVALUATION = "evaluation"
_SAVING = "unproductive_checkpoint_save_time"
_WASTED = "wasted_progress_from_disruption"
_RECOVERY = "infrastructure_recovery_from_disruption"
_OTHER = "other"
# And in words for readers.
GOODPUT_PARTS = {
    _PRODUCTIVE: "training",
    _STARTUP: "starting",
    _EVALUATION: "validating",
    _SAVING: "saving checkpoints",
    _WASTED: "steps that were lost",
    _RECOVERY: "recovering from lost workers",
    _OTHER: "after the last step",
}

Points = list[tuple[float, float]]


class ProgressLog:
    """One process's file of lines; any thread may write.

    Attributes:
        thread: the thread of the run, as runs may take turns in several threads of a process.
    """

    def __init__(self, run_dir: str, name: str) -> None:
        """Writes nothing yet: the first line creates the file.

        Args:
            run_dir: the ModelRun artifact; empty to write nothing.
            name: the name of the file, between its prefix and suffix.
        """
        self.thread = threading.get_ident()
        self._path = os.path.join(run_dir, f"{_PREFIX}{name}{_SUFFIX}") if run_dir else ""
        self._lock = threading.Lock()
        self._lines: list[bytes] = []  # of a remote file
        self._written_s = -math.inf

    def write(self, **fields: Any) -> None:
        """Writes a line; errors are ignored."""
        line = json.dumps({"at": round(time.time(), 3), **fields}, default=str).encode() + b"\n"
        with contextlib.suppress(Exception), self._lock:  # of a full disk, of no path
            if is_remote(self._path):
                self._write_remotely(line)
                return
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "ab", buffering=0) as file:
                file.write(line)

    def close(self) -> None:
        """Writes the lines that an object store does not have yet."""
        with contextlib.suppress(Exception), self._lock:
            if self._lines:
                write_whole(self._path, b"".join(self._lines))

    def _write_remotely(self, line: bytes) -> None:
        if not self._lines and gfile().exists(self._path):  # of the attempt before
            self._lines.append(read_whole(self._path))
        self._lines.append(line)
        if time.monotonic() > self._written_s + _REMOTE_EVERY_S:
            write_whole(self._path, b"".join(self._lines))
            self._written_s = time.monotonic()


_logs: list[ProgressLog] = []  # of this process; see `note`


@contextlib.contextmanager
def recording(run_dir: str, name: str) -> Iterator[ProgressLog]:
    """Makes `note` of this process write into a file of a run; see `ProgressLog`."""
    log = ProgressLog(run_dir, name)
    # Runs of several threads take turns: the one that trains has more logs than those that wait.
    is_nested = any(other.thread == log.thread for other in _logs)
    _logs.insert(len(_logs) if is_nested else 0, log)
    try:
        yield log
    finally:
        _logs.remove(log)
        log.close()


def note(**fields: Any) -> None:
    """Writes a line about the current run of this thread, if there is one; never raises.

    For other threads, such as one that saves checkpoints, it is the run that trains.
    """
    own = [log for log in _logs if log.thread == threading.get_ident()]
    for log in (own or _logs)[-1:]:
        log.write(**fields)


@dataclasses.dataclass
class Progress:
    """State of a run, or its last state.

    Attributes:
        phase: `"preparing"`, `"packing"`, `"training"`, `"validating"`, `"adapting"`,
            `"evaluating"`, `"predicting"`, `"checks"`, `"publishing"`, `"published"` and
            `"failed"` at the end; empty if unknown.
        error: the error with which it failed.
        step: the last finished step; `steps` of all, `epoch` and `epochs` if known.
        curves: name of a loss or metric → (step, value).
        batch_size: examples of a step; None if unknown.
        steps_per_s, examples_per_s: points of (seconds since the start, value); `cpu` and `gpu`,
            shares from 0 to 1 of all processors and of the busiest GPU; `memory_mb` of the chief.
        tasks: name of a task of the cluster → `"running"`, `"done"` or its error.
        restarts: the reason of each restart of the workers.
        checkpoints: the saved steps.
        data: messages of the reader about the data.
        sources: directory of examples → the user's file that they were made of.
        started_s, changed_s: the times of the first and the last line, seconds since the epoch.
        spent_s: what the time from the first line to the checks went into → seconds.
        event_s: the time up to which `spent_s` has been added up.
        before_step: what the time before the next step goes into.
    """

    phase: str = ""
    error: str = ""
    step: int = 0
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    curves: dict[str, Points] = dataclasses.field(default_factory=dict)
    steps_per_s: Points = dataclasses.field(default_factory=list)
    examples_per_s: Points = dataclasses.field(default_factory=list)
    cpu: Points = dataclasses.field(default_factory=list)
    gpu: Points = dataclasses.field(default_factory=list)
    memory_mb: Points = dataclasses.field(default_factory=list)
    tasks: dict[str, str] = dataclasses.field(default_factory=dict)
    restarts: list[str] = dataclasses.field(default_factory=list)
    checkpoints: list[int] = dataclasses.field(default_factory=list)
    data: list[str] = dataclasses.field(default_factory=list)
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    started_s: float = 0.0
    changed_s: float = 0.0
    spent_s: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(GOODPUT_PARTS, 0.0)
    )
    event_s: float = 0.0
    before_step: str = _STARTUP

    @property
    def time_shares(self) -> dict[str, float]:
        """The shares of `spent_s` in their sum; empty if no steps are known."""
        whole_s = sum(self.spent_s.values())
        is_known = self.spent_s[_PRODUCTIVE] > 0
        return {
            name: round(spent_s / whole_s, 4) for name, spent_s in self.spent_s.items() if is_known
        }

    @property
    def goodput(self) -> float | None:
        """The share of steps that the model has kept, from 0 to 1; None if no steps are known."""
        return self.time_shares.get(_PRODUCTIVE)

    @property
    def left_s(self) -> float | None:
        """The estimated rest of the training, by its speed so far; None if unknown."""
        if self.phase not in ("training", "validating") or not self.steps or not self.steps_per_s:
            return None
        speeds = [speed for _, speed in self.steps_per_s[-_LATEST:]]
        return max(0.0, self.steps - self.step) / (sum(speeds) / len(speeds))


class ProgressReader:
    """Reads new lines of the files of a run, and merges them into a `Progress`."""

    def __init__(self, run_dir: str) -> None:
        self._folder = run_dir
        self._read: dict[str, int] = {}
        self._progress = Progress()
        self._mark = -math.inf, 0.0  # time and step of the last sample

    def look(self) -> Progress:
        """Returns the state of the run, an object that changes with the next call.

        Damaged lines, and those of other releases, are left out.
        """
        names = gfile().listdir(self._folder) if gfile().isdir(self._folder) else []
        own = sorted(name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX))
        lines = [line for name in own for line in self._new_lines(name)]
        for line in sorted(lines, key=lambda line: float(line["at"])):
            with contextlib.suppress(ArithmeticError, AttributeError, TypeError, ValueError):
                _add(self._progress, line)
                self._add_speed(line)
        return self._progress

    def _add_speed(self, line: dict[str, Any]) -> None:
        """Adds the speed of steps."""
        if not is_number(line.get("step")):
            return
        progress = self._progress
        at_s, before = self._mark
        seconds = line["at"] - at_s
        done = line["step"] - before
        if 0 <= seconds < _LEAST_S and done >= 0:
            return
        self._mark = line["at"], line["step"]
        if done > 0 and math.isfinite(seconds):
            since_s = line["at"] - progress.started_s
            speed = done / seconds
            progress.steps_per_s.append((since_s, speed))
            if progress.batch_size:
                progress.examples_per_s.append((since_s, speed * progress.batch_size))

    def _new_lines(self, name: str) -> Iterator[dict[str, Any]]:
        start = self._read.get(name, 0)
        with gfile().GFile(os.path.join(self._folder, name), "rb") as file:
            file.seek(start)
            text: bytes = file.read()
        text = text[: text.rfind(b"\n") + 1]  # an incomplete line is read by a later call
        self._read[name] = start + len(text)
        for raw in text.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                line = json.loads(raw)
                if isinstance(line, dict) and is_number(line.get("at")):
                    yield line


def last_metrics(run_dir: str) -> dict[str, float]:
    """Returns the last value of each loss, metric and scalar of TensorBoard in a ModelRun."""
    curves = ProgressReader(run_dir).look().curves
    return {name: points[-1][1] for name, points in curves.items()} | last_scalars(run_dir)


def _spend(progress: Progress, line: dict[str, Any], at: float) -> None:
    """Books the time since the last event under that event, if this line has another event."""
    spent_s = progress.spent_s
    phase = line.get("phase")
    done = progress.step

    def move(seconds: float, goal: str) -> None:
        spent_s[_PRODUCTIVE] -= seconds
        spent_s[goal] += seconds

    if is_number(line.get("checkpoint_s")):
        move(line["checkpoint_s"], _SAVING)
    if "restart" in line:
        if progress.before_step == _PRODUCTIVE:  # else no step was lost
            lost = max(0, done - max(progress.checkpoints, default=0))
            move(spent_s[_PRODUCTIVE] * lost / max(1, done), _WASTED)
        goal = progress.before_step = _RECOVERY
    elif progress.phase == "validating" and phase == "training":
        goal = _EVALUATION
    elif line.get("step", done) != done or phase == "validating":
        goal = progress.before_step
        progress.before_step = _PRODUCTIVE
    elif phase == "checks":
        goal = _OTHER  # the export, for example
    else:
        return
    spent_s[goal] += max(0.0, at - (progress.event_s or progress.started_s))
    progress.event_s = at


def _add(progress: Progress, line: dict[str, Any]) -> None:
    at = float(line["at"])
    progress.started_s = progress.started_s or at
    _spend(progress, line, at)
    progress.changed_s = max(progress.changed_s, at)
    since_s = at - progress.started_s
    for name in ("phase", "error"):
        if name in line:
            setattr(progress, name, str(line[name]))
    if progress.batch_size is None and "reader_batch_size" in line:
        line["batch_size"] = line["reader_batch_size"]  # the first dataset is the one for training
    if "curves" in line:  # another fit begins
        progress.curves.clear()
        progress.epoch, progress.step = None, 0
    for name in ("step", "steps", "epoch", "epochs", "batch_size"):
        if is_number(line.get(name)):
            setattr(progress, name, int(line[name]))
    for name in ("cpu", "gpu", "memory_mb"):
        if is_number(line.get(name)):
            getattr(progress, name).append((since_s, float(line[name])))
    for name, value in line.get("metrics", {}).items():
        points = progress.curves.setdefault(str(name), [])
        # Steps repeated after a restart replace the lost ones.
        while points and points[-1][0] >= progress.step:
            points.pop()
        points.append((progress.step, float(value)))
    for task, state in line.get("tasks", {}).items():
        progress.tasks[str(task)] = str(state)
    if "checkpoint" in line:
        progress.checkpoints.append(int(line["checkpoint"]))
    progress.sources.update(line.get("sources", {}))
    for name, messages in (("restart", progress.restarts), ("read", progress.data)):
        if name in line:
            messages.append(str(line[name]))
