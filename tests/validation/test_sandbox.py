"""Models that do harm: refused without being run, and harmless where they are run."""

import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.bypasses import _hostile as hostile
from benchmarks.bypasses import _places
from generic_trainer.validation import Checker, ServingContract, _runner, all_checks
from generic_trainer.validation._checker import _environment
from generic_trainer.validation._isolation import move
from tests.house import ROOT
from tests.validation import models
from tests.validation.conftest import Check

NAMES = [check.name for check in all_checks()]
# The others run TFLite models, of which there are none here.
DYNAMIC = [
    name for name in NAMES[NAMES.index("loads") :] if name not in ("format_scores", "parity")
]


class _Hostile:
    """A model, a file beside it and a server on the loopback, neither of which it may touch."""

    def __init__(self, name: str, folder: Path, server: socket.socket) -> None:
        self.op, self.model, self._server = hostile.RECIPES[name].op, folder / "model", server
        self._target = folder / "target" / "leak"
        self._target.parent.mkdir()
        hostile.RECIPES[name].make(self.model, self._target, server.getsockname()[1])
        self.assert_harmless()

    def assert_harmless(self) -> None:
        assert not list(self._target.parent.iterdir())
        with pytest.raises(BlockingIOError):
            self._server.accept()


@pytest.fixture(params=_places.RECIPES)
def hostile_model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Hostile]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield _Hostile(request.param, tmp_path, server)


def test_is_refused_and_not_run(hostile_model: _Hostile, check: Check) -> None:
    report = check(hostile_model.model)
    assert report["file_ops"].status == "fail"
    assert hostile_model.op in report["file_ops"].message
    reason = "not run, because the model would reach files or the network"
    for name in DYNAMIC:
        assert report[name].status == "skip"
        assert reason in report[name].message
    hostile_model.assert_harmless()


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
def test_is_harmless_where_it_is_run(hostile_model: _Hostile, impatient_checker: Checker) -> None:
    contract = ServingContract(signatures=(), severities={"file_ops": "warn"})
    report = impatient_checker.validate(str(hostile_model.model), contract)
    assert report["file_ops"].status == "warn"
    assert report["loads"].status != "skip"
    hostile_model.assert_harmless()


def test_who_allows_an_op_has_the_model_run(check: Check, tmp_path: Path) -> None:
    model, target = tmp_path / "model", tmp_path / "leak"
    hostile.RECIPES["writes_on_every_call"].make(model, target, 0)
    for allowed in ({"allowed_ops": ("WriteFile",)}, {"severities": {"file_ops": "skip"}}):
        report = check(model, ServingContract(signatures=(), **allowed))
        assert "PERMISSION_DENIED" in report["scores"].message.upper().replace(" ", "_")
        assert not target.exists()
    # Without the sandbox it does harm.
    tf.saved_model.load(str(model)).signatures["serving_default"](x=tf.zeros([1, 2]))
    assert target.exists()


def test_fetched_inputs(check: Check, checker: Checker, good_model: Path, tmp_path: Path) -> None:
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
    report = check(good_model, contract)
    assert f"file://{tmp_path}/nothing*" in report["inputs_read"].message


@pytest.fixture
def linked_out(copy: Path, tmp_path: Path) -> Path:
    """A model with links to the environment, to a file and to a folder beside it."""
    (tmp_path / "secret.txt").write_text("password\n")
    (vocabulary,) = (copy / "assets").iterdir()
    vocabulary.unlink()
    vocabulary.symlink_to("/proc/self/environ")
    (copy / "assets" / "more").symlink_to(tmp_path / "secret.txt")
    (copy / "all").symlink_to(tmp_path)
    return copy


def test_outward_links(linked_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generic_trainer.validation._isolation._can_hide", lambda *_: False)
    hidden, refused = move(str(linked_out), tmp_path / "moved")
    assert not hidden
    assert len(refused) == 3
    assert refused[0] == f"all -> {tmp_path}"
    names = {path.name for path in (tmp_path / "moved").rglob("*") if path.is_file()}
    assert names == {
        "saved_model.pb", "fingerprint.pb", "variables.index", "variables.data-00000-of-00001",
    }  # fmt: skip


def test_leaving_links_are_refused(checker: Checker, good_model: Path, linked_out: Path) -> None:
    for path in (str(linked_out), f"file://{linked_out}"):
        report = checker.validate(path)
        assert report["assets"].status == "fail"
        assert "PATH=" not in report.to_json()
        if path == str(linked_out):
            assert "/proc/self/environ" in report["presence"].message
    contract = ServingContract(examples=models.examples(), base_model=str(linked_out))
    report = checker.validate(str(good_model), contract)
    assert report["base_model"].status == "warn"
    assert report.passed and "PATH=" not in report.to_json()


def test_links_within_and_linked_inputs(check: Check, copy: Path, tmp_path: Path) -> None:
    (copy / "data").mkdir()
    (copy / "variables").rename(copy / "data" / "variables")
    (copy / "variables").symlink_to("data/variables")
    (copy / "data" / "schema.pbtxt").write_text('feature { name: "miles" type: FLOAT }')
    with tf.io.TFRecordWriter(str(tmp_path / "examples")) as out:
        out.write(models.example(1.0, "cash"))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "examples").symlink_to(tmp_path / "examples")
    inputs = {"schema": copy / "data" / "schema.pbtxt", "examples": tmp_path / "linked" / "*"}
    assert check(copy, ServingContract(**inputs, severities={"without_optional": "skip"})).passed


def test_a_file_on_its_own_is_checked_without_a_link(check: Check, tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("text")
    report = check(tmp_path / "model.txt")
    assert "found model.txt" in report["presence"].message


def test_the_environment_of_the_checks_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("AWS_SECRET_ACCESS_KEY", "MY_TOKEN", "TF_VAR_password", "TF_TOKEN_app", "TF_CONFIG")
    settings = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "TF_ENABLE_ONEDNN_OPTS", "LC_ALL", "PATH")
    for name in (*secrets, *settings):
        monkeypatch.setenv(name, "tensorflow")
    environment = _environment(Path("scratch"))
    assert not environment.keys() & set(secrets)
    assert environment.keys() >= set(settings)


@pytest.mark.usefixtures("no_kept_fork_servers")
def test_the_environment_stays_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tf.io.read_file("/proc/self/environ")
        return {"y": models.after(tf.debugging.Assert(False, [text]), x)}

    model = models.save(models.serving(serve, models.ROWS), tmp_path / "model")
    monkeypatch.setenv("GENERIC_SECRET", "hunter2")
    contract = ServingContract(signatures=(), allowed_ops=("ReadFile",))
    with Checker(timeout_s=300) as checker:
        report = checker.validate(str(model), contract)
    assert "PATH=" in report["scores"].message  # it has read it
    assert "hunter2" not in report.to_json()


@pytest.mark.parametrize("name", ["examples", "statistics"])
@pytest.mark.parametrize("pattern", ["data", "da*"])
def test_what_lies_beside_the_data_stays_unreadable(
    checker: Checker, tmp_path: Path, name: str, pattern: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tf.io.read_file(str(secret))
        return {"y": models.after(tf.debugging.Assert(False, [text]), x)}

    model = models.save(models.serving(serve, models.ROWS), tmp_path / "model")
    if name == "examples":
        with tf.io.TFRecordWriter(str(tmp_path / "data")) as out:
            out.write(models.example(1.0, "cash"))
    else:
        (tmp_path / "data").write_bytes(b"")  # statistics of nothing
    data = {name: str(tmp_path / pattern)}
    contract = ServingContract(signatures=(), allowed_ops=("ReadFile",), **data)
    report = checker.validate(str(model), contract)
    assert "secret; Permission denied" in report["scores"].message
    assert "hunter2" not in report.to_json()


def test_credentials_reach_the_fetch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(source: str, target: str) -> None:
        Path(target).write_text(os.environ["GENERIC_TOKEN"])

    monkeypatch.setitem(_runner._FETCH, "schema", record)
    contract = ServingContract(schema="gs://bucket/schema.pbtxt")
    local, problems = _runner.fetch(
        str(tmp_path), contract, tmp_path / "moved", tmp_path, {"GENERIC_TOKEN": "hunter2"}
    )
    assert not problems
    assert Path(local.schema).read_text() == "hunter2"
    assert "GENERIC_TOKEN" not in os.environ


def test_links_to_blobs_beside_it_are_read(check: Check, good_model: Path, tmp_path: Path) -> None:
    """As in Hugging Face's cache."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    shutil.copytree(good_model, snapshot)
    blobs.mkdir()
    for path in [path for path in snapshot.rglob("*") if path.is_file()]:
        path.rename(blobs / path.name)
        path.symlink_to(os.path.relpath(blobs / path.name, path.parent))
    report = check(snapshot)
    assert report.passed, report.summary()
    assert "unprotected" not in report.facts
    (blobs / "saved_model.pb").unlink()
    assert not check(snapshot).passed


@pytest.mark.slow
def test_a_model_in_the_home(good_model: Path, home: Path, impatient_checker: Checker) -> None:
    shutil.copytree(good_model, home / "model")
    report = impatient_checker.validate(str(home / "model"))
    assert report.passed, report.summary()
    assert not report.warnings, report.warnings


def test_the_page_on_security_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    files = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py")}
    named = set(re.findall(r"\btest_\w+\b(?:\.py)?", page))
    assert len(named) > 10
    functions = {name for text in files.values() for name in re.findall(r"def (test_\w+)", text)}
    assert sorted(named - functions - files.keys()) == []
