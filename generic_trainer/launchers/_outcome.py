"""What a worker says when it ends, for the launcher to read."""

from __future__ import annotations

import dataclasses
import json
import os
import traceback

from generic_trainer import errors
from generic_trainer._core.files import gfile, is_remote
from generic_trainer.errors import GenericTrainerError
from generic_trainer.launchers._failures import Failure, classify, lost_its_peers

__all__ = ["Outcome", "WorkerTraceback"]


class WorkerTraceback(Exception):
    """The traceback of an error in another process, as the cause of what is raised in this one."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a worker ended.

    Attributes:
        failure: the class of its failure; None when all went well.
        error: name of the error, one of `generic_trainer.errors`.
        message: what the error says.
        trace: its traceback.
        lost_its_peers: whether another worker's end may be the cause.
    """

    failure: Failure | None = None
    error: str = ""
    message: str = ""
    trace: str = ""
    lost_its_peers: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Outcome:
        """Returns the outcome of a worker that ends with an error."""
        failure = classify(error)
        return cls(
            failure=failure,
            error=_public_name(error, failure),
            message=str(error) or type(error).__name__,
            trace="".join(traceback.format_exception(type(error), error, error.__traceback__)),
            lost_its_peers=lost_its_peers(error),
        )

    @property
    def exit_code(self) -> int:
        """What the worker exits with."""
        return 0 if self.failure is None else self.failure.exit_code

    def to_error(self, worker: str | None = None) -> GenericTrainerError:
        """Returns the error to raise in the process that started the worker.

        Args:
            worker: the worker's name, where there are several.
        """
        start = "" if worker is None else f"{worker}: "
        error: GenericTrainerError = getattr(errors, self.error)(start + self.message)
        error.__cause__ = WorkerTraceback(self.trace)
        return error

    def write(self, path: str) -> None:
        """Writes a file, which is there whole or not at all."""
        values = dataclasses.asdict(self)
        values["failure"] = self.failure and self.failure.name
        part = path if is_remote(path) else f"{path}.part"
        with _open(part, "w") as file:
            file.write(json.dumps(values))
        if part != path:
            os.replace(part, path)

    @classmethod
    def read(cls, path: str) -> Outcome | None:
        """Reads what `write` wrote; None when the worker did not come to that."""
        try:
            with _open(path, "r") as file:
                values = json.loads(file.read())
        except Exception:  # what a missing file raises depends on the file system
            return None
        failure = values.pop("failure")
        return cls(failure=failure and Failure[failure], **values)


def _public_name(error: BaseException, failure: Failure) -> str:
    """The name of the error, or of the one of its class where a plain one says too little."""
    name = type(error).__name__
    plain = isinstance(error, failure.error) or failure is Failure.USER_CODE
    known = isinstance(error, GenericTrainerError) and name in errors.__all__
    return name if known and plain else failure.error.__name__


def _open(path: str, mode: str):  # type: ignore[no-untyped-def]
    if is_remote(path):
        return gfile().GFile(path, mode)
    return open(path, mode, encoding="utf-8")
