"""Models that do harm: refused without being run, and harmless where they are run."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.validation import Checker, ServingContract, _inputs, all_checks
from generic_trainer.validation._checker import _environment
from generic_trainer.validation._isolation import move
from tests.house import ROOT
from tests.validation import hostile, models

NAMES = [check.name for check in all_checks()]
# The others run TFLite models, of which there are none here.
DYNAMIC = [
    name for name in NAMES[NAMES.index("loads") :] if name not in ("format_scores", "parity")
]


class _Server:
    """Waits for connections on the loopback."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    @property
    def was_contacted(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Iterator[_Server]:
    listening = _Server()
    yield listening
    listening.close()


def _touched(target: Path) -> list[Path]:
    return list(target.parent.glob(f"{target.name}*"))


@pytest.fixture(params=hostile.RECIPES)
def hostile_model(
    request: pytest.FixtureRequest, tmp_path: Path, server: _Server
) -> tuple[str, Path, Path]:
    """Name, model and the file that it must not touch."""
    model, target = tmp_path / "model", tmp_path / "target" / "leak"
    target.parent.mkdir()
    hostile.RECIPES[request.param].make(model, target, server.port)
    assert not _touched(target), "the model does harm while it is made"
    assert not server.was_contacted
    return request.param, model, target


def test_is_refused_and_not_run(
    hostile_model: tuple[str, Path, Path], checker: Checker, server: _Server
) -> None:
    name, model, target = hostile_model
    report = checker.validate(str(model))
    assert report["file_ops"].status == "fail"
    assert hostile.RECIPES[name].op in report["file_ops"].message
    for check in DYNAMIC:
        assert report[check].status == "skip"
        assert "not run, because the model would reach files or the network" in (
            report[check].message
        )
    assert not _touched(target)
    assert not server.was_contacted


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def impatient_checker(home: Path) -> Iterator[Checker]:
    """One that does not wait with a model for a data service, which takes an hour."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        with Checker(timeout_s=8) as running:
            yield running


@pytest.mark.slow
def test_is_harmless_where_it_is_run(
    hostile_model: tuple[str, Path, Path], impatient_checker: Checker, server: _Server
) -> None:
    _, model, target = hostile_model
    contract = ServingContract(signatures=(), severities={"file_ops": "warn"})
    report = impatient_checker.validate(str(model), contract)
    assert report["file_ops"].status == "warn"
    assert report["loads"].status != "skip"
    assert not _touched(target)
    assert not server.was_contacted


@pytest.fixture
def writer(tmp_path: Path) -> tuple[Path, Path]:
    """A model that writes a file, and the file."""
    model, target = tmp_path / "model", tmp_path / "leak"
    hostile.RECIPES["writes_on_every_call"].make(model, target, 0)
    return model, target


def test_without_the_sandbox_it_would_do_harm(writer: tuple[Path, Path]) -> None:
    model, target = writer
    tf.saved_model.load(str(model)).signatures["serving_default"](x=tf.zeros([1, 2]))
    assert target.exists()


@pytest.mark.parametrize(
    "contract",
    [
        ServingContract(signatures=(), allowed_ops=("WriteFile",)),
        ServingContract(signatures=(), severities={"file_ops": "skip"}),
    ],
)
def test_who_allows_an_op_has_the_model_run(
    contract: ServingContract, writer: tuple[Path, Path], checker: Checker
) -> None:
    model, target = writer
    report = checker.validate(str(model), contract)
    assert "PERMISSION_DENIED" in report["scores"].message.upper().replace(" ", "_")
    assert not target.exists()


def test_inputs_on_other_machines_are_fetched(
    checker: Checker, good_model: Path, tmp_path: Path
) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "examples")) as out:
        for record in models.examples(5):
            out.write(record)
    schema = 'feature { name: "miles" type: FLOAT presence { min_fraction: 1.0 } }'
    (tmp_path / "schema.pbtxt").write_text(schema)
    contract = ServingContract(
        examples=f"file://{tmp_path}/exam*",
        schema=f"file://{tmp_path}/schema.pbtxt",
        base_model=f"file://{good_model}",
    )
    report = checker.validate(f"file://{good_model}", contract)
    assert report.passed, report.summary()
    assert "5 examples read" in report["inputs_read"].message
    assert "differs by 0" in report["base_model"].message
    assert "unprotected" not in report.facts
    contract = ServingContract(examples=f"file://{tmp_path}/nothing*")
    report = checker.validate(str(good_model), contract)
    assert f"file://{tmp_path}/nothing*" in report["inputs_read"].message


def _linked_out(good_model: Path, folder: Path) -> Path:
    """Returns a model with links to the environment, to a file and to a folder beside it."""
    model = folder / "model"
    shutil.copytree(good_model, model)
    (folder / "secret.txt").write_text("password\n")
    (vocabulary,) = (model / "assets").iterdir()
    vocabulary.unlink()
    vocabulary.symlink_to("/proc/self/environ")
    (model / "assets" / "more").symlink_to(folder / "secret.txt")
    (model / "all").symlink_to(folder)
    return model


def test_links_that_leave_the_model_are_not_followed(
    good_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _linked_out(good_model, tmp_path)
    monkeypatch.setattr("generic_trainer.validation._isolation._can_hide", lambda: False)
    hidden, refused = move(str(model), tmp_path / "moved")
    assert not hidden
    assert len(refused) == 3
    assert refused[0] == f"all -> {tmp_path}"
    names = {path.name for path in (tmp_path / "moved").rglob("*") if path.is_file()}
    assert names == {
        "saved_model.pb", "fingerprint.pb", "variables.index", "variables.data-00000-of-00001",
    }  # fmt: skip


def test_a_model_with_links_that_leave_it_is_refused(
    checker: Checker, good_model: Path, tmp_path: Path
) -> None:
    model = _linked_out(good_model, tmp_path)
    for path in (str(model), f"file://{model}"):
        report = checker.validate(path)
        assert report["assets"].status == "fail"
        assert "PATH=" not in report.to_json()
        if path == str(model):
            assert "/proc/self/environ" in report["presence"].message
    contract = ServingContract(examples=models.examples(), base_model=str(model))
    report = checker.validate(str(good_model), contract)
    assert report["base_model"].status == "warn"
    assert report.passed and "PATH=" not in report.to_json()


def test_a_file_on_its_own_is_checked_without_a_link(checker: Checker, tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("text")
    report = checker.validate(str(tmp_path / "model.txt"))
    assert "found model.txt" in report["presence"].message


def test_the_environment_of_the_checks_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("AWS_SECRET_ACCESS_KEY", "MY_TOKEN", "TF_VAR_password", "TF_TOKEN_app", "TF_CONFIG")
    settings = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "TF_ENABLE_ONEDNN_OPTS", "LC_ALL", "PATH")
    for name in (*secrets, *settings):
        monkeypatch.setenv(name, "tensorflow")
    environment = _environment(Path("scratch"))
    assert not environment.keys() & set(secrets)
    assert environment.keys() >= set(settings)


def test_a_model_cannot_read_the_callers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tf.io.read_file("/proc/self/environ")
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            return {"y": x * 2.0}

    model = models.save(models.serving(serve, models.ROWS), tmp_path / "model")
    monkeypatch.setenv("GENERIC_SECRET", "hunter2")
    contract = ServingContract(signatures=(), allowed_ops=("ReadFile",))
    with Checker(timeout_s=60) as checker:
        report = checker.validate(str(model), contract)
    assert "PATH=" in report["scores"].message  # it has read it
    assert "hunter2" not in report.to_json()


def test_credentials_reach_the_process_that_fetches_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(source: str, target: str) -> None:
        Path(target).write_text(os.environ["GENERIC_TOKEN"])

    monkeypatch.setitem(_inputs._FETCH, "schema", record)
    contract = ServingContract(schema="gs://bucket/schema.pbtxt")
    local, problems = _inputs.fetch(
        str(tmp_path), contract, tmp_path / "moved", tmp_path, {"GENERIC_TOKEN": "hunter2"}
    )
    assert not problems
    assert Path(local.schema).read_text() == "hunter2"
    assert "GENERIC_TOKEN" not in os.environ


def test_a_model_of_links_to_blobs_beside_it_can_be_read(
    checker: Checker, good_model: Path, tmp_path: Path
) -> None:
    """As in Hugging Face's cache."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    shutil.copytree(good_model, snapshot)
    blobs.mkdir()
    for path in [path for path in snapshot.rglob("*") if path.is_file()]:
        path.rename(blobs / path.name)
        path.symlink_to(os.path.relpath(blobs / path.name, path.parent))
    report = checker.validate(str(snapshot))
    assert report.passed, report.summary()
    assert "unprotected" not in report.facts
    (blobs / "saved_model.pb").unlink()
    assert not checker.validate(str(snapshot)).passed


@pytest.mark.slow
def test_a_model_in_the_home_directory(
    good_model: Path, home: Path, impatient_checker: Checker
) -> None:
    shutil.copytree(good_model, home / "model")
    report = impatient_checker.validate(str(home / "model"))
    assert report.passed, report.summary()
    assert not report.warnings, report.warnings


# What a process can do that is confined, tried in one that has not loaded TensorFlow.

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
    command = [sys.executable, "-c", code, str(folder), str(home)]
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize(
    "before, danger, allowed, refused",
    [
        (
            _NO_LANDLOCK,
            "writing to files of this machine", "write library", "internet",
        ),
        (
            "_sandbox._CALLS = {}  # a processor that nobody has tried",
            "connections and new processes", "internet", "write library",
        ),
    ],
)  # fmt: skip
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


def test_the_page_on_security_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    files = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py")}
    named = set(re.findall(r"\btest_\w+\b(?:\.py)?", page))
    assert len(named) > 10
    functions = {name for text in files.values() for name in re.findall(r"def (test_\w+)", text)}
    assert sorted(named - functions - files.keys()) == []
