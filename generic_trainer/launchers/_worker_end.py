"""The end of a worker: recorded, sent from process to process, and raised as an error."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer import errors
from generic_trainer._core.files import read_whole, write_whole
from generic_trainer._core.values import from_json, to_json
from generic_trainer.errors import GenericTrainerError, WorkerLostError
from generic_trainer.launchers._failures import Failure, classify, explain, lost_its_peers

_PLAIN = (int, str, tuple)  # types of the fields of errors


class WorkerTraceback(Exception):
    """The end of a worker with the traceback of its error; `args[0]` is the `WorkerEnd`.

    It is the cause of the error in the process that started the worker. Ray carries it between
    machines.
    """

    def __str__(self) -> str:
        return f"\n{self.args[0].traceback}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerEnd:
    """How a worker ended, as plain values.

    Attributes:
        task: name of the worker, such as `"worker 1"`; None if the failure is not of a worker.
        failure: the class of its failure; None after success.
        error: name of the error, one of `generic_trainer.errors`; by default that of `failure`.
        message: of the error.
        traceback: that of the error, as text.
        fields: other details of the error, such as the `exit_code` of the process and the name of
            the `signal` that ended it, if known; see `GenericTrainerError.fields`.
        may_be_consequence: whether another worker's end may be the cause.
    """

    task: str | None = None
    failure: Failure | None = None
    error: str = ""
    message: str = ""
    traceback: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    may_be_consequence: bool = False

    @classmethod
    def of(cls, error: BaseException, task: str | None = None) -> WorkerEnd:
        """Returns the end of a worker that ends with an error."""
        failure = classify(error)
        details = error.details if isinstance(error, GenericTrainerError) else {}
        raised = _raised_elsewhere(error)
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        return cls(
            task=task,
            failure=failure,
            error=_public_name(error, failure),
            message=explain(error),
            # The frames above the traceback of the other process are not the user's.
            traceback=raised.traceback if raised else "".join(lines),
            # A report, for example, would be pickled, and the other process does not unpickle.
            fields={name: value for name, value in details.items() if type(value) in _PLAIN},
            may_be_consequence=lost_its_peers(error) or bool(raised and raised.may_be_consequence),
        )

    @property
    def status(self) -> int:
        """The exit code of the worker's process."""
        return 0 if self.failure is None else self.failure.exit_code

    def to_error(self, *, named: bool) -> GenericTrainerError:
        """Returns the error to raise in the process that started the worker.

        Args:
            named: whether there are several workers, so that the message has to name the worker.
        """
        usual = (self.failure or Failure.USER_CODE).error
        kind: type[GenericTrainerError] = getattr(errors, self.error, usual)
        known = {**self.fields, "worker": self.task}
        start = f"{self.task}: " if named and self.task else ""
        details = {name: value for name, value in known.items() if name in kind.fields}
        error = kind(start + self.message, **details)
        if self.traceback:
            error.__cause__ = WorkerTraceback(self)
        return error

    def write(self, path: str) -> None:
        """Writes a file, local or remote, atomically."""
        failure = self.failure and self.failure.name
        write_whole(path, to_json({**vars(self), "failure": failure}))

    @classmethod
    def read(cls, path: str) -> WorkerEnd | None:
        """Reads the result of `write`; None if the worker did not write it."""
        try:
            values = from_json(read_whole(path).decode(), is_ours=False)
            failure = values["failure"]
            return cls(**{**values, "failure": failure and Failure[failure]})
        except Exception:  # the error for a missing file depends on the file system
            return None


def root_cause(failed: Sequence[WorkerEnd]) -> WorkerEnd:
    """Returns the failure that was the cause of the others.

    1. A failure that may be the consequence of another worker's end comes last.
    2. An error comes before a loss: a worker may be stopped because another one failed.
    3. Of several alike it is the first.
    """
    return min(failed, key=lambda end: (end.may_be_consequence, end.failure is Failure.LOST))


def error_of(failed: Sequence[WorkerEnd], *, named: bool) -> GenericTrainerError:
    """Returns the error for an attempt in which at least one worker failed.

    Args:
        failed: the failures, the first one first.
        named: see `WorkerEnd.to_error`.
    """
    cause = root_cause(failed)
    error = cause.to_error(named=named)
    if not cause.may_be_consequence or cause.fields.get("signal") or cause.failure is Failure.LOST:
        return error
    # None of them reported the root cause.
    lost = WorkerLostError(f"The workers have lost each other. {error}", worker=cause.task)
    lost.__cause__ = error
    return lost


def _raised_elsewhere(error: BaseException | None) -> WorkerEnd | None:
    """Returns the end of the worker in another process that an error was made of, if it was."""
    while error is not None:
        if isinstance(error, WorkerTraceback):
            end: WorkerEnd = error.args[0]
            return end
        error = error.__cause__
    return None


def _public_name(error: BaseException, failure: Failure) -> str:
    """Returns the name of the error, or that of its class if the error is not public."""
    name = type(error).__name__
    plain = isinstance(error, failure.error) or failure is Failure.USER_CODE
    known = isinstance(error, GenericTrainerError) and name in errors.__all__
    return name if known and plain else failure.error.__name__
