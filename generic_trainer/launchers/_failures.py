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

These are the codes that Kubeflow's training operator distinguishes under `restartPolicy: ExitCode`:
130, 137, 138 and 143 are tried again, all others are permanent. 74 is `EX_IOERR` of sysexits(3).
"""

import enum
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from generic_trainer import errors
from generic_trainer._core.cluster import is_in_a_cluster
from generic_trainer._core.files import DISK_FULL

_LOST_EXIT_CODES = (130, 137, 138, 143)
# Names in `tf.errors` of errors that TensorFlow raises in the peers of a lost worker.
_LOST_PEER_ERRORS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")


class Failure(enum.Enum):
    """The class of a failure.

    Attributes:
        text: its name in messages.
        exit_code: of a worker with this failure.
        error: the error to raise for a worker that did not report its own.
    """

    USER_CODE = "wrong user code", 1, errors.TrainingError
    DATA = "wrong data", 2, errors.DataError
    DISK = "full disk", os.EX_IOERR, errors.WorkerDiskError
    VALIDATION = "failed validation", 126, errors.ExportError
    HANG = "hang", 127, errors.WorkerHangError
    MEMORY = "out of memory", 128, errors.WorkerMemoryError
    LOST = "lost worker", 128 + signal.SIGTERM, errors.WorkerLostError

    def __init__(self, text: str, exit_code: int, error: type[errors.GenericTrainerError]) -> None:
        self.text = text
        self.exit_code = exit_code
        self.error = error


def classify(error: BaseException) -> Failure:
    """Returns the class of an error, with its causes taken into account."""
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
    """Returns the message of an error, with a remedy for errors of Python or TensorFlow."""
    message = str(error) or type(error).__name__
    if classify(error) is not Failure.DISK or isinstance(error, errors.WorkerDiskError):
        return message
    return (
        f"{message.rstrip()}\nThe disk is full: make room where this was written. Checkpoints, "
        "logs and exports are below the pipeline root, caches in the temporary directory (TMPDIR). "
        "The next run goes on from the last checkpoint, if run_fn writes any."
    )


def lost_its_peers(error: BaseException) -> bool:
    """Returns whether an error may be the consequence of another worker's end, not a cause."""
    kinds = _tensorflow_errors(*_LOST_PEER_ERRORS)
    return any(isinstance(cause, kinds) for cause in _causes(error)) and is_in_a_cluster()


def exit_code(error: BaseException) -> int:
    """Returns the code to exit with after an error."""
    return classify(error).exit_code


def failure_of_exit_code(code: int) -> Failure:
    """Returns the class of a failure, judged by its exit code alone.

    Args:
        code: that of a shell or Kubernetes, 128 + N after signal N, or that of Python, -N.
    """
    known = {failure.exit_code: failure for failure in Failure}
    known |= dict.fromkeys(_LOST_EXIT_CODES, Failure.LOST)
    return known.get(128 - code if code < 0 else code, Failure.USER_CODE)


def signal_name(code: int) -> str | None:
    """Returns the name of the signal in an exit code; None if it has none."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _is_of_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    # TensorFlow has one error for this and for a lack of memory, without a number, and that of the
    # end of a dataset for a file that is too large.
    if isinstance(error, _tensorflow_errors("ResourceExhaustedError", "OutOfRangeError")):
        return any(os.strerror(number) in error.message for number in DISK_FULL)
    return False


def _tensorflow_errors(*names: str) -> tuple[Any, ...]:
    """Returns classes of `tf.errors`; none if TensorFlow is not imported, which takes seconds."""
    theirs = getattr(sys.modules.get("tensorflow"), "errors", None)
    return tuple(getattr(theirs, name) for name in names) if theirs is not None else ()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__
