"""Tests of `generic_trainer._core.event_files`."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from generic_trainer._core.event_files import ScalarReader, last_scalars


def test_reads_new_and_complete_records(tmp_path: Path) -> None:
    with tf.summary.create_file_writer(str(tmp_path / "written")).as_default():
        for step in (1, 2, 3):
            tf.summary.scalar("loss", 1 / step, step=step)
    (written,) = (tmp_path / "written").iterdir()
    content = written.read_bytes()
    follows = tmp_path / "run" / "train" / written.name
    reader = ScalarReader(str(tmp_path / "run"))
    assert reader.read() == []  # nothing is there yet
    follows.parent.mkdir(parents=True)

    read = []
    for end in (5, len(content) * 3 // 4, len(content) - 1, len(content)):
        follows.write_bytes(content[:end])
        read.append([(each.name, each.step, round(each.value, 3)) for each in reader.read()])

    assert [one for part in read for one in part] == [
        ("train/loss", 1, 1.0),
        ("train/loss", 2, 0.5),
        ("train/loss", 3, 0.333),
    ]
    assert [len(part) for part in read] == [0, 1, 1, 1]
    assert reader.read() == []


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.0.gone").symlink_to(tmp_path / "gone")
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("loss", 0.5, step=1)
    assert last_scalars(str(tmp_path)) == {"loss": 0.5}
