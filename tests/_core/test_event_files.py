"""Scalars in event files, while they are written."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from generic_trainer._core.event_files import ScalarReader


def test_reads_what_is_new_and_whole(tmp_path: Path) -> None:
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
