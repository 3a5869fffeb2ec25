"""A job on its way to the cluster."""

from __future__ import annotations

import dataclasses
import os

from generic_trainer.launchers._carried import read_bundle_file, with_carried_environment
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._job_file import job_from_json, job_to_json

__all__ = ["Payload"]


@dataclasses.dataclass(frozen=True)
class Payload:
    """All that a worker needs to know, as plain values.

    Attributes:
        job: the job as JSON.
        bundle: the file with the user's code; None when it is installed on the workers.
    """

    job: str
    bundle: bytes | None

    @classmethod
    def of(cls, job: Job) -> Payload:
        """Packs a job.

        Raises:
            ModuleFileError: the bundle cannot be read.
        """
        return cls(job_to_json(with_carried_environment(job)), read_bundle_file(job))

    def unpack(self, directory: str) -> Job:
        """Returns the job, with the user's code in a file of this machine.

        Args:
            directory: an existing local directory.
        """
        job = job_from_json(self.job)
        code = job.request.user_code
        if self.bundle is None or code.bundle is None:
            return job
        path = os.path.join(directory, os.path.basename(code.bundle))
        with open(path, "wb") as file:
            file.write(self.bundle)
        code = dataclasses.replace(code, bundle=path)
        return dataclasses.replace(job, request=dataclasses.replace(job.request, user_code=code))
