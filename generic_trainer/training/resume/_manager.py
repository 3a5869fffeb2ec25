"""A directory of checkpoints, each of which is complete or does not exist.

A checkpoint is complete if it has a manifest, the list of its files with their checksums. Below the
list, which is one line, is a checksum of that line::

    {"name": "step-000000001000.0", "step": 1000, "metadata": {...},
     "files": {"objects.index": "6b51…"}}
    e3b0…

The directory of a run that saves step 3000 and keeps two checkpoints::

    .lock                          of the process that trains, until it closes or dies
    step-000000001000.0/           deleted at the very end
    step-000000002000.0/
    .unfinished-step-…3000.0/      its files, then the manifest; all reach the disk
    step-000000003000.0/           the same directory after one rename

A kill before the rename leaves `.unfinished-…`, which the next manager deletes; one after
it leaves a checkpoint too many, which the next save deletes. In an object store, which has
neither renames of directories nor locks, the manifest is copied last: a checkpoint without
it, or with a wrong checksum, is skipped. If step 3000 is then saved again, it gets the name
`step-000000003000.1`, because the torn one still has the first.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import (
    copy_tree,
    delete_tree,
    files_below,
    gfile,
    is_remote,
    read_whole,
    sha256_of_file,
    write_whole,
)
from generic_trainer._core.progress import note
from generic_trainer._core.scratch import NO_LOCKS, ScratchFolder, lock_directory, unlike_a_pattern
from generic_trainer._core.texts import describe
from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.training.resume._state import (
    ModelState,
    parts_beside_layers,
    topmost_layers,
)

_NAME = re.compile(r"step-(\d+)\.(\d+)$")
_UNFINISHED = ".unfinished-"
_OBJECTS = "objects"
_MANIFEST_FILE = "manifest"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint.

    Attributes:
        step: the step that it was saved at.
        path: the directory with its files.
        metadata: values that the writer added.
    """

    step: int
    path: str
    metadata: Mapping[str, Any]


class CheckpointManager(contextlib.AbstractContextManager["CheckpointManager"]):
    """Writes checkpoints into a directory and finds the newest good one again.

    ::

        with training.CheckpointManager(fn_args.checkpoint_dir) as manager:
            saved = manager.restore_objects({"model": model, "iterator": iterator})
            for step in range(saved.step if saved else 0, fn_args.train_steps):
                train_step(next(iterator))
                if (step + 1) % 1000 == 0:
                    manager.save_objects(step + 1, {"model": model, "iterator": iterator})

    1. A checkpoint is written under another name, synced to the disk, listed with checksums, and
       then renamed. A process that is killed at any moment leaves earlier checkpoints complete.
    2. On an object store, which cannot rename directories, the manifest is written last.
    3. The newest checkpoint is the one of the highest step; clocks do not matter. One that is torn
       or altered in any byte is skipped with a warning, and the one before it is used.
    4. One process at a time: a second manager of a local directory is refused. Object stores and
       some network file systems have no locks: there, two runs at once hinder each other and still
       damage nothing.
    5. `save_beside` has a thread write the checkpoint while training continues. The next one, and
       `close`, wait for it.
    """

    def __init__(
        self, directory: str, *, max_to_keep: int = 2, wait_s: float = 0.0, writes: bool = True
    ) -> None:
        """Opens a directory, or creates it.

        Args:
            directory: local or remote, such as `fn_args.checkpoint_dir`.
            max_to_keep: how many complete checkpoints to keep; older ones are deleted.
            wait_s: how long to wait, in seconds, for another run that writes there.
            writes: False in workers that are not the chief (`training.is_chief()`). A strategy may
                need all of them to save at the same step; their files are deleted.

        Raises:
            ConfigurationError: no directory, fewer than one to keep, or another run writes there.
        """
        if not directory:
            raise ConfigurationError(
                "directory: expected the path of a directory for checkpoints, found none"
            )
        if max_to_keep < 1:
            raise ConfigurationError(f"max_to_keep: expected at least 1, found {max_to_keep}")
        self.directory = os.fspath(directory)
        self._max_to_keep = max_to_keep
        self._damaged: set[str] = set()
        gfile().makedirs(self.directory)
        self._writes = writes
        self._writing: concurrent.futures.Future[SavedCheckpoint] | None = None
        # Processor time of the thread, for the last checkpoint that it wrote.
        self.processor_s = 0.0
        self._resources = contextlib.ExitStack()
        if writes and not is_remote(self.directory):
            try:
                self._resources.enter_context(lock_directory(self.directory, wait_s=wait_s))
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                _logger.info("No lock for %s, whose file system has none", self.directory)
            for name in gfile().listdir(self.directory):
                if name.startswith(_UNFINISHED):
                    delete_tree(os.path.join(self.directory, name))
        thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
        self._thread = self._resources.enter_context(thread)

    def close(self) -> None:
        """Waits for pending writes and releases the lock; may be called twice."""
        with self._resources:
            self.settle()

    def __exit__(self, *error: object) -> None:
        self.close()

    def save(
        self, step: int, write: Callable[[str], Any], metadata: Mapping[str, Any] | None = None
    ) -> SavedCheckpoint:
        """Saves a checkpoint, and returns when all its files are on the disk.

        Args:
            step: the progress of the run; must not be below that of an existing good checkpoint.
            write: is called with an empty directory and writes files into it.
            metadata: anything that JSON can hold, and as values numbers of NumPy's.

        Raises:
            ConfigurationError: a checkpoint of a later step exists, so the run did not resume.
            TrainingError: it, or the pending one before, cannot be written, because the disk is
                full for example. Earlier checkpoints are unchanged.
        """
        self.wait()
        if not self._writes:
            with ScratchFolder("checkpoint-") as scratch_dir:
                write(scratch_dir)  # a strategy may need all workers for it
                return SavedCheckpoint(step, scratch_dir, dict(metadata or {}))
        return self._write(step, write, dict(metadata or {}))

    def save_beside(
        self, step: int, write: Callable[[str], Any], metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Saves a checkpoint while training continues; see `save`, whose errors `wait` raises.

        `write` is called in a thread, and must need nothing that training changes.
        """
        self.wait()
        if self._writes:
            metadata = dict(metadata or {})
            self._writing = self._thread.submit(self._write, step, write, metadata)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint of `save_beside` is still being written."""
        return self._writing is not None and not self._writing.done()

    def wait(self) -> None:
        """Waits until a checkpoint of `save_beside` is on the disk.

        Raises:
            TrainingError: it cannot be written; see `save`.
        """
        # Forgotten before `result` raises, so that one failure is reported once.
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def settle(self) -> None:
        """Waits as `wait` does; logs an error, with which training may go on."""
        try:
            self.wait()
        except TrainingError as error:
            _logger.warning("Going on without a new checkpoint: %s", error)

    def latest(self) -> SavedCheckpoint | None:
        """Returns the newest complete checkpoint, or None."""
        if self._writing is not None:
            self._writing.exception()  # waits; `wait` and `close` report it
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
    ) -> SavedCheckpoint:
        """Saves objects of `tf.train.Checkpoint`: models, optimizers, variables, iterators.

        Save the iterator of a dataset that does not end: `dataset.shuffle(...).repeat()`. Of one
        that ends, TensorFlow restores the position, but may shuffle the passes that follow in
        another way than without an interruption.

        TensorFlow leaves out parts of a model or layer of Keras 3: layers in lists and dicts, and
        the generators of layers such as `Dropout`. So all variables of models and layers, also of
        those in lists, dicts and a `tf.Module`, are saved once more, in directories with their
        names. It takes no metric and no `SeedGenerator` of Keras 3, and leaves out those in lists
        and dicts: it gets their variables. A `Dropout` of Keras 2 draws with ops whose state cannot
        be saved: after a restart it draws other numbers.

        Args:
            step: see `save`.
            objects: name → object.
            metadata: see `save`.

        Raises:
            ConfigurationError: TensorFlow cannot save an object, such as a number.
        """
        checkpoint = _checkpoint_of(objects)

        def write(directory: str) -> None:
            checkpoint.write(os.path.join(directory, _OBJECTS))
            for folder, state in _partly_saved(objects, directory):
                os.makedirs(folder)
                state.find_variables()
                state.take({})(folder)

        return self.save(step, write, metadata)

    def restore_objects(self, objects: Mapping[str, Any]) -> SavedCheckpoint | None:
        """Restores the newest complete checkpoint of `save_objects` into the same objects.

        A model of Keras 3 that has no variables yet is built, or each of its layers. Other
        variables that are made only later get their values when they are made.

        Returns:
            The checkpoint; None if there is none, and nothing was changed.

        Raises:
            TrainingError: an object that has its variables finds none of them in the checkpoint, or
                a layer of Keras 3 cannot be built without data: call the model on a batch before.
        """
        saved = self.latest()
        if saved is None:
            return None
        # Open as long as the manager: variables that are made later are read then.
        readable = self._resources.enter_context(unlike_a_pattern(saved.path))
        path = os.path.join(readable, _OBJECTS)
        with fitting(saved.path):
            # First, as it builds them: what Keras 3 makes after `read`, some layers have twice.
            for folder, state in _partly_saved(objects, saved.path):
                state.read_weights(folder, all_now=True)
            reader = tf.compat.v1.train.NewCheckpointReader(path)  # also on ram://
            for name, target in objects.items():
                scale = f"{name}/dynamic_scale/.ATTRIBUTES/VARIABLE_VALUE"
                if reader.has_tensor(scale) and not getattr(target, "built", True):
                    # Of Keras 3, which scales the first loss by this, and then makes the variable.
                    target.initial_scale = float(reader.get_tensor(scale))
            _checkpoint_of(objects, reader).read(path).assert_existing_objects_matched()
        return saved

    def _next(self, step: int, metadata: Mapping[str, Any]) -> SavedCheckpoint:
        """Returns the checkpoint of a step before it is written, under a name that is free."""
        good = self._good()
        if good and _step_and_attempt(good[-1])[0] > step:
            raise ConfigurationError(
                f"Step {step} is to be saved in {self.directory}, where {good[-1]} is of a later "
                "step. Restore the latest checkpoint and go on from its step, or delete it."
            )
        # A damaged checkpoint of the same step keeps its name until a good one replaces it.
        attempts = [attempt for at, attempt in map(_step_and_attempt, self._names()) if at == step]
        path = os.path.join(self.directory, f"step-{step:012d}.{max(attempts, default=-1) + 1}")
        return SavedCheckpoint(step, path, metadata)

    def _write(
        self, step: int, write: Callable[[str], Any], metadata: Mapping[str, Any]
    ) -> SavedCheckpoint:
        start_s = time.thread_time()
        try:
            saved = self._next(step, metadata)
            self._fill(saved, write)
        except (OSError, tf.errors.OpError) as error:
            remedy = "Somebody has deleted this directory while the fit ran; start the run again."
            if gfile().exists(self.directory):
                remedy = "Those of earlier steps are still there. Make room there, or keep fewer."
            raise TrainingError(
                f"The checkpoint of step {step} could not be written into {self.directory}: "
                f"{error}. {remedy}"
            ) from error
        note(checkpoint=saved.step)
        old: set[str] = set()
        with self._needless():
            kept = {os.path.basename(saved.path), *self._good()[-self._max_to_keep :]}
            old = {*self._names()} - kept
        for other in old:
            with self._needless():
                delete_tree(os.path.join(self.directory, other))
        self.processor_s = time.thread_time() - start_s
        return saved

    def _fill(self, saved: SavedCheckpoint, write: Callable[[str], Any]) -> None:
        """Writes the files under another name, or for an object store into a local folder first."""
        part = os.path.join(self.directory, _UNFINISHED + os.path.basename(saved.path))
        try:
            is_local = not is_remote(part)
            with contextlib.nullcontext(part) if is_local else ScratchFolder("checkpoint-") as path:
                gfile().makedirs(path)
                write(path)
                _publish(path, saved)
        except BaseException:
            for folder in (part, saved.path):  # room is what a full disk needs most
                delete_tree(folder)
            raise

    @contextlib.contextmanager
    def _needless(self) -> Iterator[None]:
        """Logs an error while old checkpoints are deleted, which the next save tries again."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            _logger.warning("Old checkpoints in %s were not deleted: %s", self.directory, error)

    def _names(self) -> list[str]:
        """Returns the checkpoints' names, oldest first."""
        names = [name.rstrip("/") for name in gfile().listdir(self.directory)]
        return sorted(filter(_NAME.match, names), key=_step_and_attempt)

    def _good(self) -> list[str]:
        return [name for name in self._names() if name not in self._damaged]


@contextlib.contextmanager
def fitting(path: str) -> Iterator[None]:
    """Replaces errors of a checkpoint that belongs to another model or other data."""
    try:
        yield
    except (AssertionError, KeyError, TypeError, ValueError, tf.errors.OpError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise TrainingError(
            f"The checkpoint {path} does not fit the model and the data of this run: {error}. "
            "Restore the code that wrote it, or delete the checkpoint to start afresh."
        ) from error


def _checkpoint_of(objects: Mapping[str, Any], saved: Any = None) -> tf.train.Checkpoint:
    """Returns a checkpoint of objects, and of the variables of parts that TensorFlow leaves out.

    Args:
        objects: name → object.
        saved: reader of a checkpoint to restore, which an earlier version wrote without the parts.
    """
    tracked = dict(objects)
    for name, holder in objects.items():
        for path, variables in parts_beside_layers(holder):
            key = f"{name}{path}"
            tracked[key] = variables
            if saved is None:
                continue
            is_saved = saved.has_tensor(f"{key.replace('.', '..')}/0/.ATTRIBUTES/VARIABLE_VALUE")
            if is_saved and not variables:
                raise TrainingError(
                    f"{key!r} makes its variables only when it is called: call it, such as "
                    "update_state of a metric, before it is restored."
                )
            if variables and not is_saved:
                _logger.warning("The checkpoint does not have %r, which starts anew", key)
                del tracked[key]
    for name, part in tracked.items():
        try:
            tf.train.Checkpoint(part=part)
        except ValueError as error:
            raise ConfigurationError(
                f"TensorFlow cannot save {name!r}, {describe(part)}: pass variables, or objects of "
                "TensorFlow or Keras that have some; numbers and texts go into `metadata`."
            ) from error
    return tf.train.Checkpoint(**tracked)


def _partly_saved(objects: Mapping[str, Any], directory: str) -> Iterator[tuple[str, ModelState]]:
    """Yields folders in a checkpoint, and parts of Keras 3, which TensorFlow saves in part."""
    for name, holder in objects.items():
        for path, layer in topmost_layers(holder):
            folder = f"{name}{path}".replace("/", "%2F")  # keys of dicts may have it
            yield os.path.join(directory, folder), ModelState(layer)


def _step_and_attempt(name: str) -> tuple[int, int]:
    step, attempt = name.removeprefix("step-").split(".")
    return int(step), int(attempt)


def _publish(path: str, saved: SavedCheckpoint) -> None:
    """Makes the files in a local directory durable, as a checkpoint."""
    files = {}
    for name in sorted({*files_below(path)} - {_MANIFEST_FILE}):  # of a checkpoint that is copied
        _sync(os.path.join(path, name))
        files[name] = sha256_of_file(os.path.join(path, name))
    name = os.path.basename(saved.path)
    manifest = {"name": name, "step": saved.step, "metadata": saved.metadata, "files": files}
    text = json.dumps(manifest, default=_number)
    write_whole(os.path.join(path, _MANIFEST_FILE), f"{text}\n{_checksum(text.encode())}")
    if is_remote(saved.path):
        copy_tree(path, saved.path, last=_MANIFEST_FILE)
        return
    _sync(os.path.join(path, _MANIFEST_FILE))
    _sync(path)
    os.rename(path, saved.path)
    # Older checkpoints are deleted next: after a loss of power, a disk that had kept the
    # deletion and not the rename would have no checkpoint at all.
    _sync(os.path.dirname(saved.path))


def _number(value: Any) -> Any:
    """Returns what JSON can hold for a number of NumPy's, such as the epochs of a fit."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"Metadata of a checkpoint: expected what JSON can hold, found {value!r}")


def _checksum(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _checked(directory: str) -> SavedCheckpoint:
    """Returns the checkpoint in a directory whose files are all there and unaltered.

    Raises:
        ValueError: it is torn or altered; the message has the file and the difference.
    """
    path = os.path.join(directory, _MANIFEST_FILE)
    if not gfile().exists(path):
        raise ValueError(f"it has no {_MANIFEST_FILE}, so it was never finished")
    name = _MANIFEST_FILE
    try:
        text, _, checksum = read_whole(path).partition(b"\n")
        if checksum != _checksum(text).encode():
            raise ValueError(f"its {name} is damaged: the checksum differs")
        manifest = json.loads(text)
        # A copy under another name would be resumed as if it were of that step.
        if manifest["name"] != os.path.basename(directory):
            raise ValueError(f"its {name} is that of {manifest['name']}")
        for name, expected in manifest["files"].items():
            path = os.path.join(directory, name)
            if not gfile().exists(path):
                raise ValueError(f"its file {name} is missing")
            if sha256_of_file(path) != expected:
                raise ValueError(f"its file {name} was altered: the checksum differs")
    except (OSError, tf.errors.OpError) as error:  # a folder in its place, a bad sector
        raise ValueError(f"its file {name} cannot be read ({error})") from error
    return SavedCheckpoint(manifest["step"], directory, manifest["metadata"])


def _sync(path: str) -> None:
    """Waits until a local file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
