"""A stand-in for the job service of Vertex AI and the machines behind it.

It speaks gRPC with the real client, reads each request with the client library's own protos,
refuses what Vertex AI would refuse, and runs the containers as child processes of the test, with
the `CLUSTER_SPEC` that Vertex AI sets.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
from google.cloud.aiplatform_v1.services.job_service.transports import JobServiceGrpcTransport
from google.cloud.aiplatform_v1.types import (
    AcceleratorType,
    CancelCustomJobRequest,
    CreateCustomJobRequest,
    CustomJob,
    GetCustomJobRequest,
    JobState,
)
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from tests.launchers.kubernetes_stand_in import ROOT, free_ports

__all__ = ["VertexStandIn", "vertex_stand_in"]

_SERVICE = "google.cloud.aiplatform.v1.JobService"
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")


class VertexStandIn:
    """Vertex AI: what was asked of it, and what it does wrong on purpose.

    Attributes:
        calls: the names of all calls but those that look.
        made: all custom jobs that were made.
        instead: Python source to run in the containers instead of their command.
        error: code and message with which a job fails that does not even start.
        breaks: how many of the next questions are not answered.
        when_made: called when a job was made.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[str] = []
        self.made: list[Any] = []
        self.instead = ""
        self.error: tuple[int, str] | None = None
        self.breaks = 0
        self.when_made: Callable[[], object] = lambda: None
        self._folder = folder
        self._replicas: dict[str, dict[tuple[int, int], subprocess.Popen[bytes]]] = {}
        self._states: dict[str, Any] = {}
        self._lock = threading.Lock()

    def create(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append("create")
        if problems := problems_of(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "; ".join(problems))
        job = CustomJob(request.custom_job)
        job.name = f"{request.parent}/customJobs/{len(self.made) + 1}"
        self.made.append(job)
        with self._lock:
            self._states[job.name] = job
            job.state = JobState.JOB_STATE_PENDING
            if self.error is not None:
                self._end(job, JobState.JOB_STATE_FAILED, *self.error)
            else:
                self._start(job)
        self.when_made()
        return job

    def get(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.breaks:
            self.breaks -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        with self._lock:
            job = self._states.get(request.name)
            if job is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
            self._look(job)
            return CustomJob(job)

    def cancel(self, request: Any, context: grpc.ServicerContext) -> Empty:
        self.calls.append("cancel")
        with self._lock:
            job = self._states[request.name]
            if job.end_time:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it has ended")
            self._end(job, JobState.JOB_STATE_CANCELLED, 0, "")
        return Empty()

    def close(self) -> None:
        for job in self._states.values():
            self._stop(job)

    def preempt(self) -> None:
        """Takes the machines of the last job away."""
        with self._lock:
            self._end(self.made[-1], JobState.JOB_STATE_FAILED, 10, "Spot VM was preempted.")

    def _start(self, job: Any) -> None:
        pools = list(job.job_spec.worker_pool_specs)
        sizes = [pool.replica_count for pool in pools]
        ports = iter(free_ports(sum(sizes)))
        cluster = {
            f"workerpool{number}": [f"127.0.0.1:{next(ports)}" for _ in range(size)]
            for number, size in enumerate(sizes)
        }
        replicas = self._replicas[job.name] = {}
        for number, pool in enumerate(pools):
            for index in range(pool.replica_count):
                task = {"type": f"workerpool{number}", "index": index}
                spec = {"cluster": cluster, "environment": "cloud", "task": task}
                replicas[number, index] = self._run(pool.container_spec, json.dumps(spec))
        job.state = JobState.JOB_STATE_RUNNING

    def _run(self, container: Any, spec: str) -> subprocess.Popen[bytes]:
        python, *arguments = [*container.command, *container.args]
        assert python == "python"
        environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        environment |= {one.name: one.value for one in container.env}
        command = ["-c", self.instead] if self.instead else arguments
        with open(self._folder / "replicas.log", "ab") as output:
            return subprocess.Popen(
                [sys.executable, *command],
                # Vertex AI's own TF_CONFIG has the pools as tasks.
                env={
                    **environment,
                    **{"PYTHONPATH": str(ROOT), "CLUSTER_SPEC": spec, "TF_CONFIG": spec},
                },
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _look(self, job: Any) -> None:
        if job.end_time:
            return
        for (pool, index), process in self._replicas[job.name].items():
            code = process.poll()
            if code is None or (code == 0 and (pool, index) != (0, 0)):
                continue
            code = 128 - code if code < 0 else code
            if code == 0:
                self._end(job, JobState.JOB_STATE_SUCCEEDED, 0, "")
                return
            replica = f"The replica workerpool{pool}-{index}"
            message = f"{replica} exited with a non-zero status of {code}. See the logs."
            self._end(job, JobState.JOB_STATE_FAILED, 3, message)
            return

    def _end(self, job: Any, state: Any, code: int, message: str) -> None:
        self._stop(job)
        job.state = state
        if message:
            job.error.code, job.error.message = code, message
        now = Timestamp()
        now.GetCurrentTime()
        job.end_time = now

    def _stop(self, job: Any) -> None:
        for process in self._replicas.get(job.name, {}).values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def problems_of(request: Any) -> list[str]:
    """Returns what is wrong with the request for a custom job."""
    found = []
    if not re.fullmatch(r"projects/[a-z0-9-]+/locations/[a-z0-9-]+", request.parent):
        found.append(f"parent {request.parent!r}")
    job = request.custom_job
    if not 0 < len(job.display_name) <= 128:
        found.append("display_name")
    labels = (*job.labels, *job.labels.values())
    found += [f"label {text!r}" for text in labels if not _LABEL.fullmatch(text)]
    if job.job_spec.network and not re.fullmatch(
        r"projects/\d+/global/networks/\S+", job.job_spec.network
    ):
        found.append("network must be projects/NUMBER/global/networks/NAME")
    pools = job.job_spec.worker_pool_specs
    if not 0 < len(pools) <= 4:
        found.append(f"{len(pools)} worker pools")
    for number, pool in enumerate(pools):
        if pool.replica_count < 1 or (number == 0 and pool.replica_count != 1):
            found.append(f"workerpool{number} has {pool.replica_count} replicas")
        if not pool.machine_spec.machine_type:
            found.append(f"workerpool{number} has no machine type")
        if not pool.container_spec.image_uri:
            found.append(f"workerpool{number} has no image")
        is_accelerated = pool.machine_spec.accelerator_type != (
            AcceleratorType.ACCELERATOR_TYPE_UNSPECIFIED
        )
        if is_accelerated != (pool.machine_spec.accelerator_count > 0):
            found.append(f"workerpool{number}: accelerator type and count go together")
    return found


@contextlib.contextmanager
def vertex_stand_in(folder: Path) -> Iterator[VertexStandIn]:
    """Yields the stand-in, to which the engine's client is connected."""
    stand_in = VertexStandIn(folder)
    methods = {
        "CreateCustomJob": (stand_in.create, CreateCustomJobRequest, CustomJob.serialize),
        "GetCustomJob": (stand_in.get, GetCustomJobRequest, CustomJob.serialize),
        "CancelCustomJob": (stand_in.cancel, CancelCustomJobRequest, Empty.SerializeToString),
    }
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(method, request.deserialize, answer)
        for name, (method, request, answer) in methods.items()
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    client = JobServiceClient(transport=JobServiceGrpcTransport(channel=channel))
    engine = "generic_trainer.launchers._vertex.engine"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{engine}.job_client", lambda region: client)
            patch.setattr(f"{engine}.VertexService.mounts", lambda self: [str(folder.parent)])
            yield stand_in
    finally:
        stand_in.close()
        channel.close()
        server.stop(None).wait()
