"""Client of Kubernetes: the few calls that jobs of custom resources need."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._remote.service import TaskStatus

# Seconds to connect, and to answer. A log that is followed may say nothing for hours.
_TIMEOUT_S = (10, 60)
_CONNECT_TIMEOUT_S = (10, None)
_NOT_FOUND = 404


@dataclasses.dataclass(frozen=True)
class Kind:
    """A custom resource.

    Attributes:
        name: such as `"TFJob"`.
        group: of its API, such as `"kubeflow.org"`.
        version: of its API.
        plural: its name in addresses.
    """

    name: str
    group: str
    version: str
    plural: str

    @property
    def header(self) -> dict[str, str]:
        """The fields that every object of the kind has."""
        return {"apiVersion": f"{self.group}/{self.version}", "kind": self.name}


class KubernetesApi:
    """The API server, as seen from a pod of the cluster or by kubectl's configuration."""

    def __init__(self, namespace: str, launcher: str, permissions: str, operator: str) -> None:
        """Reads the configuration.

        Args:
            namespace: where everything is made.
            launcher: whose API this is, for messages.
            permissions: what the service account must be allowed, for messages.
            operator: what the cluster must have, for messages.

        Raises:
            ConfigurationError: the client is not installed, or there is no configuration.
        """
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise ConfigurationError(
                f"launcher={launcher!r} needs the Kubernetes client, which is not installed here: "
                f"pip install kubernetes, or GenericTrainer's extra `kubernetes` ({error})."
            ) from error
        self._namespace = namespace
        self._permissions, self._operator = permissions, operator
        connection = client.ApiClient(_configuration(client, config, launcher))
        self._objects = client.CustomObjectsApi(connection)
        self._pods = client.CoreV1Api(connection)
        self._error = client.ApiException

    def create(self, kind: Kind, manifest: dict[str, Any]) -> None:
        """Makes an object.

        Raises:
            ConfigurationError: the API server refuses it or does not answer.
        """
        try:
            self._objects.create_namespaced_custom_object(
                *self._place(kind), manifest, **_limited()
            )
        except Exception as error:
            raise ConfigurationError(self._refusal(kind, error)) from error

    def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """Returns an object; None when there is none of that name."""
        try:
            found: dict[str, Any] = self._objects.get_namespaced_custom_object(
                *self._place(kind), name, **_limited()
            )
        except self._error as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return found

    def delete(self, kind: Kind, name: str) -> None:
        """Deletes an object, and with it what was made for it; it may be gone already."""
        try:
            self._objects.delete_namespaced_custom_object(
                *self._place(kind), name, propagation_policy="Background", **_limited()
            )
        except self._error as error:
            if error.status != _NOT_FOUND:
                raise

    def pods(self, selector: str) -> list[Any]:
        """Returns the pods with some labels, as `kubernetes.client.V1Pod`."""
        answer = self._pods.list_namespaced_pod(
            self._namespace, label_selector=selector, **_limited()
        )
        return list(answer.items)

    def log(self, pod: str, container: str) -> Iterator[str]:
        """Yields the lines of a pod's log, from the first one on, until its container ends."""
        response = self._pods.read_namespaced_pod_log(
            pod,
            self._namespace,
            container=container,
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

    def _place(self, kind: Kind) -> tuple[str, str, str, str]:
        return kind.group, kind.version, self._namespace, kind.plural

    def _refusal(self, kind: Kind, error: Exception) -> str:
        start = f"Kubernetes did not make the {kind.name} in namespace {self._namespace!r}"
        status = getattr(error, "status", None)
        if status == _NOT_FOUND:
            return (
                f"{start}: it has no such namespace, or does not know the kind {kind.name}. "
                f"{self._operator}"
            )
        if status in (401, 403):
            return (
                f"{start}: not allowed. The service account of this process needs "
                f"{self._permissions}. {getattr(error, 'body', '')}"
            )
        return f"{start}: {getattr(error, 'body', None) or error}"


def status_of_pod(pod: Any, container: str) -> TaskStatus:
    """Returns what Kubernetes says of a pod: `exit_code` is None when it was lost with its node."""
    status = pod.status
    phases: dict[str | None, Any] = {
        "Running": "running",
        "Succeeded": "succeeded",
        "Failed": "failed",
    }
    state = TaskStatus(
        pod.metadata.name,
        phases.get(status.phase, "waiting"),
        None,
        status.reason or "",
        status.message or "",
    )
    for one in status.container_statuses or ():
        if one.name != container:
            continue
        ended, waits = one.state.terminated, one.state.waiting
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


def _configuration(client: Any, config: Any, launcher: str) -> Any:
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
                f"launcher={launcher!r} finds no Kubernetes cluster: this process is not in a pod "
                "with a service account, and kubectl's configuration cannot be read "
                f"({error})."
            ) from error
    return configuration


def _limited() -> dict[str, Any]:
    return {"_request_timeout": _TIMEOUT_S}
