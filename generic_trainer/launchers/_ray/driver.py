"""Child of the executor's process that is connected to Ray and supervises the run there.

`ray.init` changes its process for good: threads, sockets and log files of Ray's native part stay
after `ray.shutdown`, as does its handler of SIGTERM, and a second Ray does not always start. All of
that ends with the child.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.forkserver import ForkServer
from generic_trainer._core.output import shown_output
from generic_trainer._core.progress import recording
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._local.engine import LocalEngine
from generic_trainer.launchers._ray.engine import RayEngine
from generic_trainer.launchers._supervisor import supervise
from generic_trainer.launchers._worker_end import WorkerEnd


class _DriverEngine(LocalEngine):
    """The process that is connected to Ray."""

    main = f"{__name__}:main"
    subject = "The process that is connected to Ray"

    def fork_server(self) -> ForkServer:
        """Starts one that has not imported TensorFlow, which has no part in this process."""
        return ForkServer((__name__,))

    def diagnose(self) -> str:
        """Returns nothing: the stacks of the workers are on their nodes."""
        return ""


def launch_on_ray(job: Job) -> None:
    """Runs a job on Ray; on the cluster that this process is connected to, if it is to any.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    distribution = job.distribution
    driver = Distribution(
        launcher="local",
        max_failures=0,  # the child replaces workers
        preemption_grace_s=distribution.preemption_grace_s,
        timeout_s=distribution.timeout_s,
        heartbeat_s=None,
    )
    options = distribution.options
    ray = sys.modules.get("ray")
    if options.address is None and ray is not None and ray.is_initialized():
        options = dataclasses.replace(options, address=ray.get_runtime_context().gcs_address)
    job = dataclasses.replace(job, distribution=dataclasses.replace(distribution, ray=options))
    watched = dataclasses.replace(job, distribution=driver)
    engine = _DriverEngine(job, driver)
    if not (options.address or "ray:").startswith("ray:"):  # else Ray aborts the process
        engine.subject += " (outside the cluster, give the address ray://HOST:10001)"
    supervise(watched, lambda _: engine)


def main(arguments: Mapping[str, Any]) -> int:
    """Supervises a run on Ray in a child of a fork server, and returns the exit code.

    Args:
        arguments: `job`, as JSON; `name`, of the task that this process counts as; `end`, the file
            for the `WorkerEnd`.
    """
    job = Job.from_json(arguments["job"])
    try:
        with shown_output(), recording(job.request.model_run_dir, "driver"):
            supervise(job, RayEngine)
        end = WorkerEnd(task=arguments["name"])
    except BaseException as error:
        end = WorkerEnd.of(error, getattr(error, "worker", None))
    end.write(arguments["end"])
    return end.status
