"""The caller's end of the checking process: starts it, asks it, and outlives whatever it does."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import generic_trainer
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation._server import ABORT

__all__ = ["CheckingProcess"]

# Loads this package from its own folder without putting the folder's parent, which may hold the
# user's modules, on the path.
_BOOT = """
import importlib.util, json, sys
folder = sys.argv[1]
sys.path.extend(json.loads(sys.argv[2]))
spec = importlib.util.spec_from_file_location(
    "generic_trainer", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["generic_trainer"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from generic_trainer.validation import _server
_server.main(json.loads(sys.argv[3]))
"""
_START_TIMEOUT_S = 300.0
_DROPPED_VARIABLES = ("TF_CONFIG", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")


class CheckingProcess:
    """A process that has TensorFlow and none of the user's code.

    Starting returns at once; the first request waits until the process is ready.
    """

    def __init__(self, scratch: Path, preload: Sequence[str] = ()) -> None:
        self._log = open(scratch / "checks.log", "w+b")  # noqa: SIM115 - closed in close()
        self._log_start = 0
        folder = str(Path(generic_trainer.__file__).parent)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-c", _BOOT),
                *(folder, json.dumps(_installed_packages()), json.dumps(list(preload))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=scratch,
            env=_environment(),
            start_new_session=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ready: dict[str, Any] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_until_ready(self) -> dict[str, Any]:
        """Returns the process's `ready` event.

        Raises:
            ConfigurationError: TensorFlow cannot be imported there.
        """
        if self._ready is None:
            self._ready = self.next_event(_START_TIMEOUT_S)
        if self._ready is None:
            raise ConfigurationError(
                "the process that checks models did not start; it needs a TensorFlow that "
                f"{sys.executable} can import. Its last words:\n{self.last_words()}"
            )
        return self._ready

    def send(self, line: str) -> None:
        """Sends a request file's name, or `abort`."""
        assert self._process.stdin is not None
        if line != ABORT:
            self._log_start = self._log.seek(0, os.SEEK_END)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """Returns the next event, or None when there is none in time or ever again."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def last_words(self, limit: int = 2000) -> str:
        """Returns the end of what was written to standard error since the last request."""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log_start, end - limit))
        return self._log.read().decode(errors="replace").strip()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for stream in (self._process.stdin, self._log):
            with contextlib.suppress(OSError):
                _close(stream)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                with contextlib.suppress(ValueError):
                    self._events.put(json.loads(line))
        self._events.put(None)


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        stream.close()


def _installed_packages() -> list[str]:
    """The folders of installed packages: those on our path, and the one that holds TensorFlow."""
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("tensorflow")
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))


def _environment() -> dict[str, str]:
    """The caller's environment without its cluster and its GPUs, which training may occupy."""
    kept = {key: value for key, value in os.environ.items() if key not in _DROPPED_VARIABLES}
    return {**kept, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "1"}
