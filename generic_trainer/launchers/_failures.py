"""Classes of failures, with their exit codes and the errors that they become.

| class | exit code | tried again |
|---|---|---|
| wrong user code, wrong arguments | 1 | no |
| wrong data | 2 | no |
| failed validation | 126 | no |
| hang | 127 | no |
| out of memory | 128 | no |
| crash in native code | 139, 134, ... | no |
| lost or preempted worker | 143; 130, 137, 138 | yes |

These are the codes that Kubeflow's training operator tells apart under `restartPolicy: ExitCode`:
130, 137, 138 and 143 are tried again, all others are permanent.
"""

from __future__ import annotations

import enum
import signal
import sys
from collections.abc import Iterator

from generic_trainer.errors import (
    DataError,
    ExportError,
    GenericTrainerError,
    TrainingError,
    WorkerHangError,
    WorkerLostError,
    WorkerMemoryError,
)

_LOST_EXIT_CODES = (130, 137, 138, 143)
# What TensorFlow raises, names in `tf.errors`, in those workers that a lost one leaves behind.
_LOST_PEER_ERRORS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")


class Failure(enum.Enum):
    """The class of a failure; the value is its name in messages."""

    USER_CODE = "wrong user code"
    DATA = "wrong data"
    VALIDATION = "failed validation"
    HANG = "hang"
    MEMORY = "out of memory"
    LOST = "lost worker"

    @property
    def exit_code(self) -> int:
        """What a worker that failed like this exits with."""
        return _EXIT_CODES[self]

    @property
    def error(self) -> type[GenericTrainerError]:
        """The error to raise for a worker that could not say itself what happened."""
        return _ERRORS[self]


_EXIT_CODES = {
    Failure.USER_CODE: 1,
    Failure.DATA: 2,
    Failure.VALIDATION: 126,
    Failure.HANG: 127,
    Failure.MEMORY: 128,
    Failure.LOST: 128 + signal.SIGTERM,
}
_ERRORS: dict[Failure, type[GenericTrainerError]] = {
    Failure.USER_CODE: TrainingError,
    Failure.DATA: DataError,
    Failure.VALIDATION: ExportError,
    Failure.HANG: WorkerHangError,
    Failure.MEMORY: WorkerMemoryError,
    Failure.LOST: WorkerLostError,
}


def classify(error: BaseException) -> Failure:
    """Returns the class of an error; its causes are asked before itself."""
    for kind in (Failure.DATA, Failure.VALIDATION, Failure.HANG, Failure.MEMORY, Failure.LOST):
        if isinstance(error, kind.error):
            return kind
    memory_errors = _tensorflow_errors("ResourceExhaustedError")
    if any(isinstance(cause, (MemoryError, *memory_errors)) for cause in _causes(error)):
        return Failure.MEMORY
    return Failure.USER_CODE


def lost_its_peers(error: BaseException) -> bool:
    """Whether this may be the consequence of another worker's end rather than a cause."""
    kinds = _tensorflow_errors(*_LOST_PEER_ERRORS)
    return any(isinstance(cause, kinds) for cause in _causes(error))


def exit_code(error: BaseException) -> int:
    """Returns the code to exit with after an error."""
    return classify(error).exit_code


def failure_of_exit_code(code: int) -> Failure:
    """Returns the class of a failure of which nothing but the exit code is known.

    Args:
        code: as a shell or Kubernetes tells it: 128 + N after signal N. Negative ones, as Python
            tells them, are understood as well.
    """
    if code < 0:
        code = 128 - code
    if code in _LOST_EXIT_CODES:
        return Failure.LOST
    known = {number: failure for failure, number in _EXIT_CODES.items()}
    return known.get(code, Failure.USER_CODE)


def signal_name(code: int) -> str | None:
    """Returns the name of the signal that an exit code tells of, if it does."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _tensorflow_errors(*names: str) -> tuple[type[BaseException], ...]:
    """Returns classes of `tf.errors`; none where TensorFlow, which takes seconds, is not there."""
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    return tuple(getattr(errors, name) for name in names) if errors is not None else ()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__
