"""TFRecord files, read by what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer._core.records import read_records


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("name", ["data", "data.gz", "data.tfrecord"])
def test_examples_are_read_whatever_their_file_is_called(
    tmp_path: Path, name: str, compression: str
) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / name), compression) as writer:
        for number in range(3):
            writer.write(b"%d" % number)
    assert read_records(str(tmp_path / "*"), 2) == [b"0", b"1"]
