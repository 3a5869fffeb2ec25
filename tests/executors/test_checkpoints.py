"""The checkpoints of a run outlive its failure, and not its success."""

import shutil

import pytest

from generic_trainer.errors import TrainingError
from tests.executors.conftest import Node
from tests.helpers import run_fn
from tests.processes import locked_elsewhere

FAILS_ONCE = run_fn("""
    path = os.path.join(fn_args.checkpoint_dir, "progress")
    if not os.path.exists(path):
        open(path, "w").close()
        raise RuntimeError("killed in mid-epoch")
""")


def test_a_retry_finds_them_and_deletes_them_unless_another_run_is_at_work(node: Node) -> None:
    with pytest.raises(TrainingError, match="killed in mid-epoch"):
        node.run(FAILS_ONCE)
    checkpoints = node.root / "node" / ".checkpoints"
    [directory] = checkpoints.iterdir()
    with locked_elsewhere(directory / ".lock"):
        node.run(FAILS_ONCE)
        assert node.published.is_dir()
        assert (directory / "progress").exists()
    node.run(FAILS_ONCE)
    assert list(checkpoints.iterdir()) == []


def test_what_cannot_be_deleted_does_not_fail_a_published_run(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = shutil.rmtree

    def delete_no_checkpoints(path: str, **options: bool) -> None:
        if ".checkpoints" in path:
            raise PermissionError("read-only")
        delete(path, **options)

    monkeypatch.setattr(shutil, "rmtree", delete_no_checkpoints)
    node.run()
    assert node.published.is_dir()
    assert "could not be deleted: read-only" in caplog.text
