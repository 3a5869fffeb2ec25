"""Files and folders behind a `scheme://`, through `tf.io.gfile`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from generic_trainer._core.files import gfile
from generic_trainer.user_code._paths import join, split

__all__ = ["RemoteNode", "write_remote"]


@dataclasses.dataclass(frozen=True)
class RemoteNode:
    """A path of any file system that TensorFlow knows."""

    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return split(self.path)[1]

    def is_file(self) -> bool:
        """Whether it is there and is a file."""
        with _as_os_errors():
            return bool(gfile().exists(self.path)) and not self.is_dir()

    def is_dir(self) -> bool:
        """Whether it is there and is a folder."""
        with _as_os_errors():
            return bool(gfile().isdir(self.path))

    def iterdir(self) -> Iterator[RemoteNode]:
        """Yields what lies in the folder."""
        with _as_os_errors():
            names = gfile().listdir(self.path)
        # Object stores list folders with a slash at the end.
        yield from (self.joinpath(name.rstrip("/")) for name in names)

    def joinpath(self, name: str, /) -> RemoteNode:
        """Returns what is called `name` in the folder."""
        return RemoteNode(join(self.path, name))

    def read_bytes(self) -> bytes:
        """Returns the contents of the file."""
        with _as_os_errors(), gfile().GFile(self.path, "rb") as file:
            content: bytes = file.read()
            return content


def write_remote(path: str, temporary: str, content: bytes) -> None:
    """Writes `temporary` and renames it to `path`."""
    with _as_os_errors():
        gfile().makedirs(split(path)[0])
        with gfile().GFile(temporary, "wb") as file:
            file.write(content)
        gfile().rename(temporary, path, overwrite=True)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
