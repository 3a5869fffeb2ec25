"""Errors, classes and exit codes."""

import errno
import signal

import pytest
import tensorflow as tf

from generic_trainer import errors
from generic_trainer._core.signals import PREEMPTED_EXIT_CODE
from generic_trainer.launchers import Failure, exit_code
from generic_trainer.launchers._failures import classify, failure_of_exit_code, lost_its_peers


def exhausted(message: str) -> tf.errors.OpError:
    return tf.errors.ResourceExhaustedError(None, None, message)


# What Kubeflow's training operator tries again under restartPolicy ExitCode.
RETRIED_BY_KUBERNETES = {130, 137, 138, 143}


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (errors.ModuleFileError(), Failure.USER_CODE),
        (errors.ConfigurationError(), Failure.USER_CODE),
        (errors.TrainingError(), Failure.USER_CODE),
        (KeyboardInterrupt(), Failure.USER_CODE),
        (errors.DataError(), Failure.DATA),
        (errors.ExportError(), Failure.VALIDATION),
        (errors.ModelValidationError(), Failure.VALIDATION),
        (errors.WorkerHangError(), Failure.HANG),
        (errors.WorkerMemoryError(), Failure.MEMORY),
        (errors.WorkerDiskError(), Failure.DISK),
        (OSError(errno.ENOSPC, "No space left on device"), Failure.DISK),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), Failure.DISK),
        (OSError(errno.EFBIG, "File too large"), Failure.DISK),
        (tf.errors.OutOfRangeError(None, None, "/tmp/part; File too large"), Failure.DISK),
        (tf.errors.OutOfRangeError(None, None, "End of sequence"), Failure.USER_CODE),
        (OSError(errno.ENOENT, "No such file or directory"), Failure.USER_CODE),
        (exhausted("/tmp/part; No space left on device"), Failure.DISK),
        (exhausted("OOM when allocating tensor with shape [65536,65536]"), Failure.MEMORY),
        (MemoryError(), Failure.MEMORY),
        (errors.WorkerLostError(), Failure.LOST),
    ],
)
def test_every_error_has_a_class(error: BaseException, failure: Failure) -> None:
    assert classify(error) is failure
    assert exit_code(error) == failure.exit_code


@pytest.mark.parametrize("name", ["Aborted", "Cancelled", "DeadlineExceeded", "Unavailable"])
def test_only_in_a_cluster_can_other_tasks_be_missed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = getattr(tf.errors, f"{name}Error")(None, None, "gone")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert not lost_its_peers(error)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    assert lost_its_peers(error)
    assert not lost_its_peers(ValueError("gone"))


def test_the_cause_decides() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise errors.TrainingError("run_fn failed") from error
    except errors.TrainingError as error:
        assert classify(error) is Failure.MEMORY


def test_only_lost_workers_are_retried_here_and_in_kubernetes() -> None:
    for failure in Failure:
        assert (failure.exit_code in RETRIED_BY_KUBERNETES) == (failure is Failure.LOST)


@pytest.mark.parametrize("failure", Failure)
def test_exit_code_tells_the_class(failure: Failure) -> None:
    assert failure_of_exit_code(failure.exit_code) is failure


@pytest.mark.parametrize("code", sorted(RETRIED_BY_KUBERNETES))
def test_retried_codes_mean_a_lost_worker(code: int) -> None:
    assert failure_of_exit_code(code) is Failure.LOST
    assert failure_of_exit_code(128 - code) is Failure.LOST


@pytest.mark.parametrize("code", [1, 126, 139, 134, 77, -signal.SIGSEGV])
def test_all_other_codes_are_permanent(code: int) -> None:
    assert failure_of_exit_code(code) is not Failure.LOST


def test_a_preempted_worker_exits_as_lost() -> None:
    assert Failure.LOST.exit_code == PREEMPTED_EXIT_CODE
