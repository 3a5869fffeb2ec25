"""Operations on files, on a local and on a remote file system."""

import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core import files
from generic_trainer.errors import DataError, ExportError

TREE = {"saved_model.pb": "graph", "variables/variables.index": "index", "assets/vocabulary": "a b"}


@pytest.fixture(params=["local", "ram"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder of the local file system, and one of TensorFlow's own in memory."""
    if request.param == "local":
        yield str(tmp_path / "folder")
        return
    path = f"ram://{uuid.uuid4().hex}"
    yield path
    tf.io.gfile.rmtree(path)


def write_tree(directory: str) -> None:
    for name, text in TREE.items():
        path = os.path.join(directory, name)
        tf.io.gfile.makedirs(os.path.dirname(path))
        files.write_whole(path, text)


def tree(directory: str) -> dict[str, str]:
    names = files.files_below(directory)
    return {name: files.read_text(os.path.join(directory, name)) for name in names}


def test_a_file_is_written_whole_and_published_and_copied_without_a_directory(folder: str) -> None:
    tf.io.gfile.makedirs(folder)
    files.write_whole(f"{folder}/a", "text")
    files.write_whole(f"{folder}/b", b"bytes")
    files.publish_tree(f"{folder}/a", f"{folder}/c")
    files.copy_tree(f"{folder}/b", f"{folder}/d/e")
    assert tree(folder) == {"b": "bytes", "c": "text", "d/e": "bytes"}


@pytest.fixture(params=["another disk", "to a store", "from a store"])
def apart(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Iterator[list[str]]:
    """Two folders on different file systems."""
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    store = f"ram://{uuid.uuid4().hex}"
    tf.io.gfile.makedirs(store)
    rename = os.rename

    def of_one_disk(source: str, target: str) -> None:
        if source.startswith(here) != target.startswith(here):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", of_one_disk)
    pairs = {"another disk": [here, there], "to a store": [here, store]}
    yield pairs.get(request.param, [store, there])
    tf.io.gfile.rmtree(store)


def test_trees_and_files_move_to_another_file_system(apart: list[str]) -> None:
    here, there = apart
    tf.io.gfile.makedirs(there)
    for move in (files.publish_tree, files.move_aside):
        write_tree(f"{here}/tree")
        move(f"{here}/tree", f"{there}/{move.__name__}")
        assert tree(f"{there}/{move.__name__}") == TREE
        assert not tf.io.gfile.exists(f"{here}/tree") or not files.files_below(f"{here}/tree")
    files.write_whole(f"{here}/file", "text")
    files.publish_tree(f"{here}/file", f"{there}/file")
    assert {name.split("/")[0] for name in files.files_below(there)} == {
        "file",
        "move_aside",
        "publish_tree",
    }


def test_a_copy_to_another_disk_that_fails_leaves_the_source_alone(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def fail(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)

    monkeypatch.setattr(os, "rename", fail)
    write_tree(f"{tmp_path}/source")
    with pytest.raises(OSError, match=r"target$|part"):
        files.publish_tree(f"{tmp_path}/source", f"{tmp_path}/target")
    assert tree(f"{tmp_path}/source") == TREE
    assert os.listdir(tmp_path) == ["source"]


def test_a_tree_is_copied_and_listed(folder: str) -> None:
    write_tree(f"{folder}/source")
    files.copy_tree(f"{folder}/source", f"{folder}/target")
    assert tree(f"{folder}/target") == TREE
    assert files.files_below(f"{folder}/target/", last="assets")[-1] == "variables/variables.index"
    assert files.files_below(f"{folder}/target", last="saved_model.pb")[-1] == "saved_model.pb"


def test_a_tree_is_published_over_what_was_there(folder: str) -> None:
    write_tree(f"{folder}/source")
    tf.io.gfile.makedirs(f"{folder}/target")
    files.write_whole(f"{folder}/target/left_over", "of an earlier attempt")
    files.publish_tree(f"{folder}/source", f"{folder}/target")
    assert tree(f"{folder}/target") == TREE
    assert not tf.io.gfile.exists(f"{folder}/source")


def test_a_directory_is_emptied_into_another(folder: str) -> None:
    write_tree(f"{folder}/source")
    tf.io.gfile.makedirs(f"{folder}/target/assets")
    files.write_whole(f"{folder}/target/assets/own", "")
    files.move_aside(f"{folder}/source", f"{folder}/target")
    assert tree(f"{folder}/target") == {**TREE, "assets/own": ""}
    assert tree(f"{folder}/source") == {}


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), tf.errors.UnknownError(None, None, "")]
)
def test_errors_of_files_become_ours_and_others_stay(error: Exception) -> None:
    with pytest.raises(ExportError, match=r"(?s)Publishing: .*again") as caught:  # noqa: SIM117
        with files.file_errors_as(ExportError, "Publishing"):
            raise error
    assert caught.value.__cause__ is error
    for other in (ValueError("no file"), DataError("a file")):
        with pytest.raises(type(other)), files.file_errors_as(ExportError, "Publishing"):
            raise other


def large(path: Path, middle: int, time_ns: int = 10**18) -> list[object]:
    """Writes a file of which only the middle differs, and returns its fingerprint."""
    path.parent.mkdir(exist_ok=True)
    content = bytearray(5 << 20)
    content[len(content) // 2] = middle
    path.write_bytes(content)
    os.utime(path, ns=(time_ns, time_ns))
    return files.fingerprint_of_file(str(path))


@pytest.mark.parametrize("keeps_change_times", [True, False])
def test_large_files_of_the_same_length_ends_and_time_have_different_fingerprints(
    keeps_change_times: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not keeps_change_times:  # a FUSE mount, for example
        monkeypatch.setattr(files, "_keeps_change_times", lambda _: False)
    first = large(tmp_path / "a" / "data", 1)
    assert files.fingerprint_of_file(str(tmp_path / "a" / "data")) == first
    (tmp_path / "a").rename(tmp_path / "moved")
    assert files.fingerprint_of_file(str(tmp_path / "moved" / "data")) == first
    other = large(tmp_path / "b" / "data", 2)
    changed = large(tmp_path / "moved" / "data", 3)
    assert len({repr(each) for each in (first, other, changed)}) == 3
    copy = large(tmp_path / "c" / "data", 1)
    assert (copy == first) != keeps_change_times  # the whole content is compared, or none of it


def test_a_large_remote_file_is_read_whole_unless_an_object_store_dates_it() -> None:
    def fingerprint(middle: bytes) -> list[object]:
        path = "ram://fingerprints/data"
        files.delete_tree("ram://fingerprints")
        tf.io.gfile.makedirs("ram://fingerprints")
        files.write_whole(path, b"0" * (3 << 20) + middle + b"0" * (3 << 20))
        return files.fingerprint_of_file(path)

    assert fingerprint(b"1") == fingerprint(b"1") != fingerprint(b"2")
