"""Tests of `generic_trainer._core.output`: all output is shown live and kept in a file."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from generic_trainer._core.output import kept_output
from generic_trainer._core.output_copier import Stream
from tests.house import ROOT
from tests.processes import wait_until

START = """
import ctypes, os, signal, subprocess, sys, time
import psutil
from generic_trainer._core import output
from generic_trainer._core.output import kept_output

log = sys.argv[1]
output._STUCK_S = 2.0

def wait_for(text):
    while not os.path.exists(log) or text not in open(log).read():
        time.sleep(0.01)

def copier():
    children, found = psutil.Process().children(), []
    while not found:  # a process has no command line yet for a moment after it was started
        found = [each.pid for each in children if "copier" in str(each.cmdline())]
    return found[0]

with kept_output(log):
"""


def run(tmp_path: Path, body: str, after: str = "") -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs a script inside `kept_output`; returns what it showed, and what was kept."""
    log = tmp_path / "training.log"
    source = START + textwrap.indent(textwrap.dedent(body), "    ") + textwrap.dedent(after)
    own = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", source, str(log)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **own},
        timeout=300,
    )
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["training.log"]
    return done, log.read_text()


def test_a_status_is_shown_below_the_output_of_a_terminal_alone(tmp_path: Path) -> None:
    script = """
    import os, time
    from generic_trainer._core.output import kept_output, show_status

    def pause():
        time.sleep(0.5)  # longer than the copying process sleeps

    with kept_output(os.path.abspath("training.log")):
        print("first")
        show_status("half done")
        pause()
        print("12/100 of a bar", end="", flush=True)
        pause()
        show_status("nearly done")
        pause()
        print(", 100/100")
        pause()
    show_status("not shown after the end")
    print("end")
    """
    terminal, end = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=end, stderr=end, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300, check=True,
    )  # fmt: skip
    os.close(end)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    erased = "\r\x1b[K"
    assert shown.replace("\r\n", "\n") == (
        f"first\nhalf done{erased}12/100 of a bar, 100/100\nnearly done{erased}end\n"
    )
    assert (tmp_path / "training.log").read_text() == "first\n12/100 of a bar, 100/100\n"
    assert done.returncode == 0


def test_all_is_kept_and_shown_on_its_stream(tmp_path: Path) -> None:
    body = """
    print("printed")
    os.write(2, b"written\\n")
    subprocess.run(["sh", "-c", "echo by a child; echo its error >&2"])
    wait_for("its error")
    subprocess.run(["sh", "-c", "echo again > /dev/stderr"])  # which empties a file
    wait_for("again")
    block = b"x" * 1023 + b"\\n"
    held = ctypes.PyDLL(None)  # which keeps Python's lock, unlike CDLL
    held.write(1, block * (20 << 10), len(block) * (20 << 10))
    print("the end")
    """
    done, kept = run(tmp_path, body)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["printed", "by a child"]
    assert len(lines) == 3 + (20 << 10) and lines[-1] == "the end"
    assert done.stderr.splitlines() == ["written", "its error", "again"]
    assert sorted(kept.splitlines()) == sorted([*lines, *done.stderr.splitlines()])


def test_only_whole_lines_are_copied_where_there_are_some(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("source", "kept", "shown")]
    source, kept, shown = (os.open(path, os.O_RDWR | os.O_CREAT) for path in paths)
    stream = Stream(source, kept=kept, shown=shown)

    def copied(written: bytes, **options: bool) -> bytes:
        before = stream.position
        os.pwrite(source, written, os.fstat(source).st_size)
        stream.copy(**options)
        return os.pread(kept, 1 << 20, before)

    assert copied(b"one\ntw", by_line=True) == b"one\n"
    assert copied(b"o\nthree\nfo", by_line=True) == b"two\nthree\n"
    assert copied(b"", by_line=True) == b"fo"  # which may be a question, or moving progress
    long = b"u" * (1 << 18) + b"r\n"  # longer than what is read at once
    assert copied(long + b"fi", by_line=True) == long
    assert copied(b"ve", by_line=False) == b"five"
    assert copied(b"x" * (2 << 20)) and os.fstat(source).st_blocks * 512 < 1 << 20  # released
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "shown").read_bytes()
    for descriptor in (source, kept, shown):
        os.close(descriptor)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "ctypes.string_at(0)"])
def test_last_words_before_a_crash_are_kept_and_shown(tmp_path: Path, end: str) -> None:
    done, kept = run(tmp_path, f"print('last words', copier()); {end}")
    assert done.returncode < 0
    assert done.stdout == kept
    assert kept.startswith("last words")
    copier = int(kept.split()[-1])  # it has closed standard output, and ends
    assert wait_until(lambda: not psutil.pid_exists(copier))


def test_daemon_of_a_killed_process_keeps_no_process_of_ours(tmp_path: Path) -> None:
    body = """
    daemon = subprocess.Popen(["sh", "-c", "while :; do echo again; done"], start_new_session=True)
    print("daemon:", daemon.pid, flush=True)
    wait_for("daemon:")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done, kept = run(tmp_path, body)  # whose standard output only the copier has
    (line,) = [line for line in kept.splitlines() if line.startswith("daemon:")]
    os.kill(int(line.split()[1]), signal.SIGKILL)
    assert done.returncode == -signal.SIGKILL
    assert "again" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_nothing_is_lost_when_the_copying_process_is_sent_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    body = f"""
    print("before", flush=True)
    wait_for("before")
    os.kill(copier(), {int(number)})
    for line in range(10_000):
        print("after", line)
    """
    done, kept = run(tmp_path, body, "print('it goes on')")
    assert done.returncode == 0, done.stderr
    lines = [f"after {line}" for line in range(10_000)]
    # The part of a kill may be kept twice, or kept and not shown: it may have been kept already,
    # and not yet noted as copied. Here only "before" can be in that part.
    assert [*dict.fromkeys(kept.splitlines())] == ["before", *lines]
    *shown, last = done.stdout.splitlines()
    assert last == "it goes on"
    if number != signal.SIGSTOP:  # who is stopped, or stuck, is not waited for to show it
        assert shown[-len(lines) :] == lines


def test_daemon_keeps_nothing_of_ours_and_writes_on(tmp_path: Path) -> None:
    body = """
    source = "while ! test -e end; do sleep 0.02; done; echo too late && echo ok > written"
    daemon = subprocess.Popen(["sh", "-c", source], start_new_session=True)
    """
    after = """
    assert [each.pid for each in psutil.Process().children()] == [daemon.pid], "one of ours is left"
    open("end", "w").close()
    assert daemon.wait() == 0 and open("written").read() == "ok\\n"
    os.unlink("end"), os.unlink("written")
    """
    done, kept = run(tmp_path, body, after)
    assert (done.returncode, done.stdout, done.stderr, kept) == (0, "", "", "")


def test_descriptors_and_processes_are_as_before(tmp_path: Path) -> None:
    def held() -> tuple[list[str], list[int]]:
        children = [each.pid for each in psutil.Process().children()]
        return sorted(os.listdir("/proc/self/fd")), children

    before = held()
    for fails in (False, True):
        with contextlib.suppress(ZeroDivisionError), kept_output(str(tmp_path / "training.log")):
            print("kept")
            print(1 / 0 if fails else "")
    assert held() == before
    log = (tmp_path / "training.log").read_text()
    assert log.startswith("kept\n\nkept\nTraceback (most recent call last):\n")
    assert log.endswith("ZeroDivisionError: division by zero\n")


def test_progress_messages_of_libraries_are_left_out(tmp_path: Path) -> None:
    body = """
    import logging
    for library in ("tfx", "tfx_bsl/coders", "tensorflow/python/saved_model", "other", "tfxs"):
        for level in (logging.INFO, logging.WARNING):
            path = f"/opt/lib/site-packages/{library}/module.py"
            record = logging.LogRecord("absl", level, path, 1, f"{library} {level}", (), None)
            logging.getLogger("absl").handle(record)
    """
    done, kept = run(tmp_path, body)
    shown = {line.split(": ")[1] for line in done.stdout.splitlines()}
    assert shown == {"other 20", "tfxs 20"}, done.stderr
    assert len(done.stderr.splitlines()) == 5 and "tfx 20" not in kept
