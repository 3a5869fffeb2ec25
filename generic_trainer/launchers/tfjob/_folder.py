"""The folder on the pipeline root by which a job and its pods exchange files."""

from __future__ import annotations

import dataclasses
import os

from generic_trainer._core.files import gfile, is_remote
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._carried import read_bundle_file
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._job_file import job_from_json, job_to_json
from generic_trainer.launchers._members import Member
from generic_trainer.launchers._options import TFJobOptions
from generic_trainer.launchers._outcome import Outcome

__all__ = ["JobFolder"]


class JobFolder:
    """Files of one attempt: `job.json`, the user's code, and `<task>-<index>.json` at the end."""

    def __init__(self, path: str) -> None:
        """Names the folder, local or remote."""
        self.path = path

    def write(self, job: Job) -> None:
        """Packs a job for the pods.

        Raises:
            ConfigurationError: the folder is where no pod can see it.
            ModuleFileError: the user's code cannot be read.
        """
        _check_shared(self.path, job.distribution.tfjob or TFJobOptions())
        files = gfile()
        files.makedirs(self.path)
        bundle, code = read_bundle_file(job), job.request.user_code
        if bundle is not None and code.bundle is not None:
            path = os.path.join(self.path, os.path.basename(code.bundle))
            with files.GFile(path, "wb") as file:
                file.write(bundle)
            code = dataclasses.replace(code, bundle=path)
        request = dataclasses.replace(job.request, user_code=code)
        with files.GFile(self._file("job"), "w") as file:
            file.write(job_to_json(dataclasses.replace(job, request=request)))

    def read(self) -> Job:
        """Returns the job."""
        with gfile().GFile(self._file("job"), "r") as file:
            return job_from_json(file.read())

    def write_outcome(self, member: Member, outcome: Outcome) -> None:
        """Notes how a member ended."""
        outcome.write(self._file(f"{member.task}-{member.index}"))

    def outcome(self, member: Member) -> Outcome | None:
        """Returns how a member ended; None if it did not come to saying so."""
        return Outcome.read(self._file(f"{member.task}-{member.index}"))

    def delete(self) -> None:
        """Deletes the folder."""
        if gfile().exists(self.path):
            gfile().rmtree(self.path)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, f"{name}.json")


def _check_shared(path: str, options: TFJobOptions) -> None:
    if is_remote(path):
        return
    mounts = list(options.volumes.values())
    if not any(os.path.commonpath([path, mount]) == os.path.normpath(mount) for mount in mounts):
        raise ConfigurationError(
            f"launcher='tfjob': the pods cannot see the pipeline root, as {path} is neither remote "
            f"nor below one of the mounted volumes ({mounts or 'there are none'}). Use a bucket "
            "(gs://..., s3://...) as pipeline root, or a PersistentVolumeClaim that is mounted "
            "here and there under the same path: TFJobOptions(volumes={'claim': '/path'})."
        )
