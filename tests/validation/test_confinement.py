"""What a confined process can do, tried in one that has not loaded TensorFlow."""

from pathlib import Path

import pytest

from tests.house import ROOT, run_python

_TRY = """
import ctypes, errno, os, resource, socket, subprocess, sys, tempfile, threading
from pathlib import Path
from generic_trainer.validation import _isolation, _sandbox
{before}
folder = Path(sys.argv[1])
readable = [folder / "library", sys.prefix]
moved = {in_namespace} and _isolation.move(str(folder / "model"), folder / "moved")[0]
print(moved)
print(_sandbox.confine(work=folder / "work", readable=readable, has_namespace=moved))

def attempt(name, act):
    try:
        act()
        print(name, "allowed")
    except OSError as error:
        print(name, "refused", error.errno)

def call_x32(number):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(0x40000000 | number), 2, 1, 0) < 0:
        if ctypes.get_errno() != errno.ENOSYS:  # of a kernel without this ABI
            raise OSError(ctypes.get_errno(), "refused by the filter")

def start_thread():
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()

attempt("read library", (folder / "library" / "file").read_text)
attempt("read beside", (folder / "secret").read_text)
attempt("read home", (Path(sys.argv[2]) / "key").read_text)
attempt("read system", Path("/etc/hostname").exists and Path("/etc/passwd").read_text)
attempt("write work", lambda: (folder / "work" / "new").write_text("x"))
attempt("write library", lambda: (folder / "library" / "file").write_text("x"))
attempt("write beside", lambda: (folder / "secret").write_text("x"))
attempt("write process", lambda: Path("/proc/self/comm").write_text("x"))
attempt("write null", lambda: Path("/dev/null").write_text("x"))
attempt("large file", lambda: os.truncate(folder / "work" / "new", 1 << 30))
attempt("internet", lambda: socket.socket(socket.AF_INET))
attempt("internet 6", lambda: socket.socket(socket.AF_INET6))
attempt("unix socket", lambda: socket.socket(socket.AF_UNIX))
attempt("pair", socket.socketpair)
attempt("process", lambda: subprocess.run(["true"]))
attempt("fork", lambda: os.fork() or os._exit(0))
attempt("x32", lambda: call_x32(41))
attempt("thread", start_thread)
attempt("temporary", tempfile.NamedTemporaryFile)
attempt("kill", lambda: os.kill(os.getppid(), 0))
"""


def _attempts(
    folder: Path, before: str = "", *, in_namespace: bool = False
) -> tuple[str, dict[str, str]]:
    """Returns what a confined process was told it lacks, and what it could do."""
    home = folder / "home"
    for made in (folder / "work", folder / "library", folder / "model", home):
        made.mkdir()
    for file in (folder / "library" / "file", folder / "secret", home / "key"):
        file.write_text("content")
    code = _TRY.format(before=before, in_namespace=in_namespace)
    done = run_python("-c", code, folder, home, HOME=str(home))
    moved, missing, *lines = [line for line in done.stdout.splitlines() if line]
    if in_namespace and moved == "False":
        pytest.skip("no mount namespace can be had here")
    words = (line.rpartition(" refused" if " refused" in line else " allowed") for line in lines)
    return missing, {name: verdict.strip() for name, verdict, _ in words}


def test_what_a_confined_process_can_do(tmp_path: Path) -> None:
    missing, attempts = _attempts(tmp_path)
    assert missing == "[]"
    allowed = [name for name, verdict in attempts.items() if verdict == "allowed"]
    # Landlock knows no chroot: in one below a checkout that may be read, as scripts/in_trixie makes
    # it, all may be read.
    nested = ROOT / ".chroot/trixie"
    read = ["read beside", "read home"] if nested.exists() and nested.samefile("/") else []
    assert allowed == [
        "read library", *read, "read system", "write work", "write null", "pair", "thread",
        "temporary",
    ]  # fmt: skip
    assert (tmp_path / "secret").read_text() == "content"


_NO_LANDLOCK = "_sandbox._CREATE_RULESET = 9999  # an older kernel"


_UNTRIED = "_sandbox._CALLS = {}  # a processor that nobody has tried"


MISSING = [
    (_NO_LANDLOCK, "writing to files of this machine", "write library", "internet"),
    (_UNTRIED, "connections and new processes", "internet", "write library"),
]


@pytest.mark.parametrize("before, danger, allowed, refused", MISSING)
def test_a_missing_protection_is_told_and_the_others_stand(
    before: str, danger: str, allowed: str, refused: str, tmp_path: Path
) -> None:
    missing, attempts = _attempts(tmp_path, before)
    assert missing == f"['{danger}']"
    assert attempts[allowed] == "allowed"
    assert attempts[refused] == "refused"


def test_a_mount_namespace_stands_in_for_landlock(tmp_path: Path) -> None:
    missing, attempts = _attempts(tmp_path, _NO_LANDLOCK, in_namespace=True)
    assert missing == "[]"
    for refused in ("write library", "write beside", "write process", "internet"):
        assert attempts[refused] == "refused"
    for allowed in ("write work", "write null", "temporary", "thread"):
        assert attempts[allowed] == "allowed"
    assert (tmp_path / "library" / "file").read_text() == "content"
