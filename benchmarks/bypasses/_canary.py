"""A directory and a port that no check may touch, and a watch over both.

The watch sees reads as well as writes: inotify reports each file of the directory that a process
opens, creates or deletes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import sqlite3
import struct
from pathlib import Path
from typing import Any

_OPENED, _MOVED, _CREATED, _DELETED = 0x20, 0xC0, 0x100, 0x200
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it
_libc = ctypes.CDLL(None, use_errno=True)


class Canary:
    """A watched directory and a port of the loopback that listens.

    Args:
        folder: the directory, which is created.

    Attributes:
        target: a file inside for models to read or write. Beside it are a checkpoint, `.part`,
            a database, `.db`, and the files of a saved dataset of strings.
        port: the port.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.target = folder / "canary"
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.port = int(self._server.getsockname()[1])
        self._watch = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        mask = _OPENED | _CREATED | _DELETED | _MOVED
        if _libc.inotify_add_watch(self._watch, bytes(folder), mask) < 0:
            raise OSError(ctypes.get_errno(), "inotify cannot watch the canary", str(folder))

    def __enter__(self) -> Canary:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._watch)
        self._server.close()

    def reset(self, has_target: bool = True) -> None:
        """Writes the files anew, which a model may have changed, the target only if asked to."""
        import tensorflow as tf

        for path in self.target.parent.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if has_target:
            self.target.write_text("canary 1\n")
        tf.data.Dataset.from_tensors("word").save(str(self.target.parent))
        named: dict[str, Any] = {"tensor_names": ["x"], "shape_and_slices": [""]}
        tf.raw_ops.SaveV2(prefix=f"{self.target}.part", tensors=[tf.zeros([2])], **named)
        with contextlib.closing(sqlite3.connect(f"{self.target}.db")) as database, database:
            database.execute("CREATE TABLE words (word TEXT)")
        self.touched()

    def touched(self) -> list[str]:
        """Returns the files and connections since the last call, each once."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found += _names(os.read(self._watch, 1 << 16))
        with contextlib.suppress(BlockingIOError):
            while True:
                self._server.accept()[0].close()
                found.append("the port")
        return sorted(set(found))


def _names(events: bytes) -> list[str]:
    """Returns the files of some events of inotify; the directory itself is `.`."""
    found = []
    while events:
        length = _EVENT.unpack_from(events)[3]
        name, events = events[_EVENT.size :][:length], events[_EVENT.size + length :]
        found.append(name.rstrip(b"\0").decode() or ".")
    return found
