"""Engine of the launcher `local`: starts, watches and ends processes of this machine."""

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.cluster import Task, answers, reserve_port
from generic_trainer._core.forkserver import ForkServer
from generic_trainer._core.machine import oom_kills, visible_gpus
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import WorkerHangError, WorkerLostError, WorkerMemoryError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._failures import Failure, failure_of_exit_code, signal_name
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._local import resources
from generic_trainer.launchers._supervisor import Engine
from generic_trainer.launchers._worker_end import WorkerEnd

_HOST = "127.0.0.1"
_POLL_S = 0.2
_STACKS_S = 5.0
_MAX_STACK_LINES = 60


class LocalEngine(Engine):
    """Processes of this machine; all attempts share the imports of the first one.

    Attributes:
        main: import path of the function that a process runs.
        subject: name of a process that is the only one, for messages.
    """

    main = "generic_trainer.launchers._task:main"
    subject = "The process that trains"

    def __init__(self, job: Job, distribution: Distribution | None = None) -> None:
        """Makes the engine; `start` starts the processes.

        Args:
            job: the job that the processes run.
            distribution: the processes, and the limits for them; that of the job by default.
        """
        self._job = job
        self._distribution = distribution or job.distribution
        self._tasks = {task.name: task for task in tasks(self._distribution)}
        self._addresses: dict[Task, str] = {}
        self._pids: dict[Task, int] = {}  # of the processes that run, and of their groups
        self._ends: dict[str | None, WorkerEnd] = {}  # by task; the first one counts
        self._attempt = contextlib.ExitStack()
        self._server: Any = None  # a `ForkServer`, from the first attempt on

    def fork_server(self) -> ForkServer:
        """Starts the server that the processes are forked from."""
        preload = ("tensorflow", self._job.fn_args_factory.partition(":")[0])
        return ForkServer(preload, environment=resources.common_environment(self._distribution))

    def start(self) -> None:
        """Starts a process for each task.

        Raises:
            ConfigurationError: GPUs are missing, or the imports of the workers fail.
            WorkerLostError: the process that starts them was killed.
        """
        stack = self._attempt
        self._folder = stack.enter_context(ScratchFolder("workers-"))
        if self._server is None or not self._server.is_alive:
            self.close()
            self._server = self.fork_server()
        self._addresses = {
            task: f"{_HOST}:{stack.enter_context(reserve_port()).getsockname()[1]}"
            for task in self._tasks.values()
        }
        streams = stack.enter_context(resources.own_streams(list(self._tasks)))
        self._ends = {}
        self._oom_kills = oom_kills()
        gpus = visible_gpus() if self._distribution.gpus_per_worker != 0 else []
        job = self._job.to_json()
        peers = [self._file(task, "end") for task in self._addresses if not task.is_server]
        for number, task in enumerate(self._addresses):
            arguments = {
                "job": job,
                "name": task.name,
                "processors": resources.own_processors(self._distribution, number),
                "end": self._file(task, "end"),
                "peers": peers,
                "stacks": self._file(task, "stacks"),
            }
            stdout, stderr = streams[task.name]
            with self._living_server() as server:
                self._pids[task] = server.start(
                    task.name,
                    self.main,
                    arguments,
                    stdout=stdout,
                    stderr=stderr,
                    environment=resources.own_environment(
                        self._distribution, task, self._addresses, gpus
                    ),
                )
        self._limits = resources.Limits(self._distribution, self._pids)

    def poll(self) -> Sequence[WorkerEnd]:
        """Waits a moment for the next end, and returns all of this attempt.

        Raises:
            WorkerLostError: the process that starts the workers was killed.
        """
        with self._living_server() as server:
            ended = server.next_end(_POLL_S)
        if ended is not None:
            name, code = ended
            task = self._tasks[name]
            del self._pids[task]
            self._ends.setdefault(name, self._end_of(task, code))
        # The chief may have exported, though its process waits for the others.
        chief = next(iter(self._addresses))
        if len(self._pids) > 1 and chief in self._pids:
            report = WorkerEnd.read(self._file(chief, "end"))
            if report is not None and report.failure is None:
                self._ends.setdefault(chief.name, report)
        return [*self._ends.values()]

    def running(self) -> Sequence[Task]:
        """Returns the tasks whose processes run."""
        return list(self._pids)

    def check(self) -> None:
        """Looks at memory and at progress.

        Raises:
            WorkerMemoryError: a worker uses more than its share.
            WorkerHangError: no worker makes progress.
        """
        self._limits.look(self._pids)
        if over := self._limits.over_memory():
            task, mb = over
            raise WorkerMemoryError(
                f"{task.name} was stopped: it used {mb:.0f} MiB of memory, and "
                f"memory_mb_per_worker={self._distribution.memory_mb_per_worker} allows no more. "
                "Allow more, or use smaller batches or a smaller shuffle buffer.",
                worker=task.name,
            )
        if self._limits.all_idle(self._pids):
            raise WorkerHangError(
                f"Training hangs: no worker has computed, read or written anything for "
                f"{self._distribution.heartbeat_s:g} s (heartbeat_s). If it rightly waits so "
                "long, print a line now and then, or allow more time; None allows any. "
                f"{self.diagnose()}"
            )

    def stop(self) -> None:
        """Sends SIGTERM to the workers."""
        self._signal(signal.SIGTERM)

    def diagnose(self) -> str:
        """Ends all workers with a signal that makes them write their stacks, and quotes these."""
        running = self.running()
        several = self._distribution.is_cluster
        absent = [task.name for task in running if several and not answers(self._addresses[task])]
        # faulthandler writes the stacks in its signal handler, whichever thread has Python's lock.
        self._signal(signal.SIGABRT)
        end_s = time.monotonic() + _STACKS_S
        while self._pids and time.monotonic() < end_s:
            self.poll()
        text = f"No server of {', '.join(absent)} ever came up. " if absent else ""
        for task in running:
            stacks = self._stacks(task)
            sys.stderr.write(f"Stacks of {task.name}:\n{stacks}\n")
            if not task.is_server:
                text += f"{task.name} was here:\n{_quoted(stacks)}\n"
        return text

    def kill(self) -> None:
        """Kills the processes that still run, and their descendants."""
        for pid in self._pids.values():
            self._server.kill(pid)
        with contextlib.suppress(WorkerLostError):
            while self._pids:
                self.poll()
        self._attempt.close()

    def close(self) -> None:
        """Ends the server that the processes were forked from."""
        if self._server is not None:
            self._server.close()

    def _end_of(self, task: Task, code: int) -> WorkerEnd:
        """Returns how a worker ended: its own report, else the meaning of its exit code."""
        report = WorkerEnd.read(self._file(task, "end"))
        if report is not None:
            return dataclasses.replace(report, fields={"exit_code": code, **report.fields})
        subject = "its process" if self._distribution.is_cluster else self.subject
        name = signal_name(code) if code < 0 else None
        failure, message = self._reason(task, code, name)
        end = WorkerEnd(
            task=task.name,
            failure=failure,
            message=f"{subject} {message}",
            fields={"exit_code": code, "signal": name},
            # TensorFlow aborts a process that finds its cluster incomplete.
            may_be_consequence=code == -signal.SIGABRT,
        )
        with contextlib.suppress(OSError):
            end.write(self._file(task, "end"))  # the others stop waiting for it
        return end

    def _reason(self, task: Task, code: int, signal_name: str | None) -> tuple[Failure, str]:
        """Returns the class of a failure without a report, and how the process ended."""
        failure = failure_of_exit_code(code)
        if code > 0 and failure is Failure.LOST:
            return failure, f"ended itself with exit status {code}, as if preempted."
        if failure is Failure.DISK:
            return failure, (
                f"could not write its result into {self._folder}: the disk is full (No space left "
                "on device), fails (Input/output error) or was emptied; its output may show which. "
                "Make room there, or set TMPDIR to another directory."
            )
        if code >= 0:
            return Failure.USER_CODE, (
                f"ended in the middle of run_fn with exit status {code}: expected run_fn to return "
                "or raise. It calls os._exit, or ends the process in native code."
            )
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return Failure.MEMORY, (
                "was killed by the kernel because memory ran out. Give it more, or use smaller "
                "batches, a smaller shuffle buffer or fewer workers on this machine."
            )
        if failure is Failure.LOST:
            return failure, (
                f"was ended by {signal_name} from outside: by a user, or by the machine."
            )
        return failure, (
            f"crashed: {signal_name} in native code. It was called from here, and everything else "
            f"goes on:\n{_quoted(self._stacks(task))}"
        )

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the workers, but not to their descendants."""
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _stacks(self, task: Task) -> str:
        """Returns the stacks of a worker that has crashed or was aborted."""
        path = Path(self._file(task, "stacks"))
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _file(self, task: Task, suffix: str) -> str:
        return os.path.join(self._folder, f"{task.type}-{task.index}.{suffix}")

    @contextlib.contextmanager
    def _living_server(self) -> Iterator[ForkServer]:
        try:
            yield self._server
        except ConnectionError as error:
            self._pids.clear()
            raise WorkerLostError(
                "The process that starts the workers was killed from outside, and they with it."
            ) from error


def _quoted(stacks: str) -> str:
    """Returns the first lines of some stacks, indented."""
    lines = stacks.strip().splitlines() or ["(it left no stack)"]
    shown = lines[:_MAX_STACK_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} lines more in the log")
    return "\n".join(f"    {line}" for line in shown)
