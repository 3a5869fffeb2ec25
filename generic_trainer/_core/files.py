"""Operations on files that work on every file system that TensorFlow knows."""

import contextlib
import errno
import functools
import glob
import hashlib
import io
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from generic_trainer.errors import GenericTrainerError

_logger = logging.getLogger(__name__)

# The file that makes a directory a model; without renames of directories it is moved last.
_SAVED_MODEL_FILE = "saved_model.pb"
# A run that fails is moved to a directory beside its own, whose name ends so.
FAILED_SUFFIX = ".failed"
_CHUNK_BYTES = 1 << 20
_SMALL_BYTES = 4 << 20
_END_BYTES = 64 << 10
_OBJECT_STORES = ("gs://", "s3://", "az://")
# Errors of a disk or a quota that is full, or of more than `ulimit -f` allows.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Errors of a directory in which only this file may be written, or that a file is mounted in.
_IN_PLACE_ONLY = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS)
# File systems with lasting inodes, whose change times no program can set.
_KEEP_CHANGE_TIMES = re.compile(
    "apfs|bcachefs|btrfs|ceph|ext[234]|f2fs|gpfs|lustre|nfs4?|overlay|tmpfs|xfs|zfs"
)


def is_remote(path: str) -> bool:
    """Returns whether a path has a scheme, such as `gs://bucket/file`."""
    return "://" in path


def absolute(path: str) -> str:
    """Returns a local path as an absolute one; a remote one as it is."""
    return path if is_remote(path) else os.path.abspath(path)


def absolute_pattern(pattern: str) -> str:
    """Returns a local pattern of files as an absolute one; a remote one as it is."""
    if not pattern or is_remote(pattern) or os.path.isabs(pattern):
        return pattern
    if os.path.exists(pattern):  # its name may look like a pattern: "base[1]"
        return glob.escape(os.path.abspath(pattern))
    return os.path.join(glob.escape(os.getcwd()), os.path.normpath(pattern))


def publish_tree(source: str, target: str) -> None:
    """Moves a directory or a file so that readers see either nothing or all of it.

    1. On local file systems this is one `rename(2)`, of a copy if they are two.
    2. An object store has no rename of directories: the files go one by one, `saved_model.pb` last.
    3. Leftovers of an earlier attempt at `target` are replaced.
    """
    delete_tree(target)
    if not is_remote(source) and not is_remote(target):
        _rename(source, target)
        return
    _each_file(_move_file, source, target, _SAVED_MODEL_FILE)
    delete_tree(source)


def delete_tree(directory: str) -> None:
    """Deletes a directory or a file if it exists; of a link only the link itself.

    In an object store a directory disappears with its last file.
    """
    if is_remote(directory) and gfile().exists(directory):
        delete = gfile().rmtree if gfile().isdir(directory) else gfile().remove
        delete(directory)
    elif os.path.islink(directory) or os.path.isfile(directory):
        os.unlink(directory)
    elif os.path.exists(directory):
        shutil.rmtree(directory)  # TensorFlow's deletes the content of directories behind links


def copy_tree(source: str, target: str, *, last: str = _SAVED_MODEL_FILE) -> None:
    """Copies a directory or a file between any two file systems.

    Args:
        source: the directory, or a file.
        target: created if missing; files of the same names are replaced.
        last: name of the file that makes the copy complete for readers.
    """
    gfile().makedirs(target if gfile().isdir(source) else os.path.dirname(target))
    _each_file(gfile().copy, source, target, last)


def files_below(directory: str, *, last: str | None = None) -> list[str]:
    """Returns the files of a directory tree, relative to it and sorted.

    Args:
        directory: local or remote.
        last: a file name; files with this name are listed last.
    """
    root = directory.rstrip("/")
    paths = [
        os.path.join(folder, name)[len(root) :].lstrip("/")
        for folder, _, names in gfile().walk(root)
        for name in names
    ]
    return sorted(paths, key=lambda path: (os.path.basename(path) == last, path))


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file so that it is complete or, after a crash, missing.

    An object store shows a file when it is closed; on local disks a temporary file is renamed. If
    several processes write the same path at once, the last one wins.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        with gfile().GFile(path, "wb") as file:
            file.write(data)
        return
    part = _part_of(path)
    try:
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _part_of(path: str) -> str:
    """Returns the path beside another one, for a file or directory that is not complete yet."""
    return f"{path}.{os.getpid()}-{os.urandom(4).hex()}.part"


def replace_content(path: str, content: bytes) -> None:
    """Replaces the content of a local file: after a crash it has the old one or the new one.

    The file keeps its mode and its owner, and a link to it stays one. If it has other names, or
    nothing else may be written beside it, it is written in place.

    Raises:
        OSError: the disk is full, for example; the file is unchanged unless it has other names.
    """
    path = os.path.realpath(path)
    status = os.stat(path)
    part = os.path.join(os.path.dirname(path), f".{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        if status.st_nlink == 1:  # the other names of the file would keep the old content
            shutil.copy2(path, part)
            os.chown(part, status.st_uid, status.st_gid)
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            return
    except OSError as error:
        if error.errno not in _IN_PLACE_ONLY:
            raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
    with open(path, "wb") as file:
        file.write(content)


def read_whole(path: str) -> bytes:
    """Returns the content of a file.

    Raises:
        OSError: it cannot be read; for a remote file it is an error of TensorFlow.
    """
    with gfile().GFile(path, "rb") if is_remote(path) else open(path, "rb") as file:
        content: bytes = file.read()
        return content


def read_text(path: str, decode: Callable[[bytes], str] = bytes.decode) -> str:
    """Returns the text of a file; of a local one without importing TensorFlow.

    Args:
        path: the file.
        decode: makes the text of the content; by default the content is UTF-8.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not text.
    """
    try:
        return decode(read_whole(path))
    except (OSError, UnicodeDecodeError):
        raise
    except Exception as error:  # what it raises depends on the file system
        raise OSError(str(error)) from error


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file in hex."""
    with _opened(os.fspath(path)) as stream:
        return _sha256(stream)


def fingerprint_of_file(path: str) -> list[Any]:
    """Returns values that change whenever the content of a file does.

    Up to 4 MiB the content itself is hashed. A larger file is not read whole if its file system
    records changes in a way that no program can undo; its fingerprint is then its length, a hash of
    both ends, the time of the last modification, and

    1. on a local disk or NFS, the inode and the change time (ctime): a program can set the time of
       the modification, `cp -p` and `tar` do, but not the change time;
    2. in an object store, the path: the store itself sets the time when an object is written.

    Any other large file is read whole, such as one of a FUSE mount, whose inodes are new with every
    mount, or of HDFS, where programs set times.
    """
    with _opened(path) as file:
        length, *state = _state(path, file)
        if length <= _SMALL_BYTES or not state:
            return [length, _sha256(file)]
        start = file.read(_END_BYTES)
        file.seek(length - _END_BYTES)
        ends = hashlib.sha256(start + file.read(_END_BYTES)).hexdigest()
    return [length, ends, *state]


def _state(path: str, file: Any) -> list[Any]:
    """Returns a file's length, and records of changes by its file system, if there are any."""
    if isinstance(file, io.IOBase):
        stat = os.fstat(file.fileno())
        if stat.st_size <= _SMALL_BYTES or not _keeps_change_times(os.path.dirname(path)):
            return [stat.st_size]
        return [stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns]
    remote = gfile().stat(path)
    is_stored_once = path.startswith(_OBJECT_STORES)
    return [remote.length, remote.mtime_nsec, path] if is_stored_once else [remote.length]


@functools.lru_cache(maxsize=1024)
def _keeps_change_times(directory: str) -> bool:
    import psutil

    kinds = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    directory = os.path.realpath(directory)
    while directory not in kinds and directory != os.path.dirname(directory):
        directory = os.path.dirname(directory)
    return bool(_KEEP_CHANGE_TIMES.fullmatch(kinds.get(directory, "")))


def _sha256(stream: Any) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _opened(path: str) -> Any:
    """Opens a file for reading; with TensorFlow, which is many times slower, only if necessary."""
    if not is_remote(path):
        with contextlib.suppress(OSError):  # TensorFlow then raises the error, as for remote files
            return open(path, "rb")
    return gfile().GFile(path, "rb")


def move_aside(directory: str, target: str) -> None:
    """Moves the content of a directory to `target` and leaves the directory empty.

    A directory that `target` has already gets the files in addition to its own.
    """
    gfile().makedirs(target)
    if is_remote(directory) or is_remote(target):
        _each_file(_move_file, directory, target)
        if not is_remote(directory):  # the folders of the files
            for name in os.listdir(directory):
                delete_tree(os.path.join(directory, name))
        return
    for name in gfile().listdir(directory):
        source = os.path.join(directory, name)
        destination = os.path.join(target, name)
        if os.path.isdir(destination) and not os.path.islink(source):
            move_aside(source, destination)
            os.rmdir(source)
        else:
            _rename(source, destination)


def _rename(source: str, target: str) -> None:
    """Renames a local directory or file; of one on another file system a copy beside `target`."""
    try:
        os.rename(source, target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    part = _part_of(target)
    try:
        if os.path.isdir(source) and not os.path.islink(source):
            shutil.copytree(source, part, symlinks=True, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, part, follow_symlinks=False)
        os.rename(part, target)
    except BaseException:
        delete_tree(part)
        raise
    try:
        delete_tree(source)
    except OSError as error:
        _logger.warning("%s has been copied to %s, but not deleted: %s", source, target, error)


def _move_file(source: str, target: str, *, overwrite: bool) -> None:
    """Moves a file, of which one path is remote; only within a file system it is renamed."""
    schemes = {path.partition("://")[0] if is_remote(path) else "" for path in (source, target)}
    if len(schemes) == 1:
        gfile().rename(source, target, overwrite=overwrite)
        return
    gfile().copy(source, target, overwrite=overwrite)
    gfile().remove(source)


def _each_file(transfer: Any, source: str, target: str, last: str | None = None) -> None:
    """Copies or moves a tree, or one file, file by file, which every file system supports."""
    is_file = gfile().exists(source) and not gfile().isdir(source)
    for name in [""] if is_file else files_below(source, last=last):
        destination = os.path.join(target, name).rstrip("/")
        gfile().makedirs(os.path.dirname(destination))
        transfer(os.path.join(source, name).rstrip("/"), destination, overwrite=True)


@contextlib.contextmanager
def file_errors_as(error_class: type[GenericTrainerError], subject: str) -> Iterator[None]:
    """Converts errors of a file system into an error of this package.

    Args:
        error_class: the class to raise instead of `OSError` and the errors of TensorFlow.
        subject: the failed operation, which starts the message.

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


def gfile() -> Any:
    """Returns `tf.io.gfile`; TensorFlow is imported only now, because that takes seconds."""
    import tensorflow as tf

    return tf.io.gfile
