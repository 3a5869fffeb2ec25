"""The workers of one attempt as processes: starting, signalling, waiting for their ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.machine import oom_kills
from generic_trainer.errors import WorkerLostError
from generic_trainer.launchers._members import Member
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.local._diagnosis import End
from generic_trainer.launchers.local._nursery import Nursery

__all__ = ["Processes"]

_POLL_S = 0.2


class Processes:
    """What runs, and what has ended.

    Attributes:
        running: worker → the number of its process, and of its process group.
        ends: how the others ended, the first one first.
    """

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        """Starts none yet.

        Args:
            nursery: what they are forked from.
            folder: has the job's file; takes what the workers leave.
        """
        self.running: dict[Member, int] = {}
        self.ends: list[End] = []
        self._nursery = nursery
        self._folder = folder
        self._names: dict[str, Member] = {}
        self._oom_kills = oom_kills()

    def start(self, member: Member, order: Mapping[str, Any], streams: tuple[int, int]) -> None:
        """Starts a worker.

        Args:
            member: the worker.
            order: its `environment`, `processors` and `peers`; see `_worker_process.main`.
            streams: descriptors of its standard output and error.

        Raises:
            ConfigurationError: the imports of the nursery failed.
            WorkerLostError: the nursery was killed.
        """
        self._names[member.name] = member
        order = {
            **order,
            "job": str(self._folder / "job.json"),
            "outcome": self.outcome_file(member),
            "stacks": str(self._file(member, "stacks")),
        }
        with self._nursery_alive():
            self.running[member] = self._nursery.start(member.name, order, *streams)

    def note_end(self, timeout_s: float = _POLL_S) -> None:
        """Waits for the next end, but no longer than that.

        Raises:
            WorkerLostError: the nursery was killed.
        """
        with self._nursery_alive():
            ended = self._nursery.next_end(timeout_s)
        if ended is None:
            return
        member = self._names[ended.worker]
        del self.running[member]
        end = End(
            member,
            ended.code,
            outcome=Outcome.read(self.outcome_file(member)),
            stacks=self.stacks(member),
            oom_kills=oom_kills() - self._oom_kills,
        )
        self.ends.append(end)

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Waits until something is so, none is running, or the time is over."""
        end_s = time.monotonic() + timeout_s
        while self.running and not is_so() and time.monotonic() < end_s:
            self.note_end()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the workers, and not to what they have started."""
        for pid in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kills what still runs, and all that it has started."""
        for pid in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(WorkerLostError):
            while self.running:
                self.note_end()

    def outcome_file(self, member: Member) -> str:
        """Returns the path of the file in which a worker says how it ended."""
        return str(self._file(member, "outcome"))

    def stacks(self, member: Member) -> str:
        """Returns the stacks of a worker that has crashed or was aborted."""
        path = self._file(member, "stacks")
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def failed(self) -> list[End]:
        """Those that have ended otherwise than they should."""
        return [end for end in self.ends if not end.succeeded]

    @property
    def chief_succeeded(self) -> bool:
        """Whether the chief has done its part."""
        return any(end.member.is_chief and end.succeeded for end in self.ends)

    def _file(self, member: Member, suffix: str) -> Path:
        return self._folder / f"{member.task}-{member.index}.{suffix}"

    @contextlib.contextmanager
    def _nursery_alive(self) -> Iterator[None]:
        try:
            yield
        except ConnectionError as error:
            self.running.clear()
            raise WorkerLostError(
                "The process that starts the workers was killed from outside, and they with it."
            ) from error
