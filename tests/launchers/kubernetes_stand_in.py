"""A stand-in for the API server of Kubernetes, the operators of Kubeflow and the kubelets.

It speaks HTTP with the real `kubernetes` client, refuses an object that does not match its
definition, and runs the command of each pod as a child process of the test: that of a TFJob with
the `TF_CONFIG` that the training operator sets, that of a TrainJob with the environment of its
runtime, whose host names it resolves.
"""

import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.launchers.containers import exit_code, run_container, stop_container
from tests.launchers.kubernetes_schema import problems_of
from tests.processes import free_ports, serving

__all__ = ["StandIn", "kubernetes_stand_in"]

_TFJOB_LABELS = "training.kubeflow.org/"
_JOBSET_LABELS = "jobset.sigs.k8s.io/"
_INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_LOG_POLL_S = 0.05
Answer = tuple[int, Mapping[str, Any]]


@dataclasses.dataclass
class Pod:
    """A pod that is a process.

    Attributes:
        cause: reason and message of Kubernetes for waiting, without a process, or for its end.
        evicted: reason and message of its eviction.
    """

    name: str
    job: str
    task: tuple[str, int]
    is_of_tfjob: bool
    log: Path
    process: subprocess.Popen[bytes] | None
    cause: tuple[str, str] | None
    evicted: tuple[str, str] | None
    deleted: bool = False

    @property
    def code(self) -> int | None:
        """The exit code of the container; None while it runs."""
        return exit_code(self.process) if self.process else None

    @property
    def phase(self) -> str:
        """The phase, in Kubernetes' words."""
        if self.process is None:
            return "Failed" if self.cause and self.cause[0] == "StartError" else "Pending"
        return {None: "Running", 0: "Succeeded"}.get(self.code, "Failed")

    def to_json(self) -> dict[str, Any]:
        """Returns the fields of a pod that clients look at."""
        status: dict[str, Any] = {"phase": self.phase}
        state: dict[str, Any] = {"running": {}}
        cause = dict(zip(("reason", "message"), self.cause or (), strict=False))
        if self.phase == "Pending" and cause["reason"] == "Unschedulable":
            status["conditions"] = [{"type": "PodScheduled", "status": "False", **cause}]
            state = {}
        elif self.phase == "Pending":
            state = {"waiting": cause}
        elif self.phase != "Running":
            reason = "Error" if self.code else "Completed"
            code = 128 if self.process is None else self.code
            state = {"terminated": {"exitCode": code, "reason": reason, **cause}}
        if self.evicted:
            status |= dict(zip(("reason", "message"), self.evicted, strict=True))
        if state:
            container = "tensorflow" if self.is_of_tfjob else "node"
            fields = {"name": container, "image": "", "imageID": "", "ready": False}
            status["containerStatuses"] = [{**fields, "restartCount": 0, "state": state}]
        kind, index = self.task[0], str(self.task[1])
        prefix, labels = _JOBSET_LABELS, {"jobset-name": self.job, "replicatedjob-name": kind}
        if self.is_of_tfjob:
            prefix = _TFJOB_LABELS
            labels = {"job-name": self.job, "replica-type": kind, "replica-index": index}
        labels = {prefix + key: text for key, text in labels.items()}
        metadata = {"name": self.name, "uid": str(id(self)), "labels": labels}
        metadata["annotations"] = {_INDEX_ANNOTATION: index}
        return {"metadata": metadata, "status": status}


class StandIn:
    """The cluster: the requests that it got, and its deliberate faults.

    Attributes:
        requests: "METHOD path" of all requests, in order.
        manifests: all objects that were made.
        pods: name → pod, those of deleted jobs too.
        runtimes: name → TrainingRuntime.
        refuses: status with which the creation of a job is refused.
        denials: messages with which a webhook denies the next creations of a job, in which NAME is
            that of the job.
        cause: see `Pod`; pods do not start unless the reason is that of an end.
        evicted: see `Pod`.
        breaks: how many of the next GET requests end in a broken connection.
        loses: methods, such as "POST", whose next request is carried out but not answered.
        instead: Python source to run in the pods instead of their command.
        when_made: called when a job has been made and its pods started.
        quota: message with which the operator's pods are refused, so that no pod is made.
        owner: what follows the name of the job in that of the object whose events say so.
    """

    def __init__(self, folder: Path) -> None:
        """Keeps the logs of the pods in a folder."""
        self.requests: list[str] = []
        self.manifests: list[dict[str, Any]] = []
        self.pods: dict[str, Pod] = {}
        self.runtimes: dict[str, dict[str, Any]] = {}
        self.refuses: int | None = None
        self.denials: list[str] = []
        self.cause: tuple[str, str] | None = None
        self.evicted: tuple[str, str] | None = None
        self.breaks = 0
        self.loses: list[str] = []
        self.instead = ""
        self.when_made: Callable[[], object] = lambda: None
        self.quota, self.owner = "", ""
        self._generation = 0
        self._jobs: dict[str, dict[str, Any]] = {}
        self._folder = folder

    @property
    def verbs(self) -> list[str]:
        """The methods of requests that change something."""
        return [line.split()[0] for line in self.requests if not line.startswith("GET")]

    def create(self, manifest: dict[str, Any]) -> Answer:
        """Makes an object, and starts the pods of a job."""
        name, is_runtime = manifest["metadata"]["name"], manifest["kind"] == "TrainingRuntime"
        if self.refuses and not is_runtime:
            return _status(self.refuses, "refused")
        if self.denials and not is_runtime:
            return _status(403, f"denied the request: {self.denials.pop(0).replace('NAME', name)}")
        if problems := problems_of(manifest):
            return _status(422, "; ".join(problems))
        objects = self.runtimes if is_runtime else self._jobs
        if name in objects:
            return _status(409, f"{name} already exists")
        self.manifests.append(manifest)
        objects[name] = manifest
        if not is_runtime:
            self._start(manifest)
            self.when_made()
        return 201, manifest

    def job(self, name: str) -> Answer:
        """Returns a job with its status."""
        if name not in self._jobs:
            return _status(404, f"{name} not found")
        job, pods = self._jobs[name], self.pods_of(name)
        is_tfjob = job["kind"] == "TFJob"
        if is_tfjob:  # the chief decides, or worker 0 if there is none
            decide = sorted(pods, key=lambda pod: pod.task)[:1]
        else:
            runtime = self.runtimes[job["spec"]["runtimeRef"]["name"]]["spec"]["template"]["spec"]
            target = runtime.get("successPolicy", {}).get("targetReplicatedJobs")
            decide = [pod for pod in pods if target is None or pod.task[0] in target]
        condition, message = "Created", "created"
        if job["spec"].get("suspend"):
            condition, message = "Suspended", "by a queue"
        elif any(pod.phase == "Failed" for pod in pods):
            condition, message = "Failed", "has failed"
        elif decide and all(pod.phase == "Succeeded" for pod in decide):
            condition, message = "Succeeded" if is_tfjob else "Complete", "has completed"
        conditions = [{"type": condition, "status": "True", "message": message}]
        return 200, {**job, "status": {"conditions": conditions}}

    def suspend(self, name: str) -> None:
        """Suspends a TrainJob, as Kueue may: its pods are ended and gone."""
        self._jobs[name]["spec"]["suspend"] = True
        self._stop(name, signal.SIGTERM)

    def resume(self, name: str) -> None:
        """Resumes a suspended TrainJob, with new pods."""
        self._jobs[name]["spec"]["suspend"] = False
        self._start(self._jobs[name])

    def pods_of(self, name: str) -> list[Pod]:
        """Returns the pods of a job."""
        return [pod for pod in self.pods.values() if pod.job == name and not pod.deleted]

    def delete(self, kind: str, name: str) -> Answer:
        """Deletes an object and its pods."""
        objects = self.runtimes if kind == "trainingruntimes" else self._jobs
        if objects.pop(name, None) is None:
            return _status(404, f"{name} not found")
        if objects is self._jobs:
            self._stop(name)
        return _status(200, "deleted")

    def events(self) -> list[dict[str, Any]]:
        """Returns an event of each job whose pods are refused, and one of another object."""
        names = [name + self.owner for name in self._jobs] if self.quota else []
        event = {"metadata": {}, "type": "Warning", "reason": "FailedCreate", "message": self.quota}
        return [{**event, "involvedObject": {"name": name}} for name in (*names, "other")]

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
        """Kills the remaining processes."""
        for pod in self.pods.values():
            if pod.process is not None:
                stop_container(pod.process)

    def _stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        for pod in self.pods_of(name):
            if pod.process is not None:
                stop_container(pod.process, number)
            pod.deleted = True

    def _start(self, manifest: Mapping[str, Any]) -> None:
        name, is_tfjob = manifest["metadata"]["name"], manifest["kind"] == "TFJob"
        if self.quota:
            return
        if is_tfjob:
            specs = manifest["spec"]["tfReplicaSpecs"]
            counts = {kind.lower(): spec["replicas"] for kind, spec in specs.items()}
            templates = {kind.lower(): spec["template"] for kind, spec in specs.items()}
        else:
            runtime = self.runtimes[manifest["spec"]["runtimeRef"]["name"]]["spec"]["template"]
            jobs = {
                job["name"]: job["template"]["spec"] for job in runtime["spec"]["replicatedJobs"]
            }
            counts = {kind: spec["completions"] for kind, spec in jobs.items()}
            templates = {kind: spec["template"] for kind, spec in jobs.items()}
        ports = iter(free_ports(sum(counts.values())))
        cluster = {
            kind: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for kind, n in counts.items()
        }
        tasks = [(kind, index) for kind, n in counts.items() for index in range(n)]
        hosts = {f"{name}-{kind}-0-{i}.{name}:2222": cluster[kind][i] for kind, i in tasks}
        self._generation += 1
        for kind, index in tasks:
            config = {"cluster": cluster, "task": {"type": kind, "index": index}}
            pod_name, given = f"{name}-{kind}-0-{index}-{self._generation:05d}", {}
            if is_tfjob:
                pod_name = f"{name}-{kind}-{index}"
                if len(tasks) > 1:
                    given = {"TF_CONFIG": json.dumps({**config, "environment": "cloud"})}
            log = self._folder / f"{pod_name}.log"
            (container,) = templates[kind]["spec"]["containers"]
            process = self._run(container, index, hosts, given, log)
            state = (log, process, self.cause, self.evicted)
            self.pods[pod_name] = Pod(pod_name, name, (kind, index), is_tfjob, *state)

    def _run(
        self, container: Any, index: int, hosts: Any, given: Any, log: Path
    ) -> subprocess.Popen[bytes] | None:
        log.touch()
        if self.cause and self.cause[0] != "OOMKilled":
            return None
        env = []
        for variable in container["env"]:
            if "valueFrom" in variable:
                path = variable["valueFrom"]["fieldRef"]["fieldPath"]
                assert path == f"metadata.annotations['{_INDEX_ANNOTATION}']"
            value = variable.get("value", str(index))
            for host, address in hosts.items():
                value = re.sub(rf"\b{re.escape(host)}", address, value)
            env.append((variable["name"], value))
        command = ["python", "-c", self.instead] if self.instead else container["command"]
        return run_container(command, env, given, log)


_JOBS = re.compile(
    r"/apis/(?:trainer\.)?kubeflow\.org/v1(?:alpha1)?/namespaces/([^/]+)"
    r"/(tfjobs|trainjobs|trainingruntimes)(?:/([^/]+))?"
)
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+)/log)?")


def _status(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "code": code, "message": message}


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def do_GET(self) -> None:
        if self.stand_in.breaks > 0:
            self.stand_in.breaks -= 1
            self.close_connection = True
            return
        url = urlsplit(self.path)
        if job := _JOBS.fullmatch(url.path):
            self._answer(*self.stand_in.job(job[3]))
        elif (pods := _PODS.fullmatch(url.path)) and pods[2]:
            self._stream(pods[2])
        elif url.path.endswith("/events"):
            assert parse_qs(url.query)["fieldSelector"] == ["type=Warning"]
            self._answer(200, {"kind": "EventList", "items": self.stand_in.events()})
        else:
            name = parse_qs(url.query)["labelSelector"][0].partition("=")[2]
            items = [pod.to_json() for pod in self.stand_in.pods_of(name)]
            self._answer(200, {"kind": "PodList", "apiVersion": "v1", "items": items})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self._answer(*self.stand_in.create(json.loads(self.rfile.read(length))))

    def do_DELETE(self) -> None:
        job = _JOBS.fullmatch(urlsplit(self.path).path)
        assert job is not None
        self._answer(*self.stand_in.delete(job[2], job[3]))

    def parse_request(self) -> bool:
        is_read = super().parse_request()
        self.stand_in.requests.append(f"{self.command} {urlsplit(self.path).path}")
        return is_read

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        if self.command in self.stand_in.loses:
            self.stand_in.loses.remove(self.command)
            self.close_connection = True
            return
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, pod: str) -> None:
        known = self.stand_in.pods.get(pod)
        if known is None or known.phase == "Pending":
            self._answer(*_status(400, "container is waiting to start"))
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
    with serving(handler) as address, pytest.MonkeyPatch.context() as patch:
        config = folder / "kubeconfig"
        config.write_text(
            "{apiVersion: v1, kind: Config, current-context: test, "
            "contexts: [{name: test, context: {cluster: test, user: test}}], "
            "users: [{name: test, user: {token: test}}], "
            f"clusters: [{{name: test, cluster: {{server: '{address}'}}}}]}}"
        )
        patch.setenv("KUBECONFIG", str(config))
        try:
            yield stand_in
        finally:
            stand_in.close()
