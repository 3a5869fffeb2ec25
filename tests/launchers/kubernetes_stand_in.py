"""A stand-in for the API server of Kubernetes, the training operator and the kubelets.

It speaks HTTP with the real `kubernetes` client, refuses a TFJob that is not one, and runs the
command of each pod as a child process of the test, with the `TF_CONFIG` that the operator sets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.launchers.tfjob_schema import problems_of

__all__ = ["StandIn", "kubernetes_stand_in"]

ROOT = Path(__file__).parent.parent.parent
_LABEL = "training.kubeflow.org/job-name"
_LOG_POLL_S = 0.05


@dataclasses.dataclass
class Pod:
    """A pod that is a process."""

    name: str
    job: str
    log: Path
    process: subprocess.Popen[bytes] | None
    waiting: str = ""
    terminated: str = ""
    deleted: bool = False

    @property
    def code(self) -> int | None:
        """The exit code as a container's; None while it runs."""
        code = self.process.poll() if self.process else None
        return code if code is None or code >= 0 else 128 - code

    @property
    def phase(self) -> str:
        """As Kubernetes tells it."""
        if self.process is None:
            return "Pending"
        return {None: "Running", 0: "Succeeded"}.get(self.code, "Failed")

    def to_json(self) -> dict[str, Any]:
        """Returns the part of a pod that is looked at."""
        state: dict[str, Any] = {"running": {}}
        if self.waiting:
            state = {"waiting": {"reason": self.waiting, "message": "so says the test"}}
        elif self.code is not None:
            reason = self.terminated or ("Error" if self.code else "Completed")
            state = {"terminated": {"exitCode": self.code, "reason": reason}}
        status = {"name": "tensorflow", "image": "", "imageID": "", "ready": False}
        return {
            "metadata": {"name": self.name, "labels": {_LABEL: self.job}},
            "status": {
                "phase": self.phase,
                "containerStatuses": [{**status, "restartCount": 0, "state": state}],
            },
        }


class StandIn:
    """The cluster: what was asked of it, and what it does wrong on purpose.

    Attributes:
        requests: "METHOD path" of all requests, in order.
        manifests: all TFJobs that were made.
        pods: name → pod, those of deleted TFJobs too.
        refuses: status to answer the creation of a TFJob with, instead of making it.
        waits_for: reason why pods do not start.
        terminated: reason of Kubernetes for the end of containers that fail.
        breaks: how many of the next questions end in a broken connection.
        instead: Python source to run in the pods instead of their command.
        when_made: called when a TFJob has been made and its pods started.
    """

    def __init__(self, folder: Path) -> None:
        """Keeps the logs of the pods in a folder."""
        self.requests: list[str] = []
        self.manifests: list[dict[str, Any]] = []
        self.pods: dict[str, Pod] = {}
        self.refuses: int | None = None
        self.waits_for = ""
        self.terminated = ""
        self.breaks = 0
        self.instead = ""
        self.when_made: Callable[[], object] = lambda: None
        self._jobs: dict[str, dict[str, Any]] = {}
        self._folder = folder

    def create(self, manifest: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Makes a TFJob and starts its pods."""
        if self.refuses:
            return self.refuses, {"kind": "Status", "code": self.refuses, "message": "refused"}
        problems = problems_of(manifest)
        if problems:
            return 422, {"kind": "Status", "code": 422, "message": "; ".join(problems)}
        self.manifests.append(manifest)
        self._jobs[manifest["metadata"]["name"]] = manifest
        self._start(manifest)
        self.when_made()
        return 201, manifest

    def job(self, name: str) -> tuple[int, dict[str, Any]]:
        """Returns a TFJob with its status."""
        if name not in self._jobs:
            return 404, {"kind": "Status", "code": 404, "message": f"{name} not found"}
        phases = [pod.phase for pod in self._pods_of(name)]
        # The operator's rule: the chief decides, and worker 0 where there is none.
        first = self.pods.get(f"{name}-chief-0") or self.pods[f"{name}-worker-0"]
        condition = "Failed" if "Failed" in phases else first.phase.replace("Pending", "Created")
        conditions = [
            {"type": "Created", "status": "True", "message": "created"},
            {"type": condition, "status": "True", "message": f"has {condition.lower()}"},
        ]
        return 200, {**self._jobs[name], "status": {"conditions": conditions}}

    def list_pods(self, name: str) -> tuple[int, dict[str, Any]]:
        """Returns the pods of a TFJob."""
        items = [pod.to_json() for pod in self._pods_of(name)]
        return 200, {"kind": "PodList", "apiVersion": "v1", "items": items}

    def delete(self, name: str) -> tuple[int, dict[str, Any]]:
        """Deletes a TFJob and its pods."""
        if self._jobs.pop(name, None) is None:
            return 404, {"kind": "Status", "code": 404}
        for pod in self._pods_of(name):
            pod.deleted = True
            _kill(pod)
        return 200, {"kind": "Status", "status": "Success"}

    def log_lines(self, name: str) -> Iterator[bytes]:
        """Yields parts of a pod's log until its process has ended."""
        pod = self.pods[name]
        with open(pod.log, "rb") as log:
            while True:
                over = pod.phase != "Running"
                yield from iter(lambda: log.read(1 << 16), b"")
                if over:
                    return
                time.sleep(_LOG_POLL_S)

    def close(self) -> None:
        """Kills what still runs."""
        for pod in self.pods.values():
            _kill(pod)

    def _pods_of(self, name: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.job == name and not pod.deleted]

    def _start(self, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        specs = manifest["spec"]["tfReplicaSpecs"]
        tasks = [
            (kind.lower(), index, spec["template"]["spec"]["containers"][0])
            for kind, spec in specs.items()
            for index in range(spec["replicas"])
        ]
        cluster: dict[str, list[str]] = {}
        for (task, _, _), port in zip(tasks, _free_ports(len(tasks)), strict=True):
            cluster.setdefault(task, []).append(f"127.0.0.1:{port}")
        for task, index, container in tasks:
            config = {"cluster": cluster, "task": {"type": task, "index": index}}
            given = {"TF_CONFIG": json.dumps({**config, "environment": "cloud"})}
            pod_name = f"{name}-{task}-{index}"
            log = self._folder / f"{pod_name}.log"
            log.touch()
            process = None
            if not self.waits_for:
                command = ["python", "-c", self.instead] if self.instead else container["command"]
                process = _run(
                    {**container, "command": command}, given if len(tasks) > 1 else {}, log
                )
            self.pods[pod_name] = Pod(pod_name, name, log, process, self.waits_for, self.terminated)


def _run(container: Mapping[str, Any], given: Mapping[str, str], log: Path) -> Any:
    python, *arguments = container["command"]
    assert python == "python"
    environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    environment |= {one["name"]: one["value"] for one in container["env"]}
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env={**environment, "PYTHONPATH": str(ROOT), **given},
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill(pod: Pod) -> None:
    if pod.process is not None and pod.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.process.pid, signal.SIGKILL)
        pod.process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


_JOBS = re.compile(r"/apis/kubeflow\.org/v1/namespaces/([^/]+)/tfjobs(?:/([^/]+))?")
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+)/log)?")


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if self._breaks():
            return
        if job := _JOBS.fullmatch(url.path):
            self._answer(*self.stand_in.job(job[2]))
        elif (pods := _PODS.fullmatch(url.path)) and pods[2]:
            self._stream(pods[2])
        else:
            selector = parse_qs(url.query)["labelSelector"][0]
            self._answer(*self.stand_in.list_pods(selector.partition("=")[2]))

    def do_POST(self) -> None:
        self._breaks(False)
        length = int(self.headers["Content-Length"])
        self._answer(*self.stand_in.create(json.loads(self.rfile.read(length))))

    def do_DELETE(self) -> None:
        self._breaks(False)
        job = _JOBS.fullmatch(urlsplit(self.path).path)
        assert job is not None
        self._answer(*self.stand_in.delete(job[2]))

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _breaks(self, may: bool = True) -> bool:
        self.stand_in.requests.append(f"{self.command} {urlsplit(self.path).path}")
        if may and self.stand_in.breaks > 0:
            self.stand_in.breaks -= 1
            self.close_connection = True
            return True
        return False

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, pod: str) -> None:
        known = self.stand_in.pods.get(pod)
        if known is None or known.phase == "Pending":
            self._answer(400, {"kind": "Status", "message": "container is waiting to start"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in self.stand_in.log_lines(pod):
                self.wfile.write(part)
                self.wfile.flush()


@contextlib.contextmanager
def kubernetes_stand_in(folder: Path) -> Iterator[StandIn]:
    """Yields the stand-in, with `KUBECONFIG` leading to it."""
    stand_in = StandIn(folder)
    handler = type("Handler", (_Handler,), {"stand_in": stand_in})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "users": [{"name": "test", "user": {"token": "test"}}],
                "clusters": [
                    {
                        "name": "test",
                        "cluster": {"server": f"http://127.0.0.1:{server.server_port}"},
                    }
                ],
            }
        )
    )
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(config)
    try:
        yield stand_in
    finally:
        if before is None:
            del os.environ["KUBECONFIG"]
        else:
            os.environ["KUBECONFIG"] = before
        stand_in.close()
        server.shutdown()
        thread.join()
        server.server_close()
