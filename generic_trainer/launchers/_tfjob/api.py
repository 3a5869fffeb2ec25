"""Client of Kubernetes: the few calls that a TFJob needs, and the log of a pod, shown live."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._tfjob.manifest import (
    CONTAINER,
    GROUP,
    JOB_NAME_LABEL,
    PLURAL,
    VERSION,
)

# Seconds to connect, and to answer. A log that is followed may say nothing for hours.
_TIMEOUT_S = (10, 60)
_CONNECT_TIMEOUT_S = (10, None)
_NOT_FOUND = 404
_LOG_RETRY_S = 1.0
_LAST_LINES_S = 10.0


@dataclasses.dataclass(frozen=True)
class JobState:
    """What the operator says of a TFJob: its last condition that holds.

    Attributes:
        condition: `"Created"`, `"Running"`, `"Succeeded"`, `"Failed"`; empty before the first.
        message: what it says about that.
    """

    condition: str = ""
    message: str = ""


@dataclasses.dataclass(frozen=True)
class PodState:
    """What Kubernetes says of a pod.

    Attributes:
        name: of the pod.
        phase: `"Pending"`, `"Running"`, `"Succeeded"`, `"Failed"`.
        exit_code: of the container; None while it runs, or when it was lost with its node.
        reason: why it waits or has ended, such as `"ImagePullBackOff"` or `"OOMKilled"`.
        message: more about the reason.
    """

    name: str
    phase: str
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


class KubernetesApi:
    """The API server, as seen from a pod of the cluster or by kubectl's configuration."""

    def __init__(self, namespace: str) -> None:
        """Reads the configuration.

        Raises:
            ConfigurationError: the client is not installed, or there is no configuration.
        """
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise ConfigurationError(
                "launcher='tfjob' needs the Kubernetes client, which is not installed here: "
                f"pip install generic-trainer[kubernetes] ({error})."
            ) from error
        self._namespace = namespace
        connection = client.ApiClient(_configuration(client, config))
        self._jobs = client.CustomObjectsApi(connection)
        self._pods = client.CoreV1Api(connection)
        self._error = client.ApiException

    def create(self, manifest: dict[str, Any]) -> None:
        """Makes a TFJob.

        Raises:
            ConfigurationError: the API server refuses it or does not answer.
        """
        try:
            self._jobs.create_namespaced_custom_object(*self._kind, manifest, **_limited())
        except Exception as error:
            raise ConfigurationError(self._refusal(error)) from error

    def job(self, name: str) -> JobState | None:
        """Returns the state of a TFJob; None when there is none of that name."""
        try:
            answer = self._jobs.get_namespaced_custom_object(*self._kind, name, **_limited())
        except self._error as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        conditions = answer.get("status", {}).get("conditions") or []
        holding = [one for one in conditions if one.get("status") == "True"]
        if not holding:
            return JobState()
        return JobState(holding[-1]["type"], holding[-1].get("message", ""))

    def pods(self, name: str) -> dict[str, PodState]:
        """Returns name → state of the pods of a TFJob."""
        answer = self._pods.list_namespaced_pod(
            self._namespace, label_selector=f"{JOB_NAME_LABEL}={name}", **_limited()
        )
        return {pod.metadata.name: _state(pod) for pod in answer.items}

    def delete(self, name: str) -> None:
        """Deletes a TFJob, and with it its pods; it may be gone already."""
        try:
            self._jobs.delete_namespaced_custom_object(
                *self._kind, name, propagation_policy="Background", **_limited()
            )
        except self._error as error:
            if error.status != _NOT_FOUND:
                raise

    def log(self, pod: str) -> Iterator[str]:
        """Yields the lines of a pod's log, from the first one on, until its container ends."""
        response = self._pods.read_namespaced_pod_log(
            pod,
            self._namespace,
            container=CONTAINER,
            follow=True,
            _preload_content=False,
            _request_timeout=_CONNECT_TIMEOUT_S,
        )
        with contextlib.closing(response):
            rest = b""
            for part in response.stream(amt=None, decode_content=False):
                *lines, rest = (rest + part).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
            if rest:
                yield rest.decode(errors="replace")

    @property
    def _kind(self) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self._namespace, PLURAL

    def _refusal(self, error: Exception) -> str:
        start = f"Kubernetes did not make the TFJob in namespace {self._namespace!r}"
        status = getattr(error, "status", None)
        if status == _NOT_FOUND:
            return (
                f"{start}: it has no such namespace, or does not know TFJobs. Install Kubeflow's "
                "training operator (1.x: 2.0 has no TFJobs)."
            )
        if status in (401, 403):
            return (
                f"{start}: not allowed. The service account of this process needs create, get and "
                "delete on tfjobs.kubeflow.org, list on pods and get on pods/log. "
                f"{getattr(error, 'body', '')}"
            )
        return f"{start}: {getattr(error, 'body', None) or error}"


@contextlib.contextmanager
def shown_log(read: Callable[[], Iterator[str]], prefix: str = "") -> Iterator[None]:
    """Shows lines on standard output, from a thread, until the context closes; then the rest.

    Args:
        read: yields all lines from the first one on. It is asked again when it fails, as while a
            container is being made, and when it ends, as a connection may.
        prefix: comes before each line.
    """
    closes = threading.Event()
    thread = threading.Thread(target=_show, args=(read, prefix, closes), daemon=True)
    thread.start()
    try:
        yield
    finally:
        closes.set()
        thread.join(_LAST_LINES_S)


def _configuration(client: Any, config: Any) -> Any:
    configuration = client.Configuration()
    # The client's own three retries would treble each timeout.
    configuration.retries = 0
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            config.load_kube_config(
                os.environ.get("KUBECONFIG"), client_configuration=configuration
            )
        except config.ConfigException as error:
            raise ConfigurationError(
                "launcher='tfjob' finds no Kubernetes cluster: this process is not in a pod with a "
                f"service account, and kubectl's configuration cannot be read ({error})."
            ) from error
    return configuration


def _limited() -> dict[str, Any]:
    return {"_request_timeout": _TIMEOUT_S}


def _state(pod: Any) -> PodState:
    status = pod.status
    state = PodState(
        pod.metadata.name,
        status.phase or "Pending",
        None,
        status.reason or "",
        status.message or "",
    )
    for container in status.container_statuses or ():
        if container.name != CONTAINER:
            continue
        ended, waits = container.state.terminated, container.state.waiting
        if ended is not None:
            return dataclasses.replace(
                state, exit_code=ended.exit_code, reason=status.reason or ended.reason or ""
            )
        if waits is not None:
            return dataclasses.replace(state, reason=waits.reason, message=waits.message or "")
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return dataclasses.replace(
                state, reason=condition.reason or "", message=condition.message or ""
            )
    return state


def _show(read: Callable[[], Iterator[str]], prefix: str, closes: threading.Event) -> None:
    shown = 0
    last = False
    while not last:
        last = closes.wait(_LOG_RETRY_S if shown else 0.1)
        with contextlib.suppress(Exception):  # what is missing now will be there next time
            for number, line in enumerate(read()):
                if number >= shown:
                    sys.stdout.write(f"{prefix}{line}\n")
                    sys.stdout.flush()
                    shown += 1
