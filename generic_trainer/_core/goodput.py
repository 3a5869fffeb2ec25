"""Goodput of a training: the share of its time that went into steps which count.

Not useful are the steps that a killed attempt had done since its last checkpoint, the time until
the next attempt makes its first new step, and the time that saving takes from training.

Source: Google Cloud's "ML productivity goodput" (2024); the first step of each attempt, which
compiles, does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from generic_trainer._core.files import gfile, is_remote, read_whole, write_whole
from generic_trainer._core.texts import is_number

_FILE = "goodput.json"  # in the ModelRun artifact
_RECORD_FILE = "goodput"  # beside the checkpoints
# Run, start of it in seconds since the epoch, time of the record, and the fields of a `Goodput`.
_RECORD = struct.Struct("<16sddqddqq")

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Goodput:
    """What has become of the time of a `fit`, over all attempts of a run.

    Attributes:
        steps: that count.
        useful_s: seconds that went into them.
        wall_s: seconds from the beginning of the first attempt's `fit` to the end.
        saving_s: seconds that saving took from training.
        restarts: how often it was started again in this run.
        steps_lost: steps that were done, and were done again from a checkpoint; 0 on object stores,
            where nobody notes them.
    """

    steps: int = 0
    useful_s: float = 0.0
    wall_s: float = 0.0
    saving_s: float = 0.0
    restarts: int = 0
    steps_lost: int = 0

    @property
    def share(self) -> float:
        """The useful share of the time, from 0 to 1; 1 where no time has passed."""
        return min(1.0, self.useful_s / self.wall_s) if self.wall_s > 0 else 1.0

    def __str__(self) -> str:
        return (
            f"{self.share:.1%}: {self.useful_s:.1f} s of {self.wall_s:.1f} s went into "
            f"{self.steps:,} steps that count; restarts: {self.restarts}, steps lost: "
            f"{self.steps_lost:,}, saving: {self.saving_s:.2f} s"
        )


class GoodputMeter:
    """Measures the goodput of a `fit`, and goes on where a killed attempt has stopped.

    What it knows is noted after each step in a small file beside the checkpoints, which a killed
    process leaves behind. It costs some microseconds.
    """

    def __init__(
        self, directory: str | None, run_dir: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Looks at what the attempt before has left.

        Args:
            directory: of the checkpoints; on an object store nothing is noted there. None where
                another worker notes it.
            run_dir: of the ModelRun artifact, which tells one run from another; may be empty.
            clock: tells the time in seconds since the epoch.
        """
        self._run_dir, self._clock = run_dir, clock
        self._run = hashlib.sha256(run_dir.encode()).digest()[:16]
        self._start_s = self._mark_s = clock()
        self._is_first_step = True
        self._goodput = Goodput()
        self._file: int | None = None
        if directory is None or is_remote(directory):
            return
        path = os.path.join(directory, _RECORD_FILE)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def begin(self, steps: int, useful_s: float) -> None:
        """Starts to count, where training goes on.

        Args:
            steps: that the checkpoint has; 0 where there is none.
            useful_s: what went into them, as of `useful_s` when it was saved.
        """
        left = os.pread(self._file, _RECORD.size, 0) if self._file is not None else b""
        now = self._goodput = Goodput(steps=steps)
        if len(left) < _RECORD.size:
            return
        run, start_s, _, done, _, saving_s, restarts, lost = _RECORD.unpack(left)
        now.steps_lost = max(0, done - steps)
        if run == self._run:
            self._start_s, now.saving_s = start_s, saving_s
            now.useful_s = useful_s
            now.restarts, now.steps_lost = restarts + 1, lost + now.steps_lost

    @property
    def useful_s(self) -> float:
        """Seconds of this run that went into steps which count, so far."""
        return self._goodput.useful_s

    def step_ends(self, steps: int) -> None:
        """Notes that a step has ended.

        Args:
            steps: that are done since the start of `fit`, in all attempts.
        """
        now_s = self._clock()
        if not self._is_first_step:
            self._goodput.useful_s += now_s - self._mark_s
        self._is_first_step = False
        self._mark_s, self._goodput.steps = now_s, steps
        self._note(now_s)

    def saved(self) -> None:
        """Notes that what was done since the last step was to save."""
        now_s = self._clock()
        self._goodput.saving_s += now_s - self._mark_s
        self._mark_s = now_s
        self._note(now_s)

    def end(self, name: str) -> Goodput:
        """Returns the goodput, and writes it into the ModelRun, where there is one.

        Args:
            name: of the `fit`.
        """
        self._goodput.wall_s = self._clock() - self._start_s
        with contextlib.suppress(OSError):  # of a full disk: the numbers are in the log
            self._keep(name)
        return self._goodput

    def close(self) -> None:
        """Closes the file; doing so twice is no error."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _keep(self, name: str) -> None:
        if self._run_dir:
            kept = _read(self._run_dir)
            kept[name] = dataclasses.asdict(self._goodput)
            gfile().makedirs(self._run_dir)
            write_whole(os.path.join(self._run_dir, _FILE), json.dumps(kept, indent=1))

    def _note(self, now_s: float) -> None:
        if self._file is None:
            return
        one = self._goodput
        record = _RECORD.pack(
            *(self._run, self._start_s, now_s, one.steps),
            *(one.useful_s, one.saving_s, one.restarts, one.steps_lost),
        )
        with contextlib.suppress(OSError):  # a full disk
            os.pwrite(self._file, record, 0)


def goodput_of(run_dir: str) -> dict[str, Any]:
    """Returns the goodput of all `fit`s of a run, as facts for its report; empty where unknown.

    Args:
        run_dir: of the ModelRun artifact.
    """
    fits = [Goodput(**values) for values in _read(run_dir).values()]
    if not fits:
        return {}
    together = Goodput(
        **{
            field.name: sum(getattr(one, field.name) for one in fits)
            for field in dataclasses.fields(Goodput)
        }
    )
    return {
        "goodput": round(together.share, 4),
        "restarts": together.restarts,
        "steps_lost": together.steps_lost,
    }


def _read(run_dir: str) -> dict[str, Any]:
    path = os.path.join(run_dir, _FILE)
    if not gfile().exists(path):
        return {}
    try:
        found = {name: Goodput(**values) for name, values in json.loads(read_whole(path)).items()}
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        _logger.warning("%s is damaged, or of another release: %s", path, error)
        return {}
    kept = {name: dataclasses.asdict(one) for name, one in found.items()}
    return {name: one for name, one in kept.items() if all(map(is_number, one.values()))}
