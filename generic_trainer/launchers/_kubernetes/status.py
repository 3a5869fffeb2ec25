"""Progress of a TrainJob in its status, where `kubectl get trainjob` and Kubeflow's SDK show it.

Kubeflow Trainer 2.2 and later, with the feature gate `TrainJobStatus`, gives each pod an address, a
token and a certificate, and takes posts of its progress there (KEP-2779). This module sends them
from the process that trains as chief. Source of names and schema:
https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress
"""

import contextlib
import json
import logging
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generic_trainer._core.progress import Progress, ProgressReader

_PREFIX = "KUBEFLOW_TRAINER_SERVER_"  # of its variables
_EVERY_S = 10.0  # the controller limits requests; Kubeflow's SDK sends one in 5 s at most
_TIMEOUT_S = 5.0
_JSON = {"Content-Type": "application/json"}
_NOT_SHOWN = (
    "The status of the TrainJob does not show this training: %s does not take its progress (%s). "
    "The training itself is not affected."
)

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def trainjob_status(run_dir: str) -> Iterator[None]:
    """Sends the progress of the training within the context to the TrainJob that runs this pod.

    It does nothing outside such pods. A thread sends, so the training waits for nothing but the
    last post, and for that at most five seconds. The first error is logged as a warning.

    Args:
        run_dir: the directory of the ModelRun artifact, from which the progress is read; empty to
            send nothing, as in all workers except the chief.
    """
    url, token, ca = (os.environ.get(_PREFIX + name, "") for name in ("URL", "TOKEN", "CA_CERT"))
    if not url or not run_dir:
        yield
        return
    reader = ProgressReader(run_dir)
    is_over = threading.Event()
    is_complete = threading.Event()

    def send() -> None:
        level = logging.WARNING
        is_last = False
        while not is_last:
            is_last = is_over.wait(_EVERY_S)
            try:
                status = status_of(reader.look(), is_complete=is_last and is_complete.is_set())
                # Read each time: Kubernetes renews the token every hour.
                headers = {"Authorization": f"Bearer {Path(token).read_text().strip()}"}
                body = json.dumps({"trainerStatus": status}).encode()
                request = urllib.request.Request(url, body, _JSON | headers)
                context = ssl.create_default_context(cafile=ca or None)
                urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context).close()
            except Exception as error:
                _logger.log(level, _NOT_SHOWN, url, error)
                level = logging.DEBUG

    thread = threading.Thread(target=send, name="trainjob-status", daemon=True)
    thread.start()
    try:
        yield
        is_complete.set()
    finally:
        is_over.set()
        thread.join(_TIMEOUT_S)


def status_of(progress: Progress, *, is_complete: bool) -> dict[str, Any]:
    """Returns `trainerStatus` by the schema of KEP-2779; what is unknown is left out.

    Args:
        progress: of the run.
        is_complete: whether the training has ended, possibly before its last step.
    """
    names = ("step", "steps", "epoch", "epochs")
    counts = ((name, getattr(progress, name)) for name in names if getattr(progress, name))
    metrics = ((name, points[-1][1]) for name, points in progress.curves.items() if name and points)
    status: dict[str, Any] = {
        "metrics": [{"name": name, "value": str(value)} for name, value in (*counts, *metrics)],
        "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if is_complete:
        return status | {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
    if progress.steps:
        status["progressPercentage"] = min(100, 100 * progress.step // progress.steps)
    if progress.left_s is not None:
        status["estimatedRemainingSeconds"] = int(progress.left_s)
    return status
