"""What of a folder is sent to a cluster."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from generic_trainer.trials._scripts.submit import MAX_BASE64_BYTES, pack, read_context_dir


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in read_context_dir(folder)}


def test_compiled_python_is_left_out(tmp_path):
    write(tmp_path, "train.py", "__pycache__/train.cpython-310.pyc", "a/b.pyc", "a/b.pyo", "a/b.py")
    assert names(tmp_path) == {"train.py", "a/b.py"}


def test_the_ignore_file_has_the_syntax_of_gitignore(tmp_path):
    write(tmp_path, "train.py", "data/big.csv", "data/small.csv", "logs/a.log", "src/logs/b.log")
    write(tmp_path, "top.txt", "src/top.txt", "out/x/y", "deep/out/z", "weights.h5", "a b.txt")
    (tmp_path / ".detignore").write_text(
        "# a comment\n\ndata/*\n!data/small.csv\n*.log\n/top.txt\nout/\n**/*.h5\n"
    )
    assert names(tmp_path) == {
        ".detignore",
        "a b.txt",
        "data/small.csv",
        "src/top.txt",
        "train.py",
    }


def test_a_file_cannot_be_taken_out_of_a_folder_that_is_ignored(tmp_path):
    write(tmp_path, "data/small.csv", "train.py")
    (tmp_path / ".detignore").write_text("data/\n!data/small.csv\n")
    assert names(tmp_path) == {".detignore", "train.py"}


def sparse(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        file.truncate(size)


def test_the_limit_is_on_base64(tmp_path):
    assert MAX_BASE64_BYTES == 95 * 2**20
    largest = MAX_BASE64_BYTES // 4 * 3  # 71.25 MiB
    sparse(tmp_path / "weights", largest)
    assert names(tmp_path) == {"weights"}
    sparse(tmp_path / "weights", largest + 1)
    with pytest.raises(
        ValueError, match=r"^Directory '.*' exceeds the maximum allowed size of 95 MiB"
    ):
        read_context_dir(tmp_path)
    (tmp_path / ".detignore").write_text("weights\n")
    assert names(tmp_path) == {".detignore"}


def test_a_package_holds_the_files(tmp_path):
    write(tmp_path / "code", "train.py", "model/net.py", "model/__pycache__/net.pyc")
    pack(tmp_path / "code", tmp_path / "package.zip")
    with zipfile.ZipFile(tmp_path / "package.zip") as archive:
        assert sorted(archive.namelist()) == ["model/net.py", "train.py"]
        assert archive.read("train.py") == b"x"
