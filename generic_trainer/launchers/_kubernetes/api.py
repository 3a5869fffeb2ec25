"""Client of Kubernetes: its configuration, and the logs of pods."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._options import needed_client

# Seconds to connect, and to answer: a log may contain nothing new for hours.
_LOG_TIMEOUT_S = (10, None)


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


def connect(launcher: str) -> tuple[Any, Any]:
    """Returns the client's APIs of custom objects and of pods, connected to the API server.

    It is found by the service account of this pod, or by kubectl's configuration.

    Args:
        launcher: its name, for messages.

    Raises:
        ConfigurationError: the client is not installed, or not configured.
    """
    with needed_client(launcher, "kubernetes", "kubernetes"):
        from kubernetes import client, config
    configuration = client.Configuration()
    # The client's own three retries would treble each timeout.
    configuration.retries = 0
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        path = os.environ.get("KUBECONFIG")
        try:
            config.load_kube_config(path, client_configuration=configuration)
        except config.ConfigException as error:
            raise ConfigurationError(
                f"launcher={launcher!r} finds no Kubernetes cluster: this process is not in a pod "
                f"with a service account, and kubectl's configuration cannot be read ({error})."
            ) from error
    connection = client.ApiClient(configuration)
    return client.CustomObjectsApi(connection), client.CoreV1Api(connection)


def log_lines(core: Any, namespace: str, pod: str, container: str) -> Iterator[str]:
    """Yields the lines of a pod's log, from the first one on, until its container ends."""
    response = core.read_namespaced_pod_log(
        pod,
        namespace,
        container=container,
        follow=True,
        _preload_content=False,
        _request_timeout=_LOG_TIMEOUT_S,
    )
    with contextlib.closing(response):
        for line in response:  # as soon as it arrives
            yield line.decode(errors="replace").removesuffix("\n")
