"""TFRecord files, read by what they hold, and the event files that are such."""

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from generic_trainer._core.event_files import ScalarReader, last_scalars
from generic_trainer._core.records import read_records, sample_records
from generic_trainer.errors import DataError
from tests.data.reading import frame


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("name", ["data", "data.gz", "data.tfrecord"])
def test_examples_are_read_whatever_their_file_is_called(
    tmp_path: Path, name: str, compression: str
) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / name), compression) as writer:
        for number in range(3):
            writer.write(b"%d" % number)
    assert read_records(str(tmp_path / "*"), 2) == [b"0", b"1"]


@pytest.mark.parametrize(("most_bytes", "rows"), [(1 << 20, 100), (35, 7), (1, 1)])
@pytest.mark.parametrize("files", [0, 1, 3])
def test_a_sample_has_rows_of_all_parts_of_what_is_sorted(
    tmp_path: Path, files: int, most_bytes: int, rows: int
) -> None:
    records = [b"%05d" % number for number in range(1500)]
    for file in range(files):
        with tf.io.TFRecordWriter(str(tmp_path / f"data-{file}")) as writer:
            for record in records[file * 1500 // files : (file + 1) * 1500 // files]:
                writer.write(record)
    source = str(tmp_path / "*") if files else records
    sample = sample_records(source, 100, most_bytes)
    assert len({*sample}) == rows and sample == sorted(sample)
    assert sample == sample_records(source, 100, most_bytes)
    thirds = Counter(int(record) // 500 for record in sample)
    assert rows < 100 or min(thirds[third] for third in range(3)) > 25
    assert sample_records(source, 1500, 1 << 20) == records


@pytest.mark.parametrize(("size", "most"), [(0, 2_000_000), (1 << 20, 300)])
def test_a_sample_is_taken_in_seconds_from_records_of_any_size(size: int, most: int) -> None:
    class Records(Sequence[bytes]):
        read = 0

        def __len__(self) -> int:
            return 2 * most

        def __getitem__(self, place: Any) -> Any:
            if place >= len(self):
                raise IndexError
            self.read = place
            return bytes(size)

    records = Records()
    sample_records(records, 10, 1 << 20)
    assert records.read < most


def test_a_sample_of_large_records_holds_few_of_them_at_once(tmp_path: Path) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "data")) as writer:
        for _ in range(200):
            writer.write(bytes(1 << 18))
    tracemalloc.start()
    sample_records(str(tmp_path / "*"), 4, 1 << 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("late", [b'{"name": "Ann"}', frame(3) + b"abc"])
def test_a_late_file_that_is_damaged_ends_a_sample_and_an_early_one_is_an_error(
    tmp_path: Path, late: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        for _ in range(100):
            writer.write(b"x")
    (tmp_path / "b").write_bytes(late)
    assert len(sample_records(str(tmp_path / "*"), 100, 1 << 20)) == 100
    assert f"{tmp_path}/b is not a TFRecord file" in caplog.text
    with pytest.raises(DataError, match="b is not a TFRecord file"):
        sample_records(str(tmp_path / "*"), 101, 1 << 20)


@pytest.mark.parametrize("size", [0x8B1F, 0x088B1F])  # read as bytes, the magic of gzip
def test_an_uncompressed_file_may_start_as_gzip_does(tmp_path: Path, size: int) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "data")) as writer:
        writer.write(b"x" * size)
    assert len(read_records(str(tmp_path / "data"), 2)[0]) == size


@pytest.mark.parametrize("damage", [b"\xff" * 40, frame(3) + b"abc", frame(3) + b"\xff" * 7, b""])
def test_a_damaged_event_file_counts_up_to_the_damage(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "events.out.tfevents.1"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for event in (
            event_pb2.Event(step=1, summary={"value": [{"tag": "loss", "simple_value": 0.5}]}),
            event_pb2.Event(step=2, summary={"value": [scalar("a", 3), scalar("b", 10**11)]}),
        ):
            writer.write(event.SerializeToString())
    path.write_bytes(path.read_bytes() + damage)
    assert last_scalars(str(tmp_path)) == {"loss": 0.5}


def scalar(tag: str, size: int) -> dict[str, Any]:
    """Returns a value of TF2, whose tensor should have one element and says it has more."""
    shape = {"dim": [{"size": size}]}
    return {
        "tag": tag,
        "tensor": {"dtype": 1, "float_val": [1.0], "tensor_shape": shape},
        "metadata": {"plugin_data": {"plugin_name": "scalars"}},
    }


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

    expected = [("train/loss", 1, 1.0), ("train/loss", 2, 0.5), ("train/loss", 3, 0.333)]
    assert [one for part in read for one in part] == expected
    assert [len(part) for part in read] == [0, 1, 1, 1]
    assert reader.read() == []


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.0.gone").symlink_to(tmp_path / "gone")
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("loss", 0.5, step=1)
    assert last_scalars(str(tmp_path)) == {"loss": 0.5}
