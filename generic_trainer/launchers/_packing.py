"""Jobs packed for machines that others set up: in a message, or in a folder."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer._core.files import delete_tree, gfile, is_remote, read_whole, write_whole
from generic_trainer._core.keras import same_keras
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._job import Job
from generic_trainer.user_code import read_bundle

# Settings of TensorFlow, Keras and this package, which have to be the same everywhere. TF_ alone
# would not do: Terraform keeps passwords and tokens in variables that begin so (TF_VAR_, TF_TOKEN_,
# TF_CLI_, TF_HTTP_, TF_DATA_DIR, TF_LOG, ...).
_CARRIED = re.compile(
    "GENERIC_TRAINER_|KERAS_|TF_(AUTO_MIXED|AUTOTUNE|BFC|CLUSTER|CONV2D|COORDINATOR|CPP|CPU|CUBLAS|"
    "CUDA|CUDNN|CUFFT|DATA_EXPERIMENT|DEBUG|DETERMINISTIC|DEVICE|DISABLE|DUMP_GRAPH|EAGER|ENABLED?|"
    "FORCE|FORWARD|FP16|FUNCTION|GPU|GRAPH|GRPC|JIT|MATMUL|MIN_GPU|MKL|NUM|ONEDNN|OVERRIDE|"
    "PER_DEVICE|PSS?|RUN_HANDLER|SET_ONEDNN|SYNC|TPU|TRT|USE|WORKER|XLA)_"
)
# They concern this machine, or this process.
_OWN = ("TF_GRPC_REUSE_PORT", "TF_FORCE_GPU_ALLOW_GROWTH")


def with_carried_environment(job: Job) -> Job:
    """Returns the job with this process's TensorFlow and Keras settings in `distribution.env`.

    `TF_USE_LEGACY_KERAS=1` at the start of a pipeline is meant for its workers too: they get the
    `tf.keras` of this process.
    """
    carried = {
        name: value
        for name, value in os.environ.items()
        if _CARRIED.match(name) and name not in _OWN
    }
    env = {**carried, **same_keras(), **job.distribution.env}
    return dataclasses.replace(job, distribution=dataclasses.replace(job.distribution, env=env))


def pack(job: Job) -> dict[str, Any]:
    """Returns the job and its bundle as plain values, for `unpack`.

    Raises:
        ModuleFileError: the bundle cannot be read.
    """
    return {"job": with_carried_environment(job).to_json(), "bundle": _bundle(job)}


def unpack(packed: dict[str, Any], directory: str) -> Job:
    """Returns the job, with the user's code in a file of this machine.

    Args:
        packed: what `pack` returned.
        directory: an existing local directory.
    """
    return _with_bundle(Job.from_json(packed["job"]), packed["bundle"], directory)


class JobFolder:
    """A folder on the pipeline root by which a job and its workers exchange files.

    It contains `job.json`, the user's code, and `<task>-<index>.json` after the end of a worker.

    Attributes:
        path: local or remote.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, job: Job, launcher: str, mounts: Iterable[str]) -> str:
        """Packs a job for workers of other machines.

        Args:
            job: the job.
            launcher: name of the launcher, for messages.
            mounts: local directories that the workers see under the same path.

        Returns:
            The digest of the job, for `read`. It must reach the workers in another way.

        Raises:
            ConfigurationError: the workers cannot see the folder.
            ModuleFileError: the user's code cannot be read.
        """
        mounted = list(mounts)
        if not is_remote(self.path) and not any(
            os.path.commonpath([self.path, mount]) == os.path.normpath(mount) for mount in mounted
        ):
            raise ConfigurationError(
                f"launcher={launcher!r}: the workers cannot see the pipeline root: {self.path} is "
                f"neither remote nor below a mounted volume ({mounted or 'there are none'}). Use a "
                "bucket (gs://..., s3://...) as pipeline root, or a file system that is mounted "
                "here and there under the same path, in Kubernetes with volumes={'claim': '/path'} "
                "of its options.",
                path=self.path,
            )
        bundle = _bundle(job)
        gfile().makedirs(self.path)
        text = _with_bundle(job, bundle, self.path).to_json().encode()
        write_whole(self._file("job"), text)
        return hashlib.sha256(text).hexdigest()

    def read(self, digest: str) -> Job:
        """Returns the job, after comparing its digest: reading another job could run code.

        Args:
            digest: what `write` returned.

        Raises:
            ConfigurationError: it is not the job that was written.
        """
        path = self._file("job")
        text = read_whole(path)
        found = hashlib.sha256(text).hexdigest()
        if found != digest:
            raise ConfigurationError(
                f"{path} is not the job that this worker was started for: expected the SHA-256 "
                f"{digest}, found {found}. Another program has written it: check the permissions "
                "of the pipeline root, and run the pipeline again.",
                path=path,
            )
        return Job.from_json(text.decode())

    def end_of(self, task: Task) -> str:
        """Returns the path of the file into which a worker writes how it ended."""
        return self._file(f"{task.type}-{task.index}")

    def forget_end(self, task: Task) -> None:
        """Deletes that file, if it exists."""
        if gfile().exists(path := self.end_of(task)):
            gfile().remove(path)

    def delete(self) -> None:
        """Deletes the folder."""
        delete_tree(self.path)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, f"{name}.json")


def _bundle(job: Job) -> bytes | None:
    """Returns the zip with the user's code; None if it is installed."""
    code = job.request.user_code
    return None if code.bundle is None else read_bundle(code).to_zip()


def _with_bundle(job: Job, bundle: bytes | None, directory: str) -> Job:
    """Writes the user's code into a directory, and returns the job that finds it there."""
    code = job.request.user_code
    if bundle is None or code.bundle is None:
        return job
    path = os.path.join(directory, os.path.basename(code.bundle))
    write_whole(path, bundle)
    code = dataclasses.replace(code, bundle=path)
    return dataclasses.replace(job, request=dataclasses.replace(job.request, user_code=code))
