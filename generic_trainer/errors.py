"""Every error that GenericTrainer raises on purpose.

::

    GenericTrainerError
    ├── ConfigurationError (ValueError)      wrong arguments to a component, a contract or a command
    ├── ModuleFileError                      the user's module cannot be bundled, imported or called
    ├── DataError                            an input cannot be read, or is not what it claims to be
    ├── TrainingError                        the user's run_fn raised
    │   ├── WorkerHangError                  a worker did nothing for too long
    │   ├── WorkerLostError                  a worker died or was preempted; the run may be retried
    │   └── WorkerMemoryError                a worker ran out of memory
    └── ExportError                          run_fn ended well, its export cannot be published
        └── ModelValidationError             the export was checked and failed

A message says what was expected, what was found, where, and what to do about it. Whatever can be
checked together is checked together: one error lists all the problems (see `raise_problems`).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ConfigurationError",
    "DataError",
    "ExportError",
    "GenericTrainerError",
    "ModelValidationError",
    "ModuleFileError",
    "TrainingError",
    "WorkerHangError",
    "WorkerLostError",
    "WorkerMemoryError",
    "raise_problems",
]


class GenericTrainerError(Exception):
    """Base class: catches everything that this package raises on purpose."""


class ConfigurationError(GenericTrainerError, ValueError):
    """Arguments are wrong or contradict each other.

    Also a `ValueError`, because that is what `tfx.components.Trainer` raises for its arguments.
    """


class ModuleFileError(GenericTrainerError):
    """The user's module file cannot be found, bundled, imported or called."""


class DataError(GenericTrainerError):
    """An input artifact, file or record cannot be read or has the wrong type."""


class TrainingError(GenericTrainerError):
    """The user's `run_fn` raised; the original exception is the `__cause__`."""


class WorkerHangError(TrainingError):
    """A worker did nothing for too long, or training did not end in time."""


class WorkerLostError(TrainingError):
    """A worker process died or was preempted before it finished."""


class WorkerMemoryError(TrainingError):
    """A worker ran out of memory, or took more than it was given."""


class ExportError(GenericTrainerError):
    """`run_fn` returned, but what it exported cannot be published."""


class ModelValidationError(ExportError):
    """The exported model failed the checks that stand before publishing."""


def raise_problems(error: type[GenericTrainerError], subject: str, problems: Sequence[str]) -> None:
    """Raises one `error` that lists all `problems`; does nothing when there are none.

    Args:
        error: the class to raise.
        subject: what the problems belong to, the start of the message.
        problems: one sentence each.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise error(f"{subject}: {problems[0]}")
    listed = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1))
    raise error(f"{subject}: {len(problems)} problems\n{listed}")
