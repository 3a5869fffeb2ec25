"""Every error that GenericTrainer raises on purpose.

::

    GenericTrainerError
    ├── ConfigurationError (ValueError)      wrong arguments to a component, a contract or a command
    ├── ModuleFileError                      the user's module cannot be bundled, imported or called
    ├── DataError                            an input cannot be read, or has the wrong content
    ├── TrainingError                        the user's run_fn raised
    │   ├── WorkerDiskError                  a worker found a disk full
    │   ├── WorkerHangError                  a worker did nothing for too long
    │   ├── WorkerLostError                  a worker died or was preempted; the run may be retried
    │   └── WorkerMemoryError                a worker ran out of memory
    └── ExportError                          run_fn returned, but its export cannot be published
        └── ModelValidationError             the export was checked and failed

A message states the expected value, the actual value, the place and the remedy. Fields hold details
for code; they are None if unknown, and survive pickling to another process::

    except ModelValidationError as error:
        for failure in error.report.failures: ...

Independent checks run together: one error lists all their problems.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "ConfigurationError",
    "DataError",
    "ExportError",
    "GenericTrainerError",
    "ModelValidationError",
    "ModuleFileError",
    "TrainingError",
    "WorkerDiskError",
    "WorkerHangError",
    "WorkerLostError",
    "WorkerMemoryError",
    "raise_problems",
]


class GenericTrainerError(Exception):
    """Base class: catches everything that this package raises on purpose.

    Attributes:
        fields: the names of attributes with further details.
        problems: the sentences of a message that lists several.
    """

    fields: ClassVar[tuple[str, ...]] = ("problems",)
    problems: tuple[str, ...] = ()

    def __init__(self, message: str = "", **details: Any) -> None:
        """Makes an error.

        Args:
            message: see the module.
            **details: values of `fields`; None, or a missing one, means unknown.

        Raises:
            TypeError: this class does not have such a field.
        """
        super().__init__(message)
        for name, value in details.items():
            if name not in self.fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}: {self.fields}")
            if value is not None:
                setattr(self, name, value)

    def _render_traceback_(self) -> list[str]:
        """IPython's display: the message, with lines of the user's code, but without frames.

        Frames of this package, of TFX and of unpacked copies do not help a user.
        """
        return [f"{type(self).__name__}: {self}"]

    @property
    def details(self) -> dict[str, Any]:
        """The fields that are known."""
        return {name: vars(self)[name] for name in self.fields if name in vars(self)}

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), str(self), self.details)


def _rebuild(
    kind: type[GenericTrainerError], message: str, details: dict[str, Any]
) -> GenericTrainerError:
    return kind(message, **details)


class ConfigurationError(GenericTrainerError, ValueError):
    """Arguments are wrong or contradict each other.

    Also a `ValueError`, because `tfx.components.Trainer` raises one for its arguments.

    Attributes:
        path: their file.
    """

    fields = (*GenericTrainerError.fields, "path")
    path: str | None = None


class ModuleFileError(GenericTrainerError):
    """The user's module file cannot be found, bundled, imported or called.

    Attributes:
        path: the file, as the user knows it.
        missing_module: the module that an import did not find.
    """

    fields = (*GenericTrainerError.fields, "missing_module", "path")
    path: str | None = None
    missing_module: str | None = None


class DataError(GenericTrainerError):
    """An input artifact, file or record cannot be read or has the wrong type.

    Attributes:
        path: the file or directory.
        record: number of the record in it, from 0.
        feature: the feature of the record.
    """

    fields = (*GenericTrainerError.fields, "feature", "path", "record")
    path: str | None = None
    record: int | None = None
    feature: str | None = None


class TrainingError(GenericTrainerError):
    """The user's `run_fn` raised; the original exception is the `__cause__`.

    Attributes:
        worker: the name of the worker that failed first, such as `"worker 1"`.
        signal: the name of the signal that ended it, such as `"SIGSEGV"`.
        exit_code: the exit code of its process.
    """

    fields = (*GenericTrainerError.fields, "exit_code", "signal", "worker")
    worker: str | None = None
    signal: str | None = None
    exit_code: int | None = None


class WorkerDiskError(TrainingError):
    """A worker could not write because a disk, or a quota, is full."""


class WorkerHangError(TrainingError):
    """A worker did nothing for too long, or training did not end in time."""


class WorkerLostError(TrainingError):
    """A worker process died or was preempted before it finished."""


class WorkerMemoryError(TrainingError):
    """A worker ran out of memory, or exceeded its limit."""


class ExportError(GenericTrainerError):
    """`run_fn` returned, but its export cannot be published.

    Attributes:
        path: the export.
    """

    fields = (*GenericTrainerError.fields, "path")
    path: str | None = None


class ModelValidationError(ExportError):
    """The exported model failed the checks before publication.

    Attributes:
        report: the outcome of all checks, a `validation.ValidationReport`.
    """

    fields = (*ExportError.fields, "report")
    report: Any = None  # the type is of an upper floor


def raise_problems(
    error: type[GenericTrainerError], subject: str, problems: Sequence[str], **details: Any
) -> None:
    """Raises one `error` that lists all `problems`; does nothing if there are none.

    Args:
        error: the class to raise.
        subject: the start of the message, such as "wrong options".
        problems: one sentence each.
        **details: fields of the error.
    """
    if not problems:
        return
    details["problems"] = tuple(problems)
    if len(problems) == 1:
        raise error(f"{subject}: {problems[0]}", **details)
    listed = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1))
    raise error(f"{subject}: {len(problems)} problems\n{listed}", **details)
