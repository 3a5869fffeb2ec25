"""TFRecord files: those behind a list of patterns, and their records."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tensorflow as tf

from generic_trainer.errors import DataError

# What TensorFlow raises for bad input; for records that are not text, it fails while it says so.
READ_ERRORS = (tf.errors.OpError, UnicodeDecodeError)

# What is around a record: its length, the checksum of that, and the checksum of the record.
FRAME_BYTES = 8 + 4 + 4

# Looking at a file on an object store is one round trip; they overlap.
_PARALLEL_LOOKS = 16
_READ_BUFFER_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class RecordFile:
    """One TFRecord file.

    Attributes:
        path: local path or URI.
        size: length in bytes.
        modified_ns: time of the last change, in nanoseconds since the epoch.
        compression: what `tf.data.TFRecordDataset` calls it: "", "GZIP" or "SNAPPY".
    """

    path: str
    size: int
    modified_ns: int
    compression: str


def match_files(file_pattern: str | Sequence[str]) -> tuple[RecordFile, ...]:
    """Returns the files that match any pattern, in the order in which TFX reads them unshuffled.

    A file that matches two patterns is there twice, as it is with TFX.

    Raises:
        DataError: no pattern matches a file, or a file cannot be opened.
    """
    patterns = [file_pattern] if isinstance(file_pattern, str) else list(file_pattern)
    try:
        paths = sorted(path for pattern in patterns for path in tf.io.gfile.glob(pattern))
        if not paths:
            raise DataError(
                f"No file matches {_listed(patterns)}: expected the TFRecord files of a split. "
                "Check that the split exists and that the upstream component wrote it.",
                path=_only(patterns),
            )
        with ThreadPoolExecutor(_PARALLEL_LOOKS) as pool:
            return tuple(pool.map(_look_at, paths))
    except tf.errors.OpError as error:
        message = f"Cannot read {_listed(patterns)}: {reason(error)}"
        raise DataError(message, path=_only(patterns)) from error


def read_records(source: str | Sequence[bytes], count: int) -> list[bytes]:
    """Returns up to `count` serialized examples.

    Args:
        source: a TFRecord glob, whose files may be compressed, or the examples themselves.
        count: how many are wanted; they come from as many files as that takes.

    Raises:
        DataError: nothing matches, or a file is no TFRecord.
    """
    if not isinstance(source, str):
        return list(source[:count])
    paths = sorted(path for path in tf.io.gfile.glob(source) if not tf.io.gfile.isdir(path))
    records: list[bytes] = []
    for path in paths:
        if len(records) < count:
            records += _first_records(path, count - len(records))
    if not records:
        raise DataError(
            f"no examples: {len(paths)} files match {source!r} and hold no record", path=source
        )
    return records


def reason(error: BaseException) -> str:
    """Returns what one of `READ_ERRORS` says, without the names of TensorFlow's nodes."""
    if not isinstance(error, tf.errors.OpError):
        return "bytes that are not text"
    first_line = str(error.message).split("\n")[0]
    return re.sub(r"^\{\{.*?\}\} | \[Op:.*$|\.$", "", first_line)


def record_dataset(path: tf.Tensor | str, compression: tf.Tensor | str) -> tf.data.Dataset:
    """Returns the serialized records of one file."""
    return tf.data.TFRecordDataset(path, compression, buffer_size=_READ_BUFFER_BYTES)


def _first_records(path: str, count: int) -> list[bytes]:
    try:
        compression = _sniff(path, tf.io.gfile.stat(path).length)  # whatever the file is called
        dataset = record_dataset(path, compression).take(count)
        return [bytes(record.numpy()) for record in dataset]
    except tf.errors.OpError as error:
        raise DataError(f"{path} is not a TFRecord file: {error.message}", path=path) from error


def _look_at(path: str) -> RecordFile:
    stat = tf.io.gfile.stat(path)
    compression = "GZIP" if path.endswith(".gz") else _sniff(path, stat.length)
    return RecordFile(path, stat.length, stat.mtime_nsec, compression)


def _sniff(path: str, size: int) -> str:
    # A TFRecord starts with the little-endian length of its first record; a snappy stream with
    # the big-endian length of its first block, which read as a record length exceeds any file.
    with tf.io.gfile.GFile(path, "rb") as file:
        head = file.read(8)
    if head.startswith(_GZIP_MAGIC):
        return "GZIP"
    if len(head) < 8 or struct.unpack("<Q", head)[0] <= size:
        return ""
    return "SNAPPY" if struct.unpack(">I", head[:4])[0] <= size else ""


def _only(patterns: Sequence[str]) -> str | None:
    return patterns[0] if len(patterns) == 1 else None


def _listed(patterns: Sequence[str]) -> str:
    return ", ".join(repr(pattern) for pattern in patterns)
