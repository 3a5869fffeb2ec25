"""Waiting for other processes, and servers, addresses and `TF_CONFIG` on this machine.

For a test with a second process that it starts itself. `wait_until` is the only way to wait: for
what the other process did, not for a time. `tests.orchestrators.processes` runs a pipeline that is
held, or killed, at a known point of the user's code.
"""

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def wait_until(is_so: Callable[[], Any], timeout_s: float = 300.0) -> bool:
    """Waits for something, and returns whether it has come about in time."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def locked_elsewhere(path: Path) -> Iterator[None]:
    """Has another process hold a lock."""
    Path(path).write_bytes(b"")  # without the signature of this process
    command = ["flock", str(path), "sh", "-c", "echo held; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        yield
        other.communicate()


def free_ports(count: int) -> list[int]:
    """Returns ports that no other program uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serves on a free port, and yields the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def tf_config(task: str = "worker", index: int = 0, **jobs: int) -> str:
    """Returns the `TF_CONFIG` of a task of a cluster with so many tasks of each job."""
    hosts = {
        job: [f"{job}-{number}:2222" for number in range(count)] for job, count in jobs.items()
    }
    return json.dumps({"cluster": hosts, "task": {"type": task, "index": index}})
