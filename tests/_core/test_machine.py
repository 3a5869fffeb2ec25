"""What this machine has and what this process takes of it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from generic_trainer._core import machine
from tests.house import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def run(script: str) -> str:
    """Runs a script in a process of its own, with the module `machine` imported."""
    source = "from generic_trainer._core import machine\n" + textwrap.dedent(script)
    return run_python("-c", source).stdout.strip()


def test_a_limit_of_the_address_space_counts() -> None:
    free = run(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
        print(machine.free_memory_bytes())
        """
    )
    assert 0 < int(free) < 300 << 20


def test_memory_that_is_taken_is_seen() -> None:
    before, peak = run(
        """
        before = machine.resident_memory_mb()
        block = bytearray(64 << 20)
        print(before, machine.peak_memory_mb())
        """
    ).split()
    assert float(peak) > float(before) + 60


def test_an_allocation_beyond_the_limit_fails() -> None:
    script = """
        machine.limit_memory(64)
        try:
            block = bytearray(256 << 20)
        except MemoryError:
            print("no more")
        """
    assert run(script) == "no more"


def test_usage_of_a_group_counts_its_children() -> None:
    source = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c',"
        " 'import time; block = bytearray(48 << 20); time.sleep(60)'], start_new_session=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", source], start_new_session=True)
    try:
        usage = machine.group_usage(child.pid)
        while usage is not None and usage.resident_mb < 48 and child.poll() is None:
            usage = machine.group_usage(child.pid)
        assert usage is not None and usage.resident_mb >= 48
        assert usage.cpu_s >= 0 and usage.main_thread_s > 0
        assert usage.moved_bytes > (usage.main_thread_bytes or 0) > 0
        (other,) = psutil.Process(child.pid).children()
        assert other.cmdline()[-1].endswith("time.sleep(60)")
    finally:
        for process in (*psutil.Process(child.pid).children(), child):
            process.kill()
        child.wait()
    empty = machine.group_usage(child.pid)
    assert empty is not None and empty.resident_mb == 0


@pytest.mark.parametrize(("given", "expected"), [(None, "{}/nvidia/cuda_nvcc"), ("--own", "--own")])
def test_xla_finds_the_cuda_of_wheels(
    given: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia" / "cuda_nvcc").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", given or "")
    if given is None:
        monkeypatch.delenv("XLA_FLAGS")
    machine.find_cuda_of_wheels()
    assert os.environ["XLA_FLAGS"].endswith(expected.format(tmp_path))
