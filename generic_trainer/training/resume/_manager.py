"""`CheckpointManager`: checkpoints that are there whole or not at all."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from generic_trainer._core.files import gfile, is_remote
from generic_trainer._core.locks import DirectoryLock
from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.training.resume._manifest import read_manifest, sync, write_manifest

__all__ = ["CheckpointManager", "SavedCheckpoint"]

_NAME = re.compile(r"step-(\d+)\.(\d+)$")
_UNFINISHED = ".unfinished-"
_OBJECTS = "objects"

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
       altered is skipped with a warning, and the one before it is taken.
    4. One process at a time: a second manager of a local directory is refused. Object stores have
       no locks: there, two runs at once hinder each other and still damage nothing.
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
        self._lock: DirectoryLock | None = None
        if writes and not is_remote(self.directory):
            self._lock = DirectoryLock(self.directory, wait_s=wait_s)
            self._delete_unfinished()

    def close(self) -> None:
        """Lets another run write; doing so twice is no error."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def save(
        self,
        step: int,
        write: Callable[[str], Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> SavedCheckpoint:
        """Saves a checkpoint.

        Args:
            step: how far the run is; must not be below that of a good checkpoint that is there.
            write: is called with an empty directory and writes files into it.
            metadata: anything that JSON can hold.

        Raises:
            ConfigurationError: there is a checkpoint of a later step, so the run did not resume.
            TrainingError: it cannot be written, because the disk is full for example. The
                checkpoints before it are as they were.
        """
        if not self._writes:
            return _thrown_away(step, write, dict(metadata or {}))
        self._check_order(step)
        name = f"step-{step:012d}.{self._next_attempt(step)}"
        try:
            path = self._write(name, step, write, dict(metadata or {}))
        except _write_errors() as error:
            raise TrainingError(
                f"The checkpoint of step {step} could not be written into {self.directory}: "
                f"{error}. {self._remaining()} Make room there, or keep fewer checkpoints."
            ) from error
        self._prune(keep=name)
        return SavedCheckpoint(step, path, dict(metadata or {}))

    def latest(self) -> SavedCheckpoint | None:
        """Returns the newest complete checkpoint; None when there is none."""
        for name in reversed(self._names()):
            path = os.path.join(self.directory, name)
            try:
                manifest = read_manifest(path)
            except ValueError as error:
                self._damaged.add(name)
                _logger.warning("Skipping the checkpoint %s: %s", path, error)
            else:
                return SavedCheckpoint(manifest.step, path, manifest.metadata)
        return None

    def save_objects(
        self, step: int, objects: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> SavedCheckpoint:
        """Saves what `tf.train.Checkpoint` can: models, optimizers, variables, dataset iterators.

        Args:
            step: see `save`.
            objects: name → object.
            metadata: see `save`.
        """
        import tensorflow as tf

        checkpoint = tf.train.Checkpoint(**objects)
        return self.save(
            step, lambda directory: checkpoint.write(os.path.join(directory, _OBJECTS)), metadata
        )

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

    def _write(
        self, name: str, step: int, write: Callable[[str], Any], metadata: dict[str, Any]
    ) -> str:
        target = os.path.join(self.directory, name)
        remote = is_remote(self.directory)
        place = target if remote else os.path.join(self.directory, _UNFINISHED + name)
        try:
            gfile().makedirs(place)
            write(place)
            write_manifest(place, step, metadata)
            if not remote:
                os.rename(place, target)
                sync(self.directory)
        except BaseException:
            # Room is what a full disk needs most.
            if gfile().exists(place):
                gfile().rmtree(place)
            raise
        return target

    def _names(self) -> list[str]:
        """Returns the checkpoints' names, oldest first."""
        found = (_NAME.match(name.rstrip("/")) for name in gfile().listdir(self.directory))
        matches = sorted((match for match in found if match), key=_place_in_time)
        return [match.group() for match in matches]

    def _check_order(self, step: int) -> None:
        good = [name for name in self._names() if name not in self._damaged]
        if good and _step(good[-1]) > step:
            raise ConfigurationError(
                f"Step {step} is to be saved in {self.directory}, where {good[-1]} is of a later "
                "step. Restore the latest checkpoint and go on from its step, or delete it."
            )

    def _next_attempt(self, step: int) -> int:
        matches = [_NAME.match(name) for name in self._names()]
        attempts = [int(match[2]) for match in matches if match and int(match[1]) == step]
        return max(attempts, default=-1) + 1

    def _prune(self, keep: str) -> None:
        good = [name for name in self._names() if name not in self._damaged]
        kept = {keep, *good[-self._max_to_keep :]}
        for name in self._names():
            if name not in kept:
                gfile().rmtree(os.path.join(self.directory, name))

    def _delete_unfinished(self) -> None:
        for name in gfile().listdir(self.directory):
            if name.startswith(_UNFINISHED):
                gfile().rmtree(os.path.join(self.directory, name))

    def _remaining(self) -> str:
        names = self._names()
        return f"{names[-1]} is still there." if names else "There is no earlier one."


def _thrown_away(
    step: int, write: Callable[[str], Any], metadata: dict[str, Any]
) -> SavedCheckpoint:
    with tempfile.TemporaryDirectory(prefix="generic-trainer-") as scratch_dir:
        write(scratch_dir)
        return SavedCheckpoint(step, scratch_dir, metadata)


def _place_in_time(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])


def _step(name: str) -> int:
    match = _NAME.match(name)
    return int(match[1]) if match else -1


def _write_errors() -> tuple[type[Exception], ...]:
    import tensorflow as tf

    return (OSError, tf.errors.OpError)
