"""Jobs packed for machines that are set up by somebody else: in a message, or in a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
from collections.abc import Iterable
from typing import Any

from generic_trainer._core.cluster import TF_CONFIG, Task
from generic_trainer._core.files import gfile, is_remote, read_whole, write_whole
from generic_trainer._core.keras import same_keras
from generic_trainer.errors import ConfigurationError, ModuleFileError
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._worker_end import WorkerEnd

# They decide how TensorFlow and Keras work, and have to be the same everywhere.
_PREFIXES = ("GENERIC_TRAINER_", "KERAS_", "TF_")
# They are about this machine, or this process.
_OWN = (TF_CONFIG, "TF_GRPC_REUSE_PORT", "TF_FORCE_GPU_ALLOW_GROWTH")


def with_carried_environment(job: Job) -> Job:
    """Returns the job with this process's TensorFlow and Keras settings in `distribution.env`.

    A pipeline that was started with `TF_USE_LEGACY_KERAS=1` means its workers too: they get the
    Keras that `tf.keras` is here.
    """
    carried = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) and name not in _OWN
    }
    env = {**carried, **same_keras(), **job.distribution.env}
    return dataclasses.replace(job, distribution=dataclasses.replace(job.distribution, env=env))


def read_bundle_file(job: Job) -> bytes | None:
    """Returns the content of the bundle with the user's code; None when there is no bundle.

    Raises:
        ModuleFileError: it cannot be read.
    """
    path = job.request.user_code.bundle
    if path is None:
        return None
    try:
        return read_whole(path)
    except Exception as error:  # what it raises depends on the file system
        raise ModuleFileError(
            f"The bundle of the user's code, {path}, cannot be read: {error}. Run the pipeline "
            "definition again to write it anew.",
            path=path,
        ) from error


def pack(job: Job) -> dict[str, Any]:
    """Returns all that a worker needs to know as plain values, for `unpack`.

    Raises:
        ModuleFileError: the bundle cannot be read.
    """
    return {"job": with_carried_environment(job).to_json(), "bundle": read_bundle_file(job)}


def unpack(packed: dict[str, Any], directory: str) -> Job:
    """Returns the job, with the user's code in a file of this machine.

    Args:
        packed: what `pack` returned.
        directory: an existing local directory.
    """
    return _with_bundle(Job.from_json(packed["job"]), packed["bundle"], directory)


class JobFolder:
    """A folder on the pipeline root by which a job and its workers exchange files.

    It has `job.json`, the user's code, `<task>-<index>.json` when a worker has ended, and
    `<task>-<index>.log.<number>`, parts of its log, where the service does not show it.

    Attributes:
        path: local or remote.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, job: Job, launcher: str, mounts: Iterable[str]) -> str:
        """Packs a job for workers of other machines.

        Args:
            job: what they are to do.
            launcher: the name of the one that starts them, for messages.
            mounts: local directories that they see under the same path.

        Returns:
            The digest of the job, for `read`; it is to reach the workers by another way.

        Raises:
            ConfigurationError: the folder is where no worker can see it.
            ModuleFileError: the user's code cannot be read.
        """
        _check_shared(self.path, launcher, list(mounts))
        bundle = read_bundle_file(job)
        gfile().makedirs(self.path)
        text = _with_bundle(job, bundle, self.path).to_json().encode()
        write_whole(self._file("job"), text)
        return hashlib.sha256(text).hexdigest()

    def read(self, digest: str) -> Job:
        """Returns the job; reading another one could run code.

        Args:
            digest: what `write` returned.

        Raises:
            ConfigurationError: it is not the job that was written.
        """
        path = self._file("job")
        text = read_whole(path)
        found = hashlib.sha256(text).hexdigest()
        if not hmac.compare_digest(found, digest):
            raise ConfigurationError(
                f"{path} is not the job that this worker was started for: expected the SHA-256 "
                f"{digest}, found {found}. Somebody else has written it: see who may write into "
                "the pipeline root, and run the pipeline again.",
                path=path,
            )
        return Job.from_json(text.decode())

    def write_end(self, task: Task, end: WorkerEnd) -> None:
        """Notes how a worker ended."""
        end.write(self._file(f"{task.type}-{task.index}"))

    def end(self, task: Task) -> WorkerEnd | None:
        """Returns how a worker ended; None if it did not come to saying so."""
        return WorkerEnd.read(self._file(f"{task.type}-{task.index}"))

    def forget_end(self, task: Task) -> None:
        """Deletes the note of how a worker ended, if there is one."""
        path = self._file(f"{task.type}-{task.index}")
        if gfile().exists(path):
            gfile().remove(path)

    def write_log(self, task: Task, number: int, part: bytes) -> None:
        """Adds a part to the log of a worker."""
        write_whole(self._log_part(task, number), part)

    def log(self, task: Task, number: int) -> bytes | None:
        """Returns a part of the log of a worker; None where it is not there yet."""
        path = self._log_part(task, number)
        return read_whole(path) if gfile().exists(path) else None

    def delete(self) -> None:
        """Deletes the folder."""
        if gfile().exists(self.path):
            gfile().rmtree(self.path)

    def _log_part(self, task: Task, number: int) -> str:
        return os.path.join(self.path, f"{task.type}-{task.index}.log.{number:06d}")

    def _file(self, name: str) -> str:
        return os.path.join(self.path, f"{name}.json")


def _with_bundle(job: Job, bundle: bytes | None, directory: str) -> Job:
    """Writes the user's code into a directory, and returns the job that finds it there."""
    code = job.request.user_code
    if bundle is None or code.bundle is None:
        return job
    path = os.path.join(directory, os.path.basename(code.bundle))
    write_whole(path, bundle)
    code = dataclasses.replace(code, bundle=path)
    return dataclasses.replace(job, request=dataclasses.replace(job.request, user_code=code))


def _check_shared(path: str, launcher: str, mounts: list[str]) -> None:
    if is_remote(path):
        return
    if not any(os.path.commonpath([path, mount]) == os.path.normpath(mount) for mount in mounts):
        raise ConfigurationError(
            f"launcher={launcher!r}: the workers cannot see the pipeline root: {path} is neither "
            f"remote nor below a mounted volume ({mounts or 'there are none'}). Use a bucket "
            "(gs://..., s3://...) as pipeline root, or a file system that is mounted here and "
            "there under the same path, in Kubernetes with volumes={'claim': '/path'} of its "
            "options.",
            path=path,
        )
