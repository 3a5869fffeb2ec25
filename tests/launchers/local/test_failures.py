"""Workers that crash, hang, are killed or take too much: each is reported as what it is."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.errors import (
    ConfigurationError,
    GenericTrainerError,
    TrainingError,
    WorkerDiskError,
    WorkerHangError,
    WorkerLostError,
    WorkerMemoryError,
)
from tests.helpers import run_fn
from tests.launchers import jobs
from tests.launchers.jobs import Run
from tests.processes import tf_config, wait_until


def test_segmentation_fault_shows_where_it_was(run: Run) -> None:
    with pytest.raises(TrainingError, match="SIGSEGV") as caught:
        run("import ctypes\ndef run_fn(fn_args):\n    ctypes.string_at(0)", max_failures=3)
    assert type(caught.value) is TrainingError
    assert "in run_fn" in str(caught.value)
    assert (caught.value.worker, caught.value.signal) == ("worker 0", "SIGSEGV")


NO_GPU = {"require_gpu": True, "env": {"CUDA_VISIBLE_DEVICES": "-1"}}
FILLS_MEMORY = "held = b'x' * (1600 << 20); time.sleep(600)"


@pytest.mark.parametrize(
    ("body", "fields", "error", "message"),
    [
        ("os._exit(0)", {"max_failures": 3}, TrainingError, r"exit status 0.*os._exit"),
        ("raise Odd('fits nowhere')", {}, GenericTrainerError, "fits nowhere"),
        ("pass", NO_GPU, ConfigurationError, "require_gpu: TensorFlow sees no GPU"),
        (FILLS_MEMORY, {"memory_mb_per_worker": 1500}, WorkerMemoryError, r"used \d+ MiB.*=1500"),
    ],
    ids=["exit behind the back of run_fn", "odd error", "no GPU", "too much memory"],
)
def test_failure_is_reported_as_what_it_is(
    run: Run, body: str, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    source = "import os, time\nclass Odd(BaseException): pass\ndef run_fn(fn_args): "
    with pytest.raises(error, match=message):
        run(source + body, **fields)


def test_worker_alone_has_no_others_that_it_could_miss(run: Run, tmp_path: Path) -> None:
    body = 'print("tried")\nraise tf.errors.UnavailableError(None, None, "the database is away")'
    with pytest.raises(TrainingError, match="the database is away") as caught:
        run(run_fn(body), max_failures=3)
    assert type(caught.value) is TrainingError
    assert (tmp_path / "model_run/1/training.log").read_text().count("\ntried") == 1


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("open('/dev/full', 'w', 1).write('x\\n')", "No space left.*TMPDIR"),
        ("tf.io.write_file('/dev/full', 'x' * 100_000)", "No space left.*TMPDIR"),
        # Not even the error can be noted.
        ("os.replace = full; full()", "could not write its result into .*TMPDIR"),
        ("os.replace = failing", "could not write its result .*Input/output error"),
    ],
    ids=["Python", "TensorFlow", "temporary directory", "failing temporary directory"],
)
def test_full_disk_is_told_as_one(run: Run, write: str, message: str) -> None:
    body = f"""
    def full(*paths):
        raise OSError(28, "No space left on device")

    def failing(*paths):
        raise OSError(5, "Input/output error")

    {write}
    """
    with pytest.raises(WorkerDiskError, match=f"(?s){message}"):
        run(run_fn(body), max_failures=3)


@pytest.mark.parametrize(
    ("body", "limit", "message"),
    [
        ("event.wait()", {"heartbeat_s": 2.0}, r"for 2 s \(heartbeat_s\)"),
        # Looking again and again computes nothing.
        ("while not event.is_set(): time.sleep(0.3)", {"heartbeat_s": 1.0}, "computed, read or"),
        ("while True: time.sleep(0.01)", {"timeout_s": 15.0}, "timeout_s=15 "),
    ],
    ids=["waiting", "polling", "time limit"],
)
def test_hang_shows_the_stack(run: Run, body: str, limit: dict[str, float], message: str) -> None:
    body = f"""
    def wait_here(event):
        {body}

    wait_here(threading.Event())
    """
    with pytest.raises(WorkerHangError, match=message) as caught:
        run(run_fn(body), **limit)
    assert "in wait_here" in str(caught.value)


def test_a_program_that_run_fn_waits_for_is_a_sign_of_life(run: Run) -> None:
    body = """
    busy = "import time\\nwhile time.process_time() < 2.5: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    """
    run(run_fn(body), heartbeat_s=1.0)


def test_what_a_worker_has_started_ends_with_it(run: Run) -> None:
    body = """
    started = [subprocess.Popen(["sleep", "600"], start_new_session=new) for new in (False, True)]
    print("left behind:", *(process.pid for process in started))
    """
    job = run(run_fn(body))
    pids = jobs.log(job).split("left behind:")[1].split()[:2]
    assert not any(jobs.is_running(int(pid)) for pid in pids)


def test_run_fn_may_close_its_output(run: Run) -> None:
    body = """
    print("said before")
    sys.stdout.close(); sys.stderr.close(); os.closerange(0, 3)
    """
    job = run(run_fn(body))
    assert jobs.exported(job) == ["Format-Serving"]
    assert "said before" in jobs.log(job)
    with pytest.raises(TrainingError, match="division by zero"):
        run(run_fn(f"{body}1 / 0"))


@pytest.mark.parametrize("wanted", [{"num_workers": 2}, {"launcher": "ray"}], ids=str)
def test_worker_of_a_cluster_starts_no_cluster(
    run: Run, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(index=1, worker=2))
    with pytest.raises(ConfigurationError, match=r"it is worker 1 of .*Use launcher='in_process'"):
        run("def run_fn(fn_args): pass", **wanted)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_cluster_of_one_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config("chief", chief=1))
    body = """
    from generic_trainer.training import distributed, is_chief
    print("worker", distributed.rank(), "of", distributed.size(), "is chief:", is_chief())
    """
    job = run(run_fn(body), num_workers=num_workers)
    assert jobs.log(job).count(f"of {num_workers} is chief: True\n") == 1
    assert jobs.log(job).count(f"of {num_workers} is chief: False\n") == num_workers - 1
    assert jobs.exported(job) == ["Format-Serving"]


def test_random_numbers_differ_between_workers_of_the_same_fork_server(run: Run) -> None:
    source = run_fn('import numpy as np; print("drawn:", random.random(), np.random.uniform())')
    log = jobs.log(run(source)) + jobs.log(run(source))
    drawn = [line.split()[1:] for line in log.splitlines() if line.startswith("drawn:")]
    assert len({number for numbers in drawn for number in numbers}) == 4


@pytest.mark.parametrize(
    ("handler", "fields", "message", "saves"),
    [
        ("save", {"max_failures": 3}, "SIGTERM: this process is to stop", True),
        ("signal.SIG_IGN", {"preemption_grace_s": 0.5}, r"worker 0 took longer than 0\.5", False),
    ],
    ids=["saves", "killed after its grace"],
)
def test_termination_lets_the_worker_save_and_end(
    run: Run, tmp_path: Path, handler: str, fields: dict[str, Any], message: str, saves: bool
) -> None:
    """Only the main thread can be told to stop, so another one tells it."""
    ready = tmp_path / "ready"
    watcher = threading.Thread(target=terminate_when_there, args=(ready,))
    watcher.start()
    body = f"""
    def save(*_):
        print("saved")
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, {handler})
    open({str(ready)!r}, "w").close()
    while True:
        time.sleep(0.1)
    """
    with pytest.raises(WorkerLostError, match=message):
        run(run_fn(body), **fields)
    watcher.join()
    assert ("\nsaved\n" in (tmp_path / "model_run/1/training.log").read_text()) == saves
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def terminate_when_there(path: Path) -> None:
    """Sends SIGTERM to this process as soon as a file is there."""
    if wait_until(path.exists):
        os.kill(os.getpid(), signal.SIGTERM)
