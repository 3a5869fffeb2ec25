"""Classes of failures, with their exit codes and the errors that they become.

| class | exit code | tried again |
|---|---|---|
| wrong user code, wrong arguments | 1 | no |
| wrong data | 2 | no |
| full disk | 74 | no |
| failed validation | 126 | no |
| hang | 127 | no |
| out of memory | 128 | no |
| crash in native code | 139, 134, ... | no |
| lost or preempted worker | 143; 130, 137, 138 | yes |

These are the codes that Kubeflow's training operator tells apart under `restartPolicy: ExitCode`:
130, 137, 138 and 143 are tried again, all others are permanent. 74 is `EX_IOERR` of sysexits(3).
"""

from __future__ import annotations

import enum
import errno
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from generic_trainer._core.cluster import is_in_a_cluster
from generic_trainer.errors import (
    DataError,
    ExportError,
    GenericTrainerError,
    TrainingError,
    WorkerDiskError,
    WorkerHangError,
    WorkerLostError,
    WorkerMemoryError,
)

_LOST_EXIT_CODES = (130, 137, 138, 143)
# What TensorFlow raises, names in `tf.errors`, in those workers that a lost one leaves behind.
_LOST_PEER_ERRORS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Failure(enum.Enum):
    """The class of a failure; the value is its name in messages."""

    USER_CODE = "wrong user code"
    DATA = "wrong data"
    DISK = "full disk"
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
    Failure.DISK: os.EX_IOERR,
    Failure.VALIDATION: 126,
    Failure.HANG: 127,
    Failure.MEMORY: 128,
    Failure.LOST: 128 + signal.SIGTERM,
}
_ERRORS: dict[Failure, type[GenericTrainerError]] = {
    Failure.USER_CODE: TrainingError,
    Failure.DATA: DataError,
    Failure.DISK: WorkerDiskError,
    Failure.VALIDATION: ExportError,
    Failure.HANG: WorkerHangError,
    Failure.MEMORY: WorkerMemoryError,
    Failure.LOST: WorkerLostError,
}


def classify(error: BaseException) -> Failure:
    """Returns the class of an error; its causes are asked before itself."""
    for kind in Failure:
        if kind is not Failure.USER_CODE and isinstance(error, kind.error):
            return kind
    if any(map(_is_of_full_disk, _causes(error))):
        return Failure.DISK
    memory_errors = _tensorflow_errors("ResourceExhaustedError")
    if any(isinstance(cause, (MemoryError, *memory_errors)) for cause in _causes(error)):
        return Failure.MEMORY
    return Failure.USER_CODE


def explain(error: BaseException) -> str:
    """Returns what an error says, with the remedy where it is Python's or TensorFlow's own."""
    said = str(error) or type(error).__name__
    if classify(error) is not Failure.DISK or isinstance(error, WorkerDiskError):
        return said
    return (
        f"{said.rstrip()}\nThe disk is full: make room where this was written. Checkpoints, logs "
        "and exports lie below the pipeline root, caches in the temporary directory (TMPDIR). The "
        "next run goes on from the last checkpoint, if run_fn writes any."
    )


def lost_its_peers(error: BaseException) -> bool:
    """Whether this may be the consequence of another worker's end rather than a cause."""
    kinds = _tensorflow_errors(*_LOST_PEER_ERRORS)
    return any(isinstance(cause, kinds) for cause in _causes(error)) and is_in_a_cluster()


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


def _is_of_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    # TensorFlow has one error for this and for a lack of memory, without a number.
    if isinstance(error, _tensorflow_errors("ResourceExhaustedError")):
        return any(os.strerror(number) in error.message for number in _FULL)
    return False


def _tensorflow_errors(*names: str) -> tuple[Any, ...]:
    """Returns classes of `tf.errors`; none where TensorFlow, which takes seconds, is not there."""
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    return tuple(getattr(errors, name) for name in names) if errors is not None else ()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__
