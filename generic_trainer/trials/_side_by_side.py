"""Trials side by side: parts of a cluster, each of which trains one trial at a time.

So many workers as `resources.slots_per_trial` says are a part, with a `TF_CONFIG` of its own. The
first worker of each asks for work, and worker 0 gives it out, from a thread beside the trials that
it trains itself. They do so by files below the checkpoints, which all workers see anyhow, and each
of which is written once::

    side-by-side/mail/<worker>-<number>.asks    how the last stretch of training ended
                      <worker>-<number>.gets    the next one, or that there is none
    side-by-side/results/<number>.json          how all of them ended, in their order

The results outlive the processes: an experiment that was killed makes the same search once more, up
to where it was, and goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from generic_trainer._core.cluster import part_of_cluster
from generic_trainer._core.files import gfile, is_remote, read_whole, write_whole
from generic_trainer._core.locks import DirectoryLock
from generic_trainer._core.machine import IDLE_SHARE
from generic_trainer._core.values import from_json, to_json
from generic_trainer.training import distributed, is_chief
from generic_trainer.trials._config import ExperimentSettings, Length
from generic_trainer.trials._fields import whole
from generic_trainer.trials._kept import ExperimentRun, KeptTrial
from generic_trainer.trials._loop import TrialProgress
from generic_trainer.trials._search import Queue, Stretch
from generic_trainer.trials._trial import TrialRun

_ASKS, _GETS, _LIVES, _RESULT = ".asks", ".gets", ".lives", ".json"
# Who waits looks, ever less often, only whether a file is there: that takes so little that nobody
# holds it for work, and hides no trial that hangs.
_POLL_S, _SLOWEST_POLL_S, _SLOWER = 0.1, 1.0, 1.2
# How often a part tells that it computes, and worker 0 that it waits for one that does.
_TOLD_S = 60.0
_OF_THE_SEARCH = ("trial_id", "hparams", "seed", "parent")  # the rest of a trial all parts know

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ClusterPart:
    """The workers that train a trial together with this one.

    Attributes:
        number: of the part; 0 has worker 0, which exports in the end.
        count: how many parts train; one whose number is not below that has nothing to do.
        ranks: of its workers, in the whole cluster.
    """

    number: int
    count: int
    ranks: Sequence[int]

    @classmethod
    def of_this_worker(cls, settings: ExperimentSettings, num_trials: int) -> ClusterPart:
        """Returns the part that this worker belongs to, where `num_trials` can begin at once.

        As many parts train as `max_concurrent_trials` says, and as there are workers and trials
        for. Where that comes to one, and where nothing is said, it is all workers.
        """
        size, rank, slots = distributed.size(), distributed.rank(), max(1, settings.slots)
        said = settings.searcher.options.get("max_concurrent_trials")
        most = 1 if said is None else whole(said) or num_trials  # 0 is as many as there are
        count = min(most, num_trials, size // slots)
        if count < 2:
            if most > 1 and num_trials > 1:
                _logger.info(
                    "max_concurrent_trials: trials run one after another, as there are workers for "
                    "no more; Distribution(launcher='local') starts as many as this machine has "
                    "room for"
                )
            return cls(0, 1, range(size))
        number = rank // slots
        return cls(number, count, range(number * slots, min(size, (number + 1) * slots)))

    def as_cluster(self) -> contextlib.AbstractContextManager[None]:
        """Has this worker know those of its part alone."""
        is_all = len(self.ranks) == distributed.size()
        return contextlib.nullcontext() if is_all else part_of_cluster(self.ranks)


@dataclasses.dataclass(frozen=True)
class Work:
    """A stretch of a trial, or how it has ended.

    Attributes:
        trial: what the search has decided of it; see `TrialRun`.
        length: how far it trains: count and unit.
        progress: the fields of its `TrialProgress`; None before it has trained.
        value: what `Search.ended` is told in the end.
        error: what it failed with, for good.
    """

    trial: Mapping[str, Any]
    length: tuple[int, str]
    progress: Mapping[str, Any] | None = None
    value: float = math.inf
    error: str | None = None

    @classmethod
    def of(cls, stretch: Stretch, progress: Mapping[str, Any] | None = None) -> Work:
        """Returns a stretch to train."""
        trial = {name: getattr(stretch.trial, name) for name in _OF_THE_SEARCH}
        return cls(trial, (stretch.length.count, stretch.length.unit), progress)

    def stretch(self, settings: ExperimentSettings) -> Stretch:
        """Returns the stretch."""
        trial = TrialRun(config=settings.raw, slots=settings.slots, **self.trial)
        return Stretch(trial, Length(*self.length))

    def known_progress(self) -> TrialProgress | None:
        """Returns how far the trial is known to be; None where nothing is known."""
        return TrialProgress(**self.progress) if self.progress else None


def train_side_by_side(
    experiment: ExperimentRun, queue: Queue, part: ClusterPart, locks: contextlib.ExitStack
) -> list[KeptTrial]:
    """Trains all trials of a search, this part one after another.

    Returns:
        In part 0 all of them, their checkpoints open as long as `locks` are.
    """
    office = None
    if is_chief():  # of the part
        office = locks.enter_context(Office(experiment.fn_args.checkpoint_dir))
        if part.number == 0:
            locks.enter_context(office.giving_out(queue, part.count))
    done = None
    while works := _shared(office.ask(done) if office else []):
        [work] = works
        stretch = work.stretch(experiment.settings)
        with contextlib.ExitStack() as own_locks:  # another part may be the next to train it
            trial = experiment.open(stretch.trial, own_locks, work.known_progress())
            value = experiment.train(trial, stretch)
        progress = dataclasses.asdict(trial.progress)
        done = dataclasses.replace(work, progress=progress, value=value, error=trial.error)
    if part.number:
        return []
    ends = {end.trial["trial_id"]: end for end in _shared(office.results() if office else [])}
    trials = []
    for _, end in sorted(ends.items()):
        run = end.stretch(experiment.settings).trial
        trials.append(experiment.open(run, locks, end.known_progress()))
        trials[-1].error = end.error
    return trials


class Office:
    """Where parts get their work: opened by the first worker of each, and run by worker 0."""

    def __init__(self, checkpoint_dir: str) -> None:
        """Makes its directories, below what all workers see."""
        self._directory = os.path.join(checkpoint_dir, "side-by-side")
        self._mail, self._results = (
            os.path.join(self._directory, name) for name in ("mail", "results")
        )
        for folder in (self._mail, self._results):
            gfile().makedirs(folder)
        self._poll_s = _SLOWEST_POLL_S if is_remote(checkpoint_dir) else _POLL_S
        self._name, self._asked = os.path.join(self._mail, uuid.uuid4().hex), 0
        self._served: Future[None] | None = None  # where this worker runs it
        self._closed = threading.Event()

    def __enter__(self) -> Office:
        threading.Thread(target=self._tell_of_life, name="trials/lives", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()

    def ask(self, done: Work | None) -> list[Work]:
        """Tells what this part has trained; waits for what to train next, if anything."""
        self._asked += 1
        path, said = f"{self._name}-{self._asked:06d}", to_json(done and vars(done))
        told_s, lives, pause_s = time.monotonic(), self._lives(), self._poll_s
        while not gfile().exists(path + _GETS):
            if not gfile().exists(path + _ASKS):  # or it was taken for mail of an earlier run
                write_whole(path + _ASKS, said)
            if self._served is not None and self._served.done():
                self._served.result()
            if self._served is not None and time.monotonic() > told_s + 2 * _TOLD_S:
                told_s, before, lives = time.monotonic(), lives, self._lives()
                if lives != before:  # else let the launcher find that nobody does anything
                    _logger.info("Waiting for trials that other workers train")
            time.sleep(pause_s)
            pause_s = min(pause_s * _SLOWER, _SLOWEST_POLL_S)
        work = _read(path + _GETS)
        return [work] if work else []

    def results(self) -> list[Work]:
        """Returns what has been trained so far, in the order of the ends."""
        return [work for path in _paths(self._results, _RESULT) if (work := _read(path))]

    @contextlib.contextmanager
    def giving_out(self, queue: Queue, parts: int) -> Iterator[None]:
        """Gives out the work of a search until so many parts know that nothing is left.

        Raises:
            ConfigurationError: another run does so in the same directory.
        """
        with contextlib.ExitStack() as stack:
            if not is_remote(self._directory):
                stack.callback(DirectoryLock(self._directory).release)
            for suffix in (_ASKS, _GETS, _LIVES):
                for path in _paths(self._mail, suffix):
                    gfile().remove(path)
            done = self._replayed(queue)
            thread = stack.enter_context(ThreadPoolExecutor(1, "trials"))
            stack.callback(self._closed.set)
            self._served = thread.submit(self._serve, queue, parts, done)
            yield
            self._served.result()

    def _replayed(self, queue: Queue) -> list[Work]:
        """Brings a search to where it was, and returns how; trials that failed get another try."""
        done: list[Work] = []
        paths = _paths(self._results, _RESULT)
        while paths and (work := _read(paths[0])) and not work.error:
            if queue.take(work.trial["trial_id"]) is None:
                break  # files were lost
            queue.ended(work.trial["trial_id"], work.value)
            done.append(work)
            del paths[0]
        for path in paths:
            gfile().remove(path)
        return done

    def _serve(self, queue: Queue, parts: int, done: list[Work]) -> None:
        seen: set[str] = set()
        idle: list[str] = []
        while parts:
            for path in _paths(self._mail, _ASKS):
                if path not in seen:
                    seen.add(path)
                    idle.append(path.removesuffix(_ASKS) + _GETS)
                    if (ended := _read(path)) is not None:
                        write_whole(
                            os.path.join(self._results, f"{len(done):08d}{_RESULT}"),
                            to_json(vars(ended)),
                        )
                        done.append(ended)
                        queue.ended(ended.trial["trial_id"], ended.value)
            while idle and (stretch := queue.take()) is not None:
                write_whole(idle.pop(0), to_json(vars(Work.of(stretch, _progress(stretch, done)))))
            if queue.is_over:
                parts -= len(idle)
                while idle:
                    write_whole(idle.pop(), to_json(None))
            if self._closed.wait(self._poll_s):
                return

    def _tell_of_life(self) -> None:
        """Notes now and then that this process computes, for who waits for it."""
        before_s = time.process_time()
        while not self._closed.wait(_TOLD_S):
            now_s = time.process_time()
            if now_s - before_s > IDLE_SHARE * _TOLD_S:
                write_whole(self._name + _LIVES, f"{now_s}")
            before_s = now_s

    def _lives(self) -> list[bytes]:
        """Returns something that is another when a part that is not this one has computed."""
        paths = [path for path in _paths(self._mail, _LIVES) if path != self._name + _LIVES]
        return [read_whole(path) for path in paths]


def _shared(works: Sequence[Work]) -> list[Work]:
    """Returns what the chief of the part has, in all of its workers."""
    text = distributed.gather(to_json([vars(work) for work in works]))[0]
    return [Work(**values) for values in from_json(text, is_ours=False)]


def _progress(stretch: Stretch, done: Sequence[Work]) -> Mapping[str, Any] | None:
    of_it = (work.progress for work in done if work.trial["trial_id"] == stretch.trial.trial_id)
    return next(reversed([*of_it]), None)


def _paths(directory: str, suffix: str) -> list[str]:
    names = sorted(name for name in gfile().listdir(directory) if name.endswith(suffix))
    return [os.path.join(directory, name) for name in names]


def _read(path: str) -> Work | None:
    values = from_json(read_whole(path).decode(), is_ours=False)
    return values and Work(**values)
