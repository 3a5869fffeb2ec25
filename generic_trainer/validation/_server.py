"""The process that checks models: it imports TensorFlow once and forks for every model.

Importing TensorFlow takes seconds and starts nothing, so a fork of a process that has only done
that is as good as a fresh one and ready in milliseconds. It is thrown away after one model, or
earlier when a check kills it. Lines on standard input name request files; lines on standard output
are JSON events. Nothing of the caller's `sys.path` but installed packages is importable here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

__all__ = ["ABORT", "Events", "main"]

ABORT = "abort"


class Events:
    """Writes one JSON object per line to the process that asked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **event: Any) -> None:
        """Sends one event; a newline first ends what a killed process may have left unfinished."""
        line = ("\n" + json.dumps(event) + "\n").encode()
        while line:
            line = line[os.write(self._descriptor, line) :]


def main(preload: Sequence[str]) -> None:
    """Serves requests until standard input closes.

    Args:
        preload: modules to import besides TensorFlow; what cannot be imported is left to the check
            that needs it.
    """
    requests, events = _claim_standard_streams()
    import tensorflow as tf

    for name in preload:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from generic_trainer.validation import _isolation

    hide = _isolation.can_hide()
    events.send(event="ready", tensorflow_version=tf.__version__)
    while request := _read_line(requests):
        if request != ABORT and not _serve(request, requests, events, hide):
            return


def _claim_standard_streams() -> tuple[int, Events]:
    """Takes both pipes for the protocol, so that prints of TensorFlow cannot disturb it."""
    requests, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return requests, Events(sink)


def _read_line(descriptor: int) -> str:
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            return ""
        line += byte
    return line.decode().strip()


def _serve(request: str, requests: int, events: Events, hide: bool) -> bool:
    """Checks one model in a fork; returns False when the caller went away meanwhile."""
    alive, alive_in_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_and_exit(request, events, hide)
    os.close(alive_in_child)
    readable = wait([requests, alive])
    interrupted = requests in readable
    if interrupted:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    _, status = os.waitpid(pid, 0)
    os.close(alive)
    gone = interrupted and not _read_line(requests)
    events.send(event="end", exit_code=os.waitstatus_to_exitcode(status))
    return not gone


def _run_and_exit(request: str, events: Events, hide: bool) -> None:
    code = 1
    try:
        from generic_trainer.validation import _runner

        _runner.run(request, events, hide)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
