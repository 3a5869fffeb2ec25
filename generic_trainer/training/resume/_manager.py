"""A directory of checkpoints, each of which is there whole or not at all.

What makes one whole is its manifest, the list of its files with their sizes and checksums, and the
checksum of the list itself::

    {"step": 1000, "metadata": {...}, "files": {"objects.index": [1234, "SHA-256 in hex"], ...},
     "checksum": "SHA-256 in hex"}

Those of an earlier release have no checksum of the list.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from generic_trainer._core.files import (
    files_below,
    gfile,
    is_remote,
    read_whole,
    sha256_of_file,
    write_whole,
)
from generic_trainer._core.locks import DirectoryLock
from generic_trainer._core.progress import note
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError, TrainingError

_NAME = re.compile(r"step-(\d+)\.(\d+)$")
_UNFINISHED = ".unfinished-"
_OBJECTS = "objects"
_MANIFEST_FILE = "manifest.json"
_CHECKSUM = "checksum"
_FIELDS = {"files": dict, "metadata": dict, "step": int}

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint.

    Attributes:
        step: the step that it was saved at.
        path: the directory with what was written.
        metadata: what the writer added.
    """

    step: int
    path: str
    metadata: Mapping[str, Any]


class CheckpointManager:
    """Writes checkpoints into a directory and finds the newest good one again.

    ::

        with training.CheckpointManager(fn_args.checkpoint_dir) as manager:
            saved = manager.restore_objects({"model": model, "iterator": iterator})
            for step in range(saved.step if saved else 0, fn_args.train_steps):
                train_step(next(iterator))
                if (step + 1) % 1000 == 0:
                    manager.save_objects(step + 1, {"model": model, "iterator": iterator})

    1. A checkpoint is written beside its place, brought to the disk, listed with checksums, and
       then renamed. A process that is killed at any moment leaves the checkpoints before it whole.
    2. On an object store, which has no rename of directories, the list is written last and decides.
    3. The newest checkpoint is the one of the highest step; no clock is asked. One that is torn or
       altered in any byte is skipped with a warning, and the one before it is taken.
    4. One process at a time: a second manager of a local directory is refused. Object stores have
       no locks: there, two runs at once hinder each other and still damage nothing.
    5. With `wait=False` a checkpoint is written beside training: what is saved is taken as it is at
       that moment, into the kernel's memory for files or, for an object store, a file of this
       machine, and a thread does the rest. The next one, and the end, wait for it.
    """

    def __init__(
        self, directory: str, *, max_to_keep: int = 2, wait_s: float = 0.0, writes: bool = True
    ) -> None:
        """Opens a directory, which is made if it is not there.

        Args:
            directory: local or remote, such as `fn_args.checkpoint_dir`.
            max_to_keep: how many complete checkpoints to keep; older ones are deleted.
            wait_s: how long to wait, in seconds, for another run that writes there.
            writes: False in workers that are not the chief (`training.is_chief()`). A strategy may
                need all of them to save at the same step: what these write is thrown away.

        Raises:
            ConfigurationError: no directory, fewer than one to keep, or another run writes there.
        """
        if not directory:
            raise ConfigurationError("directory: expected where to keep checkpoints, found nothing")
        if max_to_keep < 1:
            raise ConfigurationError(f"max_to_keep: expected at least 1, found {max_to_keep}")
        self.directory = os.fspath(directory)
        self._max_to_keep = max_to_keep
        self._damaged: set[str] = set()
        gfile().makedirs(self.directory)
        self._writes = writes
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: concurrent.futures.Future[None] | None = None
        self._failed: TrainingError | None = None  # of the thread
        # Processor time of the thread, for the last checkpoint that it wrote.
        self.processor_s = 0.0
        self._lock: DirectoryLock | None = None
        if writes and not is_remote(self.directory):
            self._lock = DirectoryLock(self.directory, wait_s=wait_s)
            for name in gfile().listdir(self.directory):
                if name.startswith(_UNFINISHED):
                    _delete(os.path.join(self.directory, name))

    def close(self) -> None:
        """Lets another run write, when all is written; doing so twice is no error."""
        self._join()
        self._thread.shutdown()
        if self._failed is not None:
            _logger.warning("%s", self._failed)
            self._failed = None
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def save(
        self,
        step: int,
        write: Callable[[str], Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        is_taken: bool = False,
    ) -> SavedCheckpoint:
        """Saves a checkpoint.

        Args:
            step: how far the run is; must not be below that of a good checkpoint that is there.
            write: is called with an empty directory and writes files into it.
            metadata: anything that JSON can hold.
            wait: whether to return when all of it is on the disk; else when `write` has returned.
            is_taken: whether `write` holds all that it writes. Without `wait`, it is then called
                beside training, too.

        Raises:
            ConfigurationError: there is a checkpoint of a later step, so the run did not resume.
            TrainingError: it, or the one before that was not waited for, cannot be written,
                because the disk is full for example. The checkpoints before it are as they were.
        """
        if not self._writes:
            with ScratchFolder("checkpoint-") as scratch_dir:
                if not is_taken:  # a strategy may need all workers for it
                    write(scratch_dir)
                return SavedCheckpoint(step, scratch_dir, dict(metadata or {}))
        self.wait()
        names = self._names()
        self._check_order(step, names)
        saved = map(_step_and_attempt, names)
        attempt = max((attempt for at, attempt in saved if at == step), default=-1) + 1
        name = f"step-{step:012d}.{attempt}"
        values = dict(metadata or {})
        start = functools.partial(self._start, step, name, write)
        started = start() if wait or not is_taken else None

        def finish() -> None:
            self._finish(started or start(), name, step, values)

        def finish_beside() -> None:
            start_s = time.thread_time()
            try:
                finish()
            finally:
                self.processor_s = time.thread_time() - start_s

        if wait:
            finish()
        else:
            self._writing = self._thread.submit(finish_beside)
        return SavedCheckpoint(step, os.path.join(self.directory, name), values)

    @property
    def is_writing(self) -> bool:
        """Whether what was saved with `wait=False` is still being written."""
        return self._writing is not None and not self._writing.done()

    def wait(self) -> None:
        """Returns when what was saved with `wait=False` is on the disk.

        Raises:
            TrainingError: it cannot be written; see `save`.
        """
        self._join()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def latest(self) -> SavedCheckpoint | None:
        """Returns the newest complete checkpoint; None when there is none."""
        self._join()
        for name in reversed(self._names()):
            path = os.path.join(self.directory, name)
            try:
                return _checked(path)
            except ValueError as error:
                self._damaged.add(name)
                _logger.warning("Skipping the checkpoint %s: %s", path, error)
        return None

    def save_objects(
        self,
        step: int,
        objects: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
    ) -> SavedCheckpoint:
        """Saves what `tf.train.Checkpoint` can: models, optimizers, variables, dataset iterators.

        Args:
            step: see `save`.
            objects: name → object.
            metadata: see `save`.
            wait: see `save`.
        """
        import tensorflow as tf

        checkpoint = tf.train.Checkpoint(**objects)

        def write(directory: str) -> None:
            checkpoint.write(os.path.join(directory, _OBJECTS))

        return self.save(step, write, metadata, wait=wait)

    def restore_objects(self, objects: Mapping[str, Any]) -> SavedCheckpoint | None:
        """Restores the newest complete checkpoint of `save_objects` into the same objects.

        Variables that are made only later get their values when they are made.

        Returns:
            What was restored; None when there is none, and nothing was changed.

        Raises:
            TrainingError: an object that has its variables finds none of them in the checkpoint.
        """
        import tensorflow as tf

        saved = self.latest()
        if saved is None:
            return None
        path = os.path.join(saved.path, _OBJECTS)
        try:
            tf.train.Checkpoint(**objects).read(path).assert_existing_objects_matched()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise TrainingError(
                f"The checkpoint {saved.path} does not fit {sorted(objects)}: {error}. Restore "
                "into the objects that it was saved from, or delete it to start afresh."
            ) from error
        return saved

    def _start(self, step: int, name: str, write: Callable[[str], Any]) -> _Writing:
        with self._told(step):
            return _Writing(self.directory, name, write)

    def _finish(self, started: _Writing, name: str, step: int, metadata: Mapping[str, Any]) -> None:
        with self._told(step):
            started.finish(step, metadata)
        note(checkpoint=step)
        self._prune(keep=name)

    def _join(self) -> None:
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except TrainingError as error:
            self._failed = error

    @contextlib.contextmanager
    def _told(self, step: int) -> Iterator[None]:
        import tensorflow as tf

        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            names = self._names()
            left = f"{names[-1]} is still there." if names else "There is no earlier one."
            raise TrainingError(
                f"The checkpoint of step {step} could not be written into {self.directory}: "
                f"{error}. {left} Make room there, or keep fewer checkpoints."
            ) from error

    def _names(self) -> list[str]:
        """Returns the checkpoints' names, oldest first."""
        names = [name.rstrip("/") for name in gfile().listdir(self.directory)]
        return sorted(filter(_NAME.match, names), key=_step_and_attempt)

    def _good(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self._damaged]

    def _check_order(self, step: int, names: list[str]) -> None:
        good = self._good(names)
        if good and _step_and_attempt(good[-1])[0] > step:
            raise ConfigurationError(
                f"Step {step} is to be saved in {self.directory}, where {good[-1]} is of a later "
                "step. Restore the latest checkpoint and go on from its step, or delete it."
            )

    def _prune(self, keep: str) -> None:
        names = self._names()
        kept = {keep, *self._good(names)[-self._max_to_keep :]}
        for name in names:
            if name not in kept:
                _delete(os.path.join(self.directory, name))


class _Writing:
    """A checkpoint that is being written: its content first, then what makes it one.

    Attributes:
        target: the directory that it will have.
    """

    def __init__(self, directory: str, name: str, write: Callable[[str], Any]) -> None:
        """Has the content written: beside its place, or for an object store into a local folder."""
        self._directory, self.target = directory, os.path.join(directory, name)
        self._scratch = ScratchFolder("checkpoint-") if is_remote(directory) else None
        self._path = os.path.join(directory, _UNFINISHED + name)
        if self._scratch is not None:
            self._path = self._scratch.path
        with self._given_up_on_errors():
            gfile().makedirs(self._path)
            write(self._path)

    def finish(self, step: int, metadata: Mapping[str, Any]) -> None:
        """Brings the content to its place, for good."""
        with self._given_up_on_errors():
            manifest = _manifest(self._path, step, metadata)
            if self._scratch is None:
                _write_manifest(self._path, manifest)
                os.rename(self._path, self.target)
                _sync(self._directory)
                return
            for name in files_below(self._path):
                path = os.path.join(self.target, name)
                gfile().makedirs(os.path.dirname(path))
                gfile().copy(os.path.join(self._path, name), path, overwrite=True)
            _write_manifest(self.target, manifest)
            self._scratch.close()

    @contextlib.contextmanager
    def _given_up_on_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # Room is what a full disk needs most.
            for path in {self._path, self.target}:
                if gfile().exists(path):
                    gfile().rmtree(path)
            if self._scratch is not None:
                self._scratch.close()
            raise


def _delete(path: str) -> None:
    gfile().rmtree(path) if gfile().isdir(path) else gfile().remove(path)


def _step_and_attempt(name: str) -> tuple[int, int]:
    step, attempt = name.removeprefix("step-").split(".")
    return int(step), int(attempt)


def _manifest(directory: str, step: int, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the list of all files of a directory, after they have reached the disk."""
    files = {}
    for name in files_below(directory):
        path = os.path.join(directory, name)
        _sync(path)
        files[name] = _size_and_checksum(path)
    manifest = {"step": step, "metadata": metadata, "files": files}
    manifest = json.loads(_text(manifest))  # as its reader has it: keys are texts, and so sorted
    manifest[_CHECKSUM] = _checksum(manifest)
    return manifest


def _write_manifest(directory: str, manifest: Mapping[str, Any]) -> None:
    path = os.path.join(directory, _MANIFEST_FILE)
    write_whole(path, _text(manifest))
    _sync(path)
    _sync(directory)


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1, sort_keys=True)


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(manifest).encode()).hexdigest()


def _checked(directory: str) -> SavedCheckpoint:
    """Returns the checkpoint in a directory whose files are all there and unaltered.

    Raises:
        ValueError: it is torn or altered; the message tells which file and how.
    """
    import tensorflow as tf

    path = os.path.join(directory, _MANIFEST_FILE)
    if not gfile().exists(path):
        raise ValueError(f"it has no {_MANIFEST_FILE}, so it was never finished")
    name = _MANIFEST_FILE
    try:
        manifest = _checked_manifest(read_whole(path), os.path.basename(directory))
        for name, expected in manifest["files"].items():
            path = os.path.join(directory, name)
            if not gfile().exists(path):
                raise ValueError(f"its file {name} is missing")
            actual = _size_and_checksum(path)
            if actual[0] != expected[0]:
                raise ValueError(
                    f"its file {name} has {actual[0]:,} bytes instead of {expected[0]:,}"
                )
            if actual != expected:
                raise ValueError(f"its file {name} was altered: the checksum differs")
    except (OSError, tf.errors.OpError) as error:  # a folder in its place, a bad sector
        raise ValueError(f"its file {name} cannot be read ({error})") from error
    return SavedCheckpoint(manifest["step"], directory, manifest["metadata"])


def _checked_manifest(content: bytes, name: str) -> dict[str, Any]:
    """Returns the manifest of the checkpoint of a name.

    Raises:
        ValueError: it is not one, not what was written, or that of another checkpoint.
    """
    try:
        manifest = json.loads(content)
        if _CHECKSUM in manifest:
            is_as_written = content == _text(manifest).encode()
            checksum = manifest.pop(_CHECKSUM)
            if not is_as_written or checksum != _checksum(manifest):
                raise ValueError("its own checksum differs")
        if {key: type(value) for key, value in manifest.items()} != _FIELDS:
            raise ValueError("it has other fields")
        if not all(_is_entry(*entry) for entry in manifest["files"].items()):
            raise ValueError("it lists what is no file")
        if manifest["step"] != _step_and_attempt(name)[0]:
            raise ValueError(f"it is that of step {manifest['step']}")
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"its {_MANIFEST_FILE} is damaged ({error})") from error
    return manifest


def _is_entry(name: str, expected: Any) -> bool:
    """Returns whether this is a file below the checkpoint, its size and its checksum."""
    return (
        isinstance(expected, list)
        and [type(each) for each in expected] == [int, str]
        and not os.path.isabs(name)
        and ".." not in name.split("/")
    )


def _size_and_checksum(path: str) -> list[Any]:
    return [gfile().stat(path).length, sha256_of_file(path)]


def _sync(path: str) -> None:
    """Waits until a local file or directory is on the disk; an object store does so by itself."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
