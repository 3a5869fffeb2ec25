"""A stand-in for the job service of Vertex AI and the machines behind it.

It speaks gRPC with the real client, reads each request with the client library's own protos,
refuses what Vertex AI would refuse, and runs the containers as child processes of the test, with
the `CLUSTER_SPEC` that Vertex AI sets.
"""

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.aiplatform_v1 import types
from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
from google.cloud.aiplatform_v1.services.job_service.transports import JobServiceGrpcTransport
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from tests.launchers.containers import exit_code, run_container, stop_container
from tests.processes import free_ports

__all__ = ["VertexStandIn", "vertex_stand_in"]

_SERVICE = "google.cloud.aiplatform.v1.JobService"
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")


class VertexStandIn:
    """Vertex AI: the calls that it got, and its deliberate faults.

    Attributes:
        calls: the names of all calls that change something.
        made: all custom jobs that were made.
        instead: Python source to run in the containers instead of their command.
        breaks: how many of the next requests for a job are not answered.
        loses: how many of the next creations are carried out but not answered.
        when_made: called when a job was made.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[str] = []
        self.made: list[Any] = []
        self.instead = ""
        self.breaks = self.loses = 0
        self.when_made: Callable[[], object] = lambda: None
        self._folder = folder
        self._replicas: dict[str, dict[tuple[int, int], subprocess.Popen[bytes]]] = {}
        self._states: dict[str, Any] = {}
        self._lock = threading.Lock()

    def create(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append("create")
        if problems := problems_of(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "; ".join(problems))
        job = types.CustomJob(request.custom_job)
        job.name = f"{request.parent}/customJobs/{len(self.made) + 1}"
        self.made.append(job)
        with self._lock:
            self._states[job.name] = job
            job.state = types.JobState.JOB_STATE_PENDING
            self._start(job)
        self.when_made()
        if self.loses:
            self.loses -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return job

    def list(self, request: Any, context: grpc.ServicerContext) -> Any:
        name, value = re.fullmatch(r'labels\.(\w+)="(.*)"', request.filter).groups()  # type: ignore[union-attr]
        found = [job for job in self.made if job.labels.get(name) == value]
        return types.ListCustomJobsResponse(custom_jobs=found)

    def get(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.breaks:
            self.breaks -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        with self._lock:
            job = self._states.get(request.name)
            if job is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
            self._look(job)
            return types.CustomJob(job)

    def cancel(self, request: Any, context: grpc.ServicerContext) -> Empty:
        self.calls.append("cancel")
        with self._lock:
            job = self._states[request.name]
            if job.end_time:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it has ended")
            self._end(job, types.JobState.JOB_STATE_CANCELLED, 0, "")
        return Empty()

    def close(self) -> None:
        for job in self._states.values():
            self._stop(job)

    def end(self, state: str, code: int = 0, message: str = "") -> None:
        """Ends the last job: it is preempted, say, or a person cancels it."""
        with self._lock:
            self._end(self.made[-1], types.JobState[f"JOB_STATE_{state}"], code, message)

    def _start(self, job: Any) -> None:
        pools = list(job.job_spec.worker_pool_specs)
        ports = iter(free_ports(sum(pool.replica_count for pool in pools)))
        cluster = {
            f"workerpool{number}": [f"127.0.0.1:{next(ports)}" for _ in range(pool.replica_count)]
            for number, pool in enumerate(pools)
        }
        replicas = self._replicas[job.name] = {}
        for number, pool in enumerate(pools):
            container = pool.container_spec
            command = ["python", "-c", self.instead] if self.instead else container.command
            for index in range(pool.replica_count):
                task = {"type": f"workerpool{number}", "index": index}
                spec = json.dumps({"cluster": cluster, "environment": "cloud", "task": task})
                replicas[number, index] = run_container(
                    [*command, *container.args],
                    [(variable.name, variable.value) for variable in container.env],
                    # Vertex AI's own TF_CONFIG has the pools as tasks.
                    {"CLUSTER_SPEC": spec, "TF_CONFIG": spec},
                    self._folder / "replicas.log",
                )
        job.state = types.JobState.JOB_STATE_RUNNING

    def _look(self, job: Any) -> None:
        if job.end_time:
            return
        for (pool, index), process in self._replicas[job.name].items():
            code = exit_code(process)
            if code == 0 and (pool, index) == (0, 0):
                self._end(job, types.JobState.JOB_STATE_SUCCEEDED, 0, "")
                return
            if code:
                replica = f"The replica workerpool{pool}-{index}"
                message = f"{replica} exited with a non-zero status of {code}. See the logs."
                self._end(job, types.JobState.JOB_STATE_FAILED, 3, message)
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
            stop_container(process)


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
        machine = pool.machine_spec
        if bool(machine.accelerator_type) != (machine.accelerator_count > 0):
            found.append(f"workerpool{number}: accelerator type and count go together")
    return found


@contextlib.contextmanager
def vertex_stand_in(folder: Path) -> Iterator[VertexStandIn]:
    """Yields the stand-in, to which the engine's client is connected."""
    stand_in = VertexStandIn(folder)
    methods = {
        "CreateCustomJob": (stand_in.create, types.CustomJob.serialize),
        "GetCustomJob": (stand_in.get, types.CustomJob.serialize),
        "ListCustomJobs": (stand_in.list, types.ListCustomJobsResponse.serialize),
        "CancelCustomJob": (stand_in.cancel, Empty.SerializeToString),
    }
    handlers = {}
    for name, (method, answer) in methods.items():
        read = getattr(types, f"{name}Request").deserialize
        handlers[name] = grpc.unary_unary_rpc_method_handler(method, read, answer)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    client = JobServiceClient(transport=JobServiceGrpcTransport(channel=channel))
    service = "generic_trainer.launchers._vertex"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{service}.job_client", lambda region: client)
            patch.setattr(f"{service}.CustomJobs.mounts", lambda self: [str(folder.parent)])
            yield stand_in
    finally:
        stand_in.close()
        channel.close()
        server.stop(None).wait()
