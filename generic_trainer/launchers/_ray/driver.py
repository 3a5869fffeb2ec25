"""Process of a run's own that is connected to Ray.

`ray.init` changes its process for good: threads, sockets and log files of Ray's native part stay
after `ray.shutdown`, as does its handler of SIGTERM, and a second Ray does not always start. So the
job is supervised in a child, and all of that ends with the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.forkserver import ForkServer
from generic_trainer._core.output import shown_output
from generic_trainer._core.progress import recording
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import WorkerLostError
from generic_trainer.launchers._failures import Failure, signal_name
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._local.placement import own_streams
from generic_trainer.launchers._packing import with_carried_environment
from generic_trainer.launchers._ray.engine import ray_engine
from generic_trainer.launchers._supervisor import supervise
from generic_trainer.launchers._worker_end import WorkerEnd

_NAME = "the process that is connected to Ray"
_POLL_S = 1.0
# What the child may take beyond `preemption_grace_s` to leave Ray.
_LAST_WORDS_S = 10.0


def launch_on_ray(job: Job) -> None:
    """Runs a job on Ray; in this process where it is connected already, as a notebook may be.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        supervise(job, ray_engine)
        return
    with ScratchFolder("ray-driver-") as folder:
        path = os.path.join(folder, "end")
        code = _run_child(job, path)
        end = WorkerEnd.read(path)
    if end is None:
        raise WorkerLostError(
            f"{_NAME[0].upper()}{_NAME[1:]} ended with {signal_name(code) or code} in mid-run: "
            "somebody stopped it, or the machine did.",
            exit_code=code,
            signal=signal_name(code),
        )
    if end.failure is not None:
        raise end.to_error(named=False)


def main(arguments: Mapping[str, Any]) -> int:
    """Runs a job in a child of a fork server and returns the exit code.

    Args:
        arguments: `job`, as JSON; `end`, the file to note in how it ended.
    """
    try:
        job = Job.from_json(arguments["job"])
        with shown_output(), recording(job.request.model_run_dir, "driver"):
            supervise(job, ray_engine)
        end = WorkerEnd()
    except SystemExit:  # raised by Ray's handler of SIGTERM, before that of the supervisor is set
        message = "SIGTERM: this process is to stop; it was about to connect to Ray."
        end = WorkerEnd(failure=Failure.LOST, message=message)
    except BaseException as error:
        end = WorkerEnd.of(error, getattr(error, "worker", None))
    end.write(arguments["end"])
    return end.status


def _run_child(job: Job, end_path: str) -> int:
    """Returns the exit code of a child that has run the job, or was told to stop.

    Raises:
        ConfigurationError: the child could not import this package.
    """
    arguments = {"job": with_carried_environment(job).to_json(), "end": end_path}
    main_path = f"{__name__}:{main.__name__}"
    with (
        contextlib.closing(ForkServer((__name__,))) as server,
        own_streams([_NAME]) as streams,
        SigtermNotice() as stop,
    ):
        stdout, stderr = streams[_NAME]
        pid = server.start(_NAME, main_path, arguments, stdout=stdout, stderr=stderr)
        ended = None
        with contextlib.suppress(ConnectionError, ProcessLookupError):  # somebody has killed them
            try:
                while ended is None and not stop.received:
                    ended = server.next_end(_POLL_S)
            finally:
                if ended is None:  # SIGTERM or Ctrl-C
                    os.kill(pid, signal.SIGTERM)
                    ended = server.next_end(job.distribution.preemption_grace_s + _LAST_WORDS_S)
    return -signal.SIGKILL if ended is None else ended[1]
