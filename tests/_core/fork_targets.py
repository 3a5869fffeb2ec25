"""Functions for children of a fork server to run."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def say(arguments: Mapping[str, Any]) -> int:
    """Writes the length of a text, and its process group."""
    print(len(arguments["text"]), os.getpgid(0) == os.getpid(), flush=True)
    return 0


def end(arguments: Mapping[str, Any]) -> int:
    """Ends with an exit code, or by a signal."""
    if "signal" in arguments:
        os.kill(os.getpid(), arguments["signal"])
    code: int = arguments["code"]
    return code


def stay(arguments: Mapping[str, Any]) -> int:
    """Waits for ever."""
    while True:
        time.sleep(1.0)


def fail(arguments: Mapping[str, Any]) -> int:
    """Fails."""
    raise ValueError(arguments["message"])


def write_to(arguments: Mapping[str, Any], *descriptors: int) -> int:
    """Writes its number into each descriptor."""
    for number, descriptor in enumerate(descriptors):
        os.write(descriptor, f"{arguments['start']}{number}".encode())
    return 0


def start_child_and_wait(arguments: Mapping[str, Any]) -> int:
    """Notes its own process and that of a child, and waits for ever."""
    child = subprocess.Popen(["sleep", "600"])
    note(arguments["path"], f"{os.getpid()} {child.pid}")
    return stay({})


def leave_daemons(arguments: Mapping[str, Any]) -> int:
    """Notes a process in a session of its own, and one that this has started, and ends or waits."""
    source = "setsid sleep 600 & echo $$ $! > $0; wait"
    subprocess.Popen(["sh", "-c", source, arguments["path"]], start_new_session=True)
    while not os.path.exists(arguments["path"]) or arguments["waits"]:
        time.sleep(0.02)
    return 0


def note(path: str, text: str) -> None:
    """Makes a file, all at once."""
    part = Path(f"{path}.part")
    part.write_text(text)
    part.rename(path)
