"""Containers of the stand-ins: child processes of the test, with the environment of a kubelet."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["exit_code", "expanded", "run_container", "stop_container"]

_ROOT = Path(__file__).parent.parent.parent


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Returns a value or an argument as Kubernetes expands it: `$(NAME)` and `$$`."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda match: variables.get(match[1], match[0]) if match[1] else "$",
        text,
    )


def run_container(
    command: Sequence[str],
    env: Iterable[tuple[str, str]],
    given: Mapping[str, str],
    log: Path,
) -> subprocess.Popen[bytes]:
    """Starts a container.

    Args:
        command: begins with "python".
        env: names and values of its specification, in order.
        given: variables that come from outside of it.
        log: file for its output.
    """
    assert command[0] == "python"
    variables: dict[str, str] = {}
    for name, value in env:
        variables[name] = expanded(value, variables)
    arguments = [expanded(argument, variables) for argument in command[1:]]
    own = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env={**own, **variables, "PYTHONPATH": str(_ROOT), **given},
            cwd=_ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code, 128 + N after signal N; None while it runs."""
    code = process.poll()
    return code if code is None or code >= 0 else 128 - code


def stop_container(
    process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL
) -> None:
    """Sends a signal to all processes of a container, and waits until it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait()
