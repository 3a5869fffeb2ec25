"""Operations on files that work on every file system that TensorFlow knows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from generic_trainer.errors import GenericTrainerError

# What makes a directory a model; on a file system without a directory rename it goes last.
_SAVED_MODEL_FILE = "saved_model.pb"
_CHUNK_BYTES = 1 << 20
_SMALL_BYTES = 4 << 20
_END_BYTES = 64 << 10


def is_remote(path: str) -> bool:
    """Returns whether a path has a scheme, such as `gs://bucket/file`."""
    return "://" in path


def absolute(path: str) -> str:
    """Returns a local path as an absolute one; a remote one as it is."""
    return path if is_remote(path) else os.path.abspath(path)


def publish_tree(source: str, target: str) -> None:
    """Moves a directory so that its readers see either nothing or all of it.

    1. On a local file system this is one `rename(2)`; both must be on the same file system.
    2. An object store has no rename of directories: the files go one by one, `saved_model.pb` last.
    3. What an earlier attempt left at `target` is replaced.
    """
    delete_tree(target)
    if not is_remote(target):
        os.rename(source, target)
        return
    _move_files(source, target, last=_SAVED_MODEL_FILE)
    delete_tree(source)


def delete_tree(directory: str) -> None:
    """Deletes a directory, if it is there: in an object store it goes with its last file."""
    if gfile().exists(directory):
        gfile().rmtree(directory)


def copy_tree(source: str, target: str, *, last: str = _SAVED_MODEL_FILE) -> None:
    """Copies a directory between any two file systems.

    Args:
        source: the directory.
        target: made where it is missing; files of the same names are replaced.
        last: name of the file that makes the copy complete for its readers.
    """
    files = gfile()
    files.makedirs(target)
    for name in files_below(source, last=last):
        destination = os.path.join(target, name)
        files.makedirs(os.path.dirname(destination))
        files.copy(os.path.join(source, name), destination, overwrite=True)


def files_below(directory: str, *, last: str | None = None) -> list[str]:
    """Returns the files of a directory tree, relative to it and sorted.

    Args:
        directory: local or remote.
        last: a file name whose files come after all others.
    """
    root = directory.rstrip("/")
    paths = [
        os.path.join(folder, name)[len(root) :].lstrip("/")
        for folder, _, names in gfile().walk(root)
        for name in names
    ]
    return sorted(paths, key=lambda path: (os.path.basename(path) == last, path))


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file that is there whole or, after a crash, not at all.

    An object store shows a file when it is closed; elsewhere it is written beside its place and
    renamed. Of several processes that write the same path at once, the last one wins.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        with gfile().GFile(path, "wb") as file:
            file.write(data)
        return
    part = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.part"
    try:
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def read_whole(path: str) -> bytes:
    """Returns the content of a file.

    Raises:
        OSError: it cannot be read; for a remote file it is an error of TensorFlow.
    """
    with gfile().GFile(path, "rb") if is_remote(path) else open(path, "rb") as file:
        content: bytes = file.read()
        return content


def read_text(path: str) -> str:
    """Returns the text of a file; of a local one without importing TensorFlow.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text.
    """
    try:
        return read_whole(path).decode()
    except (OSError, UnicodeDecodeError):
        raise
    except Exception as error:  # what it raises depends on the file system
        raise OSError(str(error)) from error


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with _opened(os.fspath(path)) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fingerprint_of_file(path: str) -> list[Any]:
    """Returns values that are others when the content is: of files up to 4 MiB a hash of all of it.

    Of larger ones: length, a hash of both ends, and the time of the last change.
    """
    stat = gfile().stat(path)
    with _opened(path) as file:
        if stat.length <= _SMALL_BYTES:
            return [stat.length, hashlib.sha256(file.read()).hexdigest()]
        start = file.read(_END_BYTES)
        file.seek(stat.length - _END_BYTES)
        ends = hashlib.sha256(start + file.read(_END_BYTES)).hexdigest()
    return [stat.length, ends, stat.mtime_nsec]


def _opened(path: str) -> Any:
    """Returns a file to read from; TensorFlow's, which is many times slower, where it must be."""
    if not is_remote(path):
        with contextlib.suppress(OSError):  # TensorFlow says what it is, as for remote files
            return open(path, "rb")
    return gfile().GFile(path, "rb")


def move_aside(directory: str, target: str) -> None:
    """Moves the content of a directory to `target` and leaves the directory empty."""
    files = gfile()
    files.makedirs(target)
    if is_remote(directory):
        _move_files(directory, target)
        return
    for name in files.listdir(directory):
        files.rename(os.path.join(directory, name), os.path.join(target, name), overwrite=True)


def follow_links(directory: str) -> None:
    """Replaces links that lead out of a directory by copies of what they lead to.

    Such as those of Hugging Face's snapshots, whose files are links to `../../blobs`: a directory
    that is moved, or copied by somebody who copies links, has none of its files otherwise. Links
    to nothing stay, and so do relative ones within the directory. Remote directories have none.
    """
    if is_remote(directory):
        return
    for folder, folders, files in os.walk(directory):
        for path in (os.path.join(folder, name) for name in (*folders, *files)):
            if os.path.islink(path) and _leads_out(path, os.path.realpath(directory)):
                part = f"{path}.part"
                copy = shutil.copytree if os.path.isdir(path) else shutil.copyfile
                copy(os.path.realpath(path), part)
                os.unlink(path)
                os.rename(part, path)


def _leads_out(link: str, root: str) -> bool:
    """Whether what a link leads to does not move along with a directory."""
    real = os.path.realpath(link)
    if not os.path.exists(real) or f"{root}{os.sep}".startswith(f"{real}{os.sep}"):
        return False  # to nothing; or to all of the directory, which has no end
    return os.path.isabs(os.readlink(link)) or not real.startswith(f"{root}{os.sep}")


def move_into(path: str, directory: str) -> None:
    """Moves a file or a tree into a directory of the same file system, where its name is new."""
    target = os.path.join(directory, os.path.basename(path))
    if is_remote(path) and gfile().isdir(path):
        _move_files(path, target)
    else:
        gfile().rename(path, target, overwrite=True)


def _move_files(source: str, target: str, *, last: str | None = None) -> None:
    """Moves a tree one file after another, which every file system can do."""
    files = gfile()
    for name in files_below(source, last=last):
        destination = os.path.join(target, name)
        files.makedirs(os.path.dirname(destination))
        files.rename(os.path.join(source, name), destination, overwrite=True)


@contextlib.contextmanager
def file_errors_as(error_class: type[GenericTrainerError], subject: str) -> Iterator[None]:
    """Raises what a file system does not do as an error of this package.

    Args:
        error_class: the class to raise instead of `OSError` and the errors of TensorFlow.
        subject: what failed, the start of the message.

    Raises:
        GenericTrainerError: of that class; the file system's error is its cause.
    """
    try:
        yield
    except GenericTrainerError:
        raise
    except Exception as error:
        import tensorflow as tf

        if not isinstance(error, (OSError, tf.errors.OpError)):
            raise
        raise error_class(
            f"{subject}: {type(error).__name__}: {error}\nMake room on a disk that is full, bring "
            "back a directory that is gone or read-only, and run again: training goes on from the "
            "checkpoints, if run_fn writes any."
        ) from error


def file_system_modules() -> tuple[str, ...]:
    """Returns the modules with file systems that this process has and children will need."""
    return tuple(name for name in ("tensorflow_io",) if name in sys.modules)


def gfile() -> Any:
    """Returns `tf.io.gfile`; TensorFlow is imported only now, because that takes seconds."""
    import tensorflow as tf

    return tf.io.gfile
