"""One attempt: all workers start, are watched, and are gone when it is over."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Mapping
from types import TracebackType

from generic_trainer._core.machine import visible_gpus
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import WorkerHangError, WorkerLostError, WorkerMemoryError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._members import Member
from generic_trainer.launchers.local._diagnosis import cause_of_failure, quoted
from generic_trainer.launchers.local._limits import Deadline, Limits
from generic_trainer.launchers.local._placement import (
    own_environment,
    own_processors,
)
from generic_trainer.launchers.local._processes import Processes

__all__ = ["Attempt"]

# How long the others may take when the chief has exported, or when one has failed and it is not
# yet clear which was the first.
_LAST_WORDS_S = 10.0
_STACKS_S = 5.0


class Attempt:
    """The workers of one attempt; closing kills them."""

    def __init__(
        self,
        distribution: Distribution,
        processes: Processes,
        *,
        addresses: Mapping[Member, str],
        streams: Mapping[str, tuple[int, int]],
    ) -> None:
        """Starts the workers.

        Args:
            distribution: what was asked for.
            processes: starts and ends them.
            addresses: worker → "host:port", the chief first.
            streams: name of a worker → descriptors of its standard output and error.

        Raises:
            ConfigurationError: there are not enough GPUs, or the imports of the workers fail.
            WorkerLostError: the process that starts them was killed.
        """
        self._distribution = distribution
        self._addresses = addresses
        self._processes = processes
        gpus = visible_gpus() if distribution.gpus_per_worker else []
        peers = [processes.outcome_file(member) for member in addresses if not member.is_server]
        orders = {
            member: {
                "environment": own_environment(distribution, member, addresses, gpus),
                "processors": own_processors(distribution, number),
                "peers": peers,
            }
            for number, member in enumerate(addresses)
        }
        try:
            for member, order in orders.items():
                processes.start(member, order, streams[member.name])
        except BaseException:
            processes.kill()
            raise

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._processes.kill()

    def watch(self, deadline: Deadline, stop: SigtermNotice) -> None:
        """Returns when the chief has done its part.

        Raises:
            GenericTrainerError: see `Launcher`.
        """
        processes = self._processes
        limits = Limits(self._distribution, processes.running)
        while not processes.chief_succeeded:
            processes.note_end()
            if processes.failed:
                self._raise_failure()
            if stop.received:
                self._preempt()
            limits.look(processes.running)
            self._check(limits, deadline)
        processes.wait_for(lambda: all(one.is_server for one in processes.running), _LAST_WORDS_S)

    def _raise_failure(self) -> None:
        processes = self._processes
        processes.wait_for(
            lambda: any(end.is_conclusive for end in processes.failed), _LAST_WORDS_S
        )
        raise cause_of_failure(processes.ends, named=self._distribution.is_cluster)

    def _check(self, limits: Limits, deadline: Deadline) -> None:
        greedy = limits.over_memory()
        if greedy is not None:
            raise WorkerMemoryError(
                f"{greedy[0].name} was stopped: it took {greedy[1]:.0f} MiB of memory, and "
                f"memory_mb_per_worker={self._distribution.memory_mb_per_worker} allows no more. "
                "Allow more, or use smaller batches or a smaller shuffle buffer."
            )
        if limits.all_idle(self._processes.running):
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
        self._processes.signal(signal.SIGTERM)
        self._processes.wait_for(lambda: False, grace_s)
        late = ", ".join(member.name for member in self._processes.running)
        raise WorkerLostError(
            "SIGTERM: this process is to stop, and its workers were told to save and end"
            + (f"; {late} took longer than {grace_s:g} s." if late else ".")
            + " The next run of the same inputs, code and hyperparameters goes on from the last "
            "checkpoint, if run_fn writes any."
        )

    def _where_they_are(self) -> str:
        """Ends all workers in a way that has them show their stacks, and quotes these."""
        running = list(self._processes.running)
        absent = [member.name for member in running if not self._answers(member)]
        # faulthandler writes the stacks in its signal handler, whoever holds Python's lock.
        self._processes.signal(signal.SIGABRT)
        self._processes.wait_for(lambda: False, _STACKS_S)
        text = f"No server of {', '.join(absent)} ever came up. " if absent else ""
        for member in running:
            stacks = self._processes.stacks(member)
            sys.stderr.write(f"Stacks of {member.name}:\n{stacks}\n")
            if not member.is_server:
                text += f"{member.name} was here:\n{quoted(stacks)}\n"
        return text

    def _answers(self, member: Member) -> bool:
        """Whether something listens where the cluster expects this worker."""
        if not self._distribution.is_cluster:
            return True
        host, _, port = self._addresses[member].partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return True
        return False
