"""A stand-in for the API server of Kubernetes, the operators of Kubeflow and the kubelets.

It speaks HTTP with the real `kubernetes` client, refuses an object that is not what its definition
says, and runs the command of each pod as a child process of the test: that of a TFJob with the
`TF_CONFIG` that the training operator sets, that of a TrainJob with the environment of its runtime,
whose variables it expands and whose host names it resolves, as Kubernetes does.
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

from tests.launchers.kubernetes_schema import problems_of

__all__ = ["ROOT", "StandIn", "free_ports", "kubernetes_stand_in"]

ROOT = Path(__file__).parent.parent.parent
_TFJOB_LABELS = "training.kubeflow.org/"
_JOBSET_LABELS = "jobset.sigs.k8s.io/"
_INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_LOG_POLL_S = 0.05


@dataclasses.dataclass
class Pod:
    """A pod that is a process."""

    name: str
    job: str
    task: tuple[str, int]
    is_of_tfjob: bool
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
        kind, index = self.task
        if self.is_of_tfjob:
            labels = {"job-name": self.job, "replica-type": kind, "replica-index": str(index)}
            metadata = {"labels": {_TFJOB_LABELS + key: text for key, text in labels.items()}}
        else:
            labels = {"jobset-name": self.job, "replicatedjob-name": kind}
            metadata = {
                "labels": {_JOBSET_LABELS + key: text for key, text in labels.items()},
                "annotations": {_INDEX_ANNOTATION: str(index)},
            }
        container = "tensorflow" if self.is_of_tfjob else "node"
        status = {"name": container, "image": "", "imageID": "", "ready": False}
        return {
            "metadata": {"name": self.name, "uid": str(id(self)), **metadata},
            "status": {
                "phase": self.phase,
                "containerStatuses": [{**status, "restartCount": 0, "state": state}],
            },
        }


class StandIn:
    """The cluster: what was asked of it, and what it does wrong on purpose.

    Attributes:
        requests: "METHOD path" of all requests, in order.
        manifests: all objects that were made.
        pods: name → pod, those of deleted jobs too.
        refuses: status to answer the creation of a job with, instead of making it.
        waits_for: reason why pods do not start.
        terminated: reason of Kubernetes for the end of containers that fail.
        breaks: how many of the next questions end in a broken connection.
        instead: Python source to run in the pods instead of their command.
        when_made: called when a job has been made and its pods started.
        status: what the operator adds to the status of a TrainJob.
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
        self.status: dict[str, Any] = {}
        self.runtimes: dict[str, dict[str, Any]] = {}
        self._generation = 0
        self._jobs: dict[str, dict[str, Any]] = {}
        self._folder = folder

    def create(self, manifest: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Makes an object, and starts the pods of a job."""
        if self.refuses and manifest["kind"] != "TrainingRuntime":
            return self.refuses, {"kind": "Status", "code": self.refuses, "message": "refused"}
        problems = problems_of(manifest)
        if problems:
            return 422, {"kind": "Status", "code": 422, "message": "; ".join(problems)}
        self.manifests.append(manifest)
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "TrainingRuntime":
            self.runtimes[name] = manifest
            return 201, manifest
        self._jobs[name] = manifest
        self._start(manifest)
        self.when_made()
        return 201, manifest

    def job(self, name: str) -> tuple[int, dict[str, Any]]:
        """Returns a job with its status."""
        if name not in self._jobs:
            return 404, {"kind": "Status", "code": 404, "message": f"{name} not found"}
        job = self._jobs[name]
        pods = self._pods_of(name)
        if job["kind"] == "TrainJob":
            return 200, {**job, "status": {**self._trainjob_status(job, pods), **self.status}}
        phases = [pod.phase for pod in pods]
        # The operator's rule: the chief decides, and worker 0 where there is none.
        first = self.pods.get(f"{name}-chief-0") or self.pods[f"{name}-worker-0"]
        condition = "Failed" if "Failed" in phases else first.phase.replace("Pending", "Created")
        conditions = [
            {"type": "Created", "status": "True", "message": "created"},
            {"type": condition, "status": "True", "message": f"has {condition.lower()}"},
        ]
        return 200, {**job, "status": {"conditions": conditions}}

    def suspend(self, name: str) -> None:
        """Suspends a TrainJob, as Kueue may: its pods are ended and gone."""
        self._jobs[name]["spec"]["suspend"] = True
        for pod in self._pods_of(name):
            _kill(pod, signal.SIGTERM)
            pod.deleted = True

    def resume(self, name: str) -> None:
        """Has a suspended TrainJob go on, with new pods."""
        self._jobs[name]["spec"]["suspend"] = False
        self._start(self._jobs[name])

    def _trainjob_status(self, job: Mapping[str, Any], pods: list[Pod]) -> dict[str, Any]:
        runtime = self.runtimes[job["spec"]["runtimeRef"]["name"]]["spec"]["template"]["spec"]
        policy = runtime.get("successPolicy", {}).get("targetReplicatedJobs")
        decide = [pod for pod in pods if policy is None or pod.task[0] in policy]
        conditions = []
        if job["spec"].get("suspend"):
            conditions = [{"type": "Suspended", "status": "True", "message": "by a queue"}]
        elif any(pod.phase == "Failed" for pod in pods):
            conditions = [{"type": "Failed", "status": "True", "message": "jobset failed"}]
        elif decide and all(pod.phase == "Succeeded" for pod in decide):
            conditions = [{"type": "Complete", "status": "True", "message": "jobset completed"}]
        return {"conditions": conditions}

    def list_pods(self, name: str) -> tuple[int, dict[str, Any]]:
        """Returns the pods of a job."""
        items = [pod.to_json() for pod in self._pods_of(name)]
        return 200, {"kind": "PodList", "apiVersion": "v1", "items": items}

    def delete(self, kind: str, name: str) -> tuple[int, dict[str, Any]]:
        """Deletes a job and its pods."""
        objects = self.runtimes if kind == "trainingruntimes" else self._jobs
        if objects.pop(name, None) is None:
            return 404, {"kind": "Status", "code": 404}
        if kind == "trainingruntimes":
            return 200, {"kind": "Status", "status": "Success"}
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
        start = self._start_tfjob if manifest["kind"] == "TFJob" else self._start_trainjob
        start(manifest)

    def _start_tfjob(self, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        specs = manifest["spec"]["tfReplicaSpecs"]
        tasks = [
            (kind.lower(), index, spec["template"]["spec"]["containers"][0])
            for kind, spec in specs.items()
            for index in range(spec["replicas"])
        ]
        cluster: dict[str, list[str]] = {}
        for (task, _, _), port in zip(tasks, free_ports(len(tasks)), strict=True):
            cluster.setdefault(task, []).append(f"127.0.0.1:{port}")
        for task, index, container in tasks:
            config = {"cluster": cluster, "task": {"type": task, "index": index}}
            given = {"TF_CONFIG": json.dumps({**config, "environment": "cloud"})}
            pod_name = f"{name}-{task}-{index}"
            given = given if len(tasks) > 1 else {}
            self._start_pod(pod_name, name, (task, index), container, given, is_of_tfjob=True)

    def _start_trainjob(self, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        runtime = self.runtimes[manifest["spec"]["runtimeRef"]["name"]]
        tasks = [
            (job["name"], index, job["template"]["spec"]["template"]["spec"]["containers"][0])
            for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]
            for index in range(job["template"]["spec"]["completions"])
        ]
        hosts = [f"{name}-{task}-0-{index}.{name}:2222" for task, index, _ in tasks]
        names = dict(zip(hosts, free_ports(len(tasks)), strict=True))
        self._generation += 1
        for task, index, container in tasks:
            variables = _environment(container["env"], {_INDEX_ANNOTATION: str(index)})
            for host, port in names.items():
                variables = {
                    key: re.sub(rf"\b{re.escape(host)}", f"127.0.0.1:{port}", value)
                    for key, value in variables.items()
                }
            pod_name = f"{name}-{task}-0-{index}-{self._generation:05d}"
            self._start_pod(
                pod_name,
                name,
                (task, index),
                {**container, "env": []},
                variables,
                is_of_tfjob=False,
            )

    def _start_pod(
        self,
        name: str,
        job: str,
        task: tuple[str, int],
        container: Mapping[str, Any],
        given: Mapping[str, str],
        *,
        is_of_tfjob: bool,
    ) -> None:
        log = self._folder / f"{name}.log"
        log.touch()
        process = None
        if not self.waits_for:
            command = ["python", "-c", self.instead] if self.instead else container["command"]
            process = _run({**container, "command": command}, given, log)
        self.pods[name] = Pod(
            name, job, task, is_of_tfjob, log, process, self.waits_for, self.terminated
        )


def _environment(env: list[dict[str, Any]], annotations: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a container, as the kubelet makes them of its definition."""
    found: dict[str, str] = {}
    for one in env:
        if "valueFrom" in one:
            path = one["valueFrom"]["fieldRef"]["fieldPath"]
            found[one["name"]] = annotations[path.removeprefix("metadata.annotations['")[:-2]]
        else:
            found[one["name"]] = re.sub(
                r"\$\((\w+)\)", lambda match: found.get(match[1], match[0]), one["value"]
            )
    return found


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


def _kill(pod: Pod, number: signal.Signals = signal.SIGKILL) -> None:
    if pod.process is not None and pod.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pod.process.pid, number)
        pod.process.wait()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


_JOBS = re.compile(
    r"/apis/(?:trainer\.)?kubeflow\.org/v1(?:alpha1)?/namespaces/([^/]+)"
    r"/(tfjobs|trainjobs|trainingruntimes)(?:/([^/]+))?"
)
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+)/log)?")


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if self._breaks():
            return
        if job := _JOBS.fullmatch(url.path):
            self._answer(*self.stand_in.job(job[3]))
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
        self._answer(*self.stand_in.delete(job[2], job[3]))

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
