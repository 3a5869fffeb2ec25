"""The process that has started the workers is stopped or killed: nothing is left running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.house import ROOT
from tests.launchers import jobs
from tests.processes import wait_until

# Workers that tell who they and their children are, save when told to, and never end by themselves.
WAITS = """
import os, signal, subprocess, sys, time

def run_fn(fn_args):
    child = subprocess.Popen(["sleep", "600"])
    signal.signal(signal.SIGTERM, save)
    with open(fn_args.model_run_dir + f"/running-{os.getpid()}.part", "w") as file:
        file.write(f"{os.getpid()} {child.pid} {os.getppid()}")
    os.rename(file.name, file.name.removesuffix(".part"))
    while True:
        time.sleep(0.05)

def save(*_):
    print("saved")
    sys.exit()
"""
LAUNCHES = """
import signal, sys
from pathlib import Path
from generic_trainer.launchers import Distribution, launch
from tests.launchers import jobs

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
root, examples, workers = sys.argv[1:]
distribution = Distribution(launcher="local", num_workers=int(workers), preemption_grace_s=20)
source = Path(root, "source.py").read_text()
launch(jobs.make_job(Path(root), Path(examples), source, distribution=distribution))
"""


class Launched:
    """A process that has launched workers which are all in `run_fn`."""

    def __init__(self, root: Path, examples: Path, workers: int) -> None:
        (root / "source.py").write_text(WAITS)
        self.root = root
        with open(root / "output", "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", LAUNCHES, root, examples, str(workers)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        while len(self._told()) < workers:
            assert self.process.poll() is None, self.output()
            time.sleep(0.05)
        # Workers, their children and the fork server.
        self.pids = {int(pid) for path in self._told() for pid in path.read_text().split()}

    def _told(self) -> list[Path]:
        return [path for path in self.root.glob("model_run/1/running-*") if not path.suffix]

    def output(self) -> str:
        return (self.root / "output").read_text()

    def all_end(self) -> bool:
        """Waits until none of them runs."""
        return wait_until(lambda: not any(map(jobs.is_running, self.pids)))


def test_killed_launcher_leaves_no_orphans(examples: Path, tmp_path: Path) -> None:
    launched = Launched(tmp_path, examples, 1)
    assert len(launched.pids) == 3
    launched.process.kill()
    launched.process.wait()
    assert launched.all_end()


@pytest.mark.campaign("_core", "launchers")
def test_killed_fork_server_leaves_no_workers(examples: Path, tmp_path: Path) -> None:
    launched = Launched(tmp_path, examples, 1)
    (told,) = launched._told()
    worker, _, server = (int(pid) for pid in told.read_text().split())
    launched.pids = {worker, server}
    told.unlink()
    os.kill(server, signal.SIGKILL)
    assert launched.all_end()
    while not launched._told():  # max_failures allows another attempt
        assert launched.process.poll() is None, launched.output()
        time.sleep(0.05)
    assert "was killed from outside" in launched.output()
    launched.process.kill()
    launched.process.wait()


@pytest.mark.campaign("_core", "launchers")
def test_terminated_launcher_lets_all_workers_save(examples: Path, tmp_path: Path) -> None:
    launched = Launched(tmp_path, examples, 2)
    launched.process.terminate()
    launched.process.wait(60.0)
    assert launched.all_end()
    for worker in ("worker 0", "worker 1"):
        assert f"[{worker}] saved" in launched.output()
    assert "WorkerLostError: SIGTERM: this process is to stop" in launched.output()
