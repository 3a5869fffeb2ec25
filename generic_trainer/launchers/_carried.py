"""What goes with a job to a machine that is set up by somebody else."""

from __future__ import annotations

import dataclasses
import os

from generic_trainer._core.files import gfile
from generic_trainer.errors import ModuleFileError
from generic_trainer.launchers._job import Job

__all__ = ["read_bundle_file", "with_carried_environment"]

# They decide how TensorFlow and Keras work, and have to be the same everywhere.
_PREFIXES = ("GENERIC_TRAINER_", "KERAS_", "TF_")
# They are about this machine, or this process.
_OWN = ("TF_CONFIG", "TF_GRPC_REUSE_PORT", "TF_FORCE_GPU_ALLOW_GROWTH")


def with_carried_environment(job: Job) -> Job:
    """Returns the job with this process's TensorFlow and Keras settings in `distribution.env`.

    A pipeline that was started with `TF_USE_LEGACY_KERAS=1` means its workers too.
    """
    carried = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) and name not in _OWN
    }
    env = {**carried, **job.distribution.env}
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
        with gfile().GFile(path, "rb") as file:
            content: bytes = file.read()
            return content
    except Exception as error:  # what it raises depends on the file system
        raise ModuleFileError(
            f"The bundle of the user's code, {path}, cannot be read: {error}. Run the pipeline "
            "definition again to write it anew."
        ) from error
