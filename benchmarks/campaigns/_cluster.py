"""Kubernetes for a campaign: the stand-in of the tests, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.campaigns._processes import ForkedPopen, finish, fork
from tests.launchers.kubernetes_stand_in import kubernetes_stand_in

__all__ = ["kubernetes"]


@contextlib.contextmanager
def kubernetes(folder: Path) -> Iterator[int]:
    """Yields the process of the stand-in, with `KUBECONFIG` leading to it.

    Args:
        folder: where its logs lie. Its children are the pods.
    """
    home = folder / "kubernetes"
    home.mkdir()

    def serve() -> None:
        subprocess.Popen = ForkedPopen  # type: ignore[misc] # what starts the pods
        ForkedPopen.left = 10**6
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        with kubernetes_stand_in(home):
            (home / "is up").touch()
            while True:
                signal.pause()

    process = fork(serve, folder / "kubernetes-output")
    try:
        while not (home / "is up").exists():
            time.sleep(0.01)
        os.environ["KUBECONFIG"] = str(home / "kubeconfig")
        yield process
    finally:
        os.environ.pop("KUBECONFIG", None)
        os.kill(process, signal.SIGTERM)
        finish(process)
