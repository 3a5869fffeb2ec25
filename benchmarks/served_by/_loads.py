"""Loads and calls models with the TensorFlow of whichever Python runs this.

    python _loads.py < directories

Reads directories from standard input, one a line, and writes for each one line of JSON: step → what
fails, empty for nothing. The steps are:

- `load`: `tf.saved_model.load`; `call`: it answers two rows;
- `server_load`: `LoadSavedModel`, TensorFlow's function that TF Serving calls;
- `server_call`: a graph session loads the model and answers two rows.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "broken_models"))

import _other_tools

_TIMEOUT_S = 60


def _load(model_dir: str) -> Any:
    import tensorflow as tf

    return tf.saved_model.load(model_dir)


def _server_load(model_dir: str) -> None:
    """Calls `LoadSavedModel`, of which Python has no wrapper, through the C API."""
    import tensorflow as tf

    folder = Path(tf.__file__).parent
    library = folder / "libtensorflow_cc.so.2"
    if not library.exists():  # before TensorFlow 2.12
        library = folder / "python" / "_pywrap_tensorflow_internal.so"
    api, pointer = ctypes.CDLL(str(library)), ctypes.c_void_p
    new = ("TF_NewStatus", "TF_NewSessionOptions", "TF_NewGraph")
    for name in (*new, "TF_LoadSessionFromSavedModel"):
        getattr(api, name).restype = pointer
    api.TF_Message.restype = ctypes.c_char_p
    status, options, graph = (pointer(getattr(api, name)()) for name in new)
    tags = (ctypes.c_char_p * 1)(b"serve")
    api.TF_LoadSessionFromSavedModel(
        options, None, model_dir.encode(), tags, 1, graph, None, status
    )
    if api.TF_GetCode(status):
        raise ValueError(api.TF_Message(status).decode(errors="replace"))


STEPS: dict[str, Callable[[str], Any]] = {
    "server_load": _server_load,
    "load": _load,
    "call": _other_tools.call,
    "server_call": lambda model_dir: _other_tools.in_session(model_dir, []),
}


def _answers(model_dir: str) -> dict[str, str]:
    """Returns step → what fails; a process of its own takes all steps."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        signal.alarm(_TIMEOUT_S)
        for step, take in STEPS.items():
            reason = ""
            try:
                take(model_dir)
            except BaseException as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            os.write(writer, f"{json.dumps([step, reason])}\n".encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        answers = dict(json.loads(line) for line in pipe)
    _, status = os.waitpid(pid, 0)
    return {step: answers.get(step, f"ended by signal {status}") for step in STEPS}


def main() -> None:
    """Answers line by line."""
    output = os.dup(1)
    os.dup2(2, 1)
    import tensorflow  # noqa: F401 - so that each fork has it

    for line in sys.stdin:
        os.write(output, f"{json.dumps(_answers(line.strip()))}\n".encode())


if __name__ == "__main__":
    main()
