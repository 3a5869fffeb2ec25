"""Signed models: a run signs what it publishes, and every change of it is refused."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tfx import types

from generic_trainer import cli
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation import Checker, sign_model, signature_problem
from tests import helpers
from tests.executors.conftest import Node

PEM, PKCS8 = pem.Encoding.PEM, pem.PrivateFormat.PKCS8
# With a file of git, which model-signing omits by default.
SOURCE = helpers.run_fn("""
    os.makedirs(fn_args.serving_model_dir)
    print("*.tmp", file=open(fn_args.serving_model_dir + "/.gitignore", "w"))
""")


def write_key(path: Path, key: Any = None) -> Path:
    """Writes a private key, and the public one beside it with the suffix .pub."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(PEM, PKCS8, pem.NoEncryption()))
    public = key.public_key().public_bytes(PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.fixture(scope="module")
def signed(tmp_path_factory: Any, examples: types.Artifact) -> Node:
    reason = "model-signing cannot be imported, as beside KFP 2.5: see the extra `signing`"
    pytest.importorskip("model_signing", reason=reason, exc_type=ImportError)
    node = Node(tmp_path_factory.mktemp("signed"), examples)
    node.run(SOURCE, sign_with=str(write_key(node.root / "key.pem")))
    return node


def verify(model: Path, key: Path) -> int:
    return cli.main(["verify", str(model), "--key", str(key.with_suffix(".pub")), "--json"])


def test_the_librarys_own_command_and_the_checks_accept_it(signed: Node, tmp_path: Path) -> None:
    key, pushed = signed.root / "key.pem", shutil.copytree(signed.published, tmp_path / "17000000")
    words = "-m", "model_signing", "verify", "key", pushed, "--signature", pushed / "model.sig"
    options = "--no-ignore-git-paths", "--public_key", key.with_suffix(".pub")
    for _ in ("as the run signed it", "signed again, as if it was on a remote file system"):
        subprocess.run([sys.executable, *words, *options], check=True)
        assert verify(pushed, key) == 0
        (pushed / "model.sig").unlink()
        sign_model(f"file://{pushed}", str(key), str(tmp_path / "scratch"))
    with Checker() as checker:
        report = checker.validate(str(pushed))
    assert report["manifest_matches"].status == "pass" and report.passed


def test_its_manifest_names_the_inputs_and_nothing_holds_the_key(signed: Node) -> None:
    inputs = json.loads((signed.published / "manifest.json").read_bytes())["inputs"]
    assert {"code", "hyperparameters", "packages", "train_files"} <= inputs.keys()
    assert not {"custom_config", "env"} & inputs.keys()
    secret = (signed.root / "key.pem").read_bytes().splitlines()[1]
    files = [path for path in (signed.root / "node").rglob("*") if path.is_file()]
    assert len(files) > 5 and not any(secret in path.read_bytes() for path in files)


def changes(model: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name that the refusal must contain, and the change."""
    for path in sorted(filter(Path.is_file, model.rglob("*"))):
        content, name = path.read_bytes(), path.name.replace("model.sig", "")
        for place in {0, len(content) // 2, len(content) - 1}:
            flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            yield name, lambda path=path, flipped=flipped: path.write_bytes(flipped)
        yield path.name, path.unlink
        yield path.name, lambda path=path: path.rename(f"{path}.old")
        yield "added", lambda path=path: path.with_name("added").touch()
        yield "link", lambda path=path: path.with_name("link").symlink_to("/etc")


def test_every_change_is_refused(signed: Node, tmp_path: Path, capsys: Any) -> None:
    model = shutil.copytree(signed.published, tmp_path / "model")
    assert {"saved_model.pb", "manifest.json", "model.sig", ".gitignore"} <= {*os.listdir(model)}
    for name, change in changes(model):
        change()
        assert verify(model, signed.root / "key") == 1, name
        assert name in json.loads(capsys.readouterr().out)["problem"]
        shutil.rmtree(model)
        shutil.copytree(signed.published, model)
    assert verify(model, write_key(tmp_path / "other.pem")) == 1
    assert verify(model, signed.root / "key") == 0


def test_digests_of_a_changed_file_are_hexadecimal(signed: Node, tmp_path: Path) -> None:
    model = shutil.copytree(signed.published, tmp_path / "model")
    path = model / "saved_model.pb"
    signed_as = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(b"another")
    problem = signature_problem(str(model), str(signed.root / "key.pub"))
    assert problem == (
        f"Signature mismatch: Hash mismatch for 'saved_model.pb': Expected '{signed_as}', "
        f"Actual '{hashlib.sha256(b'another').hexdigest()}'"
    )


def never_trains(node: Node, key: Path, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        node.run("def run_fn(fn_args): raise AssertionError", sign_with=str(key))


def test_a_key_that_cannot_sign_costs_no_training(signed: Node, node: Node) -> None:
    never_trains(node, node.root / "gone.pem", "gone.pem cannot be used: .*No such file")
    key = write_key(node.root / "rsa.pem", rsa.generate_private_key(65537, 2048))
    never_trains(node, key, "Expected a private key of an elliptic curve")


def test_a_missing_library_costs_no_training(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    never_trains(node, write_key(node.root / "key.pem"), "Install the extra `signing`")
