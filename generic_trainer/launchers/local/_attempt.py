"""One attempt: all workers start, are watched, and are gone when it is over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from generic_trainer.errors import WorkerHangError, WorkerLostError, WorkerMemoryError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._members import Member, members
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.local._diagnosis import End, cause_of_failure, quoted
from generic_trainer.launchers.local._limits import Deadline, Limits
from generic_trainer.launchers.local._nursery import Nursery
from generic_trainer.launchers.local._placement import (
    own_environment,
    own_processors,
    visible_gpus,
)
from generic_trainer.launchers.local._stop import StopNotice
from generic_trainer.launchers.local._usage import oom_kills

__all__ = ["Attempt"]

_POLL_S = 0.2
# How long the others may take when the chief has exported, or when one has failed and it is not
# yet clear which was the first.
_LAST_WORDS_S = 10.0
_STACKS_S = 5.0
_NURSERY_LOST = "The process that starts the workers was killed from outside, and they with it."


class Attempt:
    """The processes of one attempt; closing kills them."""

    def __init__(
        self,
        distribution: Distribution,
        nursery: Nursery,
        folder: Path,
        *,
        addresses: Mapping[Member, str],
        streams: Mapping[str, tuple[int, int]],
    ) -> None:
        """Starts the processes.

        Args:
            distribution: what was asked for.
            nursery: what they are forked from.
            folder: has the job's file; takes what the workers leave.
            addresses: process → "host:port".
            streams: name of a process → descriptors of its standard output and error.

        Raises:
            ConfigurationError: there are not enough GPUs, or the workers' imports fail.
        """
        self._distribution = distribution
        self._nursery = nursery
        self._folder = folder
        self._addresses = addresses
        self._members = {member.name: member for member in members(distribution)}
        self._oom_kills = oom_kills()
        self._running: dict[Member, int] = {}
        self._ends: list[End] = []
        gpus = visible_gpus() if distribution.gpus_per_worker else []
        orders = {
            member: {
                "job": str(folder / "job.json"),
                "outcome": str(self._file(member, "outcome")),
                "stacks": str(self._file(member, "stacks")),
                "environment": own_environment(distribution, member, addresses, gpus),
                "processors": own_processors(distribution, number),
            }
            for number, member in enumerate(self._members.values())
        }
        try:
            for member, order in orders.items():
                self._running[member] = nursery.start(member.name, order, *streams[member.name])
        except ConnectionError as error:
            self._running.clear()
            raise WorkerLostError(_NURSERY_LOST) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def watch(self, deadline: Deadline, stop: StopNotice) -> None:
        """Returns when the chief has done its part.

        Raises:
            GenericTrainerError: see `Launcher`.
        """
        limits = Limits(self._distribution, self._running)
        while not self._chief_succeeded():
            self._note_end(_POLL_S)
            if any(not end.succeeded for end in self._ends):
                self._wait_for(lambda: any(end.is_conclusive for end in self._failed()))
                raise cause_of_failure(self._ends, named=self._distribution.is_cluster)
            if stop.received:
                self._preempt()
            limits.look(self._running)
            self._check(limits, deadline)
        self._wait_for(lambda: all(member.is_server for member in self._running))

    def close(self) -> None:
        """Kills what still runs, and all that it has started."""
        self._signal_groups(signal.SIGKILL)
        with contextlib.suppress(ConnectionError):
            while self._running:
                self._note_end(_POLL_S)

    def _check(self, limits: Limits, deadline: Deadline) -> None:
        greedy = limits.over_memory()
        if greedy is not None:
            raise WorkerMemoryError(
                f"{greedy[0].name} was stopped: it took {greedy[1]:.0f} MiB of memory, and "
                f"memory_mb_per_worker={self._distribution.memory_mb_per_worker} allows no more. "
                "Allow more, or use smaller batches or a smaller shuffle buffer."
            )
        if limits.all_idle(self._running):
            raise WorkerHangError(
                f"Training hangs: no worker has used a processor for "
                f"{self._distribution.heartbeat_s:g} s (heartbeat_s). {self._where_they_are()}"
            )
        if deadline.is_over:
            raise WorkerHangError(
                f"Training did not end within timeout_s={deadline.timeout_s:g} and was stopped. "
                f"{self._where_they_are()}"
            )

    def _preempt(self) -> None:
        grace_s = self._distribution.preemption_grace_s
        for pid in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._wait_for(lambda: not self._running, grace_s)
        late = [member.name for member in self._running]
        raise WorkerLostError(
            "SIGTERM: this process is to stop, and its workers were told to save and end"
            + (f"; {', '.join(late)} took longer than {grace_s:g} s." if late else ".")
            + " The next run of the same inputs, code and hyperparameters goes on from the last "
            "checkpoint, if run_fn writes any."
        )

    def _where_they_are(self) -> str:
        """Ends all workers in a way that has them show their stacks, and quotes these."""
        absent = [member.name for member in self._running if not self._answers(member)]
        running = list(self._running)
        # faulthandler writes the stacks in its signal handler, whoever holds Python's lock.
        self._signal_groups(signal.SIGABRT, leaders_only=True)
        self._wait_for(lambda: not self._running, _STACKS_S)
        text = f"No server of {', '.join(absent)} ever came up. " if absent else ""
        for member in running:
            stacks = self._read(member, "stacks")
            sys.stderr.write(f"Stacks of {member.name}:\n{stacks}\n")
            if not member.is_server:
                text += f"{member.name} was here:\n{quoted(stacks)}\n"
        return text

    def _answers(self, member: Member) -> bool:
        """Whether something listens where the cluster expects this process."""
        if not self._distribution.is_cluster:
            return True
        host, _, port = self._addresses[member].partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return True
        return False

    def _note_end(self, timeout_s: float) -> None:
        try:
            ended = self._nursery.next_end(timeout_s)
        except ConnectionError as error:
            self._running.clear()
            raise WorkerLostError(_NURSERY_LOST) from error
        if ended is not None:
            member = self._members[ended.worker]
            del self._running[member]
            end = End(
                member,
                ended.code,
                outcome=Outcome.read(str(self._file(member, "outcome"))),
                stacks=self._read(member, "stacks"),
                oom_kills=oom_kills() - self._oom_kills,
            )
            self._ends.append(end)

    def _wait_for(self, is_so: Callable[[], bool], timeout_s: float = _LAST_WORDS_S) -> None:
        end_s = time.monotonic() + timeout_s
        while self._running and not is_so() and time.monotonic() < end_s:
            self._note_end(_POLL_S)

    def _failed(self) -> list[End]:
        return [end for end in self._ends if not end.succeeded]

    def _chief_succeeded(self) -> bool:
        return any(end.member.is_chief and end.succeeded for end in self._ends)

    def _signal_groups(self, number: signal.Signals, leaders_only: bool = False) -> None:
        for pid in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                if leaders_only:
                    os.kill(pid, number)
                else:
                    os.killpg(pid, number)

    def _file(self, member: Member, suffix: str) -> Path:
        return self._folder / f"{member.task}-{member.index}.{suffix}"

    def _read(self, member: Member, suffix: str) -> str:
        path = self._file(member, suffix)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
