"""Exports on their way to their consumers."""

import shutil
from pathlib import Path

from generic_trainer._core.files import delete_tree
from generic_trainer._run.publish import follow_links


def test_links_that_lead_out_of_a_directory_are_followed_but_not_to_delete(tmp_path: Path) -> None:
    blobs, model = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    (blobs / "folder").mkdir(parents=True)
    (blobs / "abc").write_text("graph")
    (blobs / "folder" / "words").write_text("a b")
    model.mkdir(parents=True)
    (model / "own").write_text("own")
    leads = {
        "saved_model.pb": "../../blobs/abc",
        "assets": str(blobs / "folder"),
        "absolute": str(model / "own"),
        "inside": "own",
        "nothing": "../../blobs/nothing",
        "above": "..",
    }
    for name, target in leads.items():
        (model / name).symlink_to(target)
    (model / "assets.part").mkdir()  # a run was killed while it did this
    follow_links(str(model))
    shutil.rmtree(blobs)
    links = sorted(path.name for path in model.iterdir() if path.is_symlink())
    assert links == ["above", "inside", "nothing"]
    assert (model / "saved_model.pb").read_text() == "graph"
    assert (model / "assets" / "words").read_text() == "a b"
    assert (model / "absolute").read_text() == "own"
    (model.parent / "2").mkdir()  # behind "above"
    delete_tree(str(model))
    assert [path.name for path in model.parent.iterdir()] == ["2"]
