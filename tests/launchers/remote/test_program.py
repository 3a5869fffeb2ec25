"""The program of a container, run by this process."""

import threading
import time
from pathlib import Path

import pytest

from generic_trainer.launchers import Distribution, TFJobOptions
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import JobFolder
from generic_trainer.launchers._remote import program
from tests.launchers.jobs import is_running, make_job

# Writes its process id, and trains until it is ended.
TRAINS = """
def run_fn(fn_args):
    import os, pathlib, signal
    pathlib.Path({began!r}).write_text(str(os.getpid()))
    signal.pause()
"""


def test_worker_ends_when_the_folder_of_its_job_is_deleted(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "FENCE_POLL_S", 0.1)
    began, folder = tmp_path / "began", JobFolder(str(tmp_path / "job"))
    wanted = Distribution(launcher="tfjob", tfjob=TFJobOptions(image="a/b:1"))
    source = TRAINS.format(began=str(began))
    job = make_job(tmp_path / "node", examples, source, distribution=wanted)
    digest = folder.write(job, "tfjob", [str(tmp_path)])

    def delete() -> None:
        while not (began.exists() and began.read_text()):
            time.sleep(0.05)
        folder.delete()

    other = threading.Thread(target=delete)
    other.start()
    assert program.main([folder.path, digest]) == Failure.LOST.exit_code
    other.join()
    assert not is_running(int(began.read_text()))
