"""TFRecord files: those behind a list of patterns, and their records."""

from __future__ import annotations

import functools
import math
import mmap
import re
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tensorflow as tf

from generic_trainer._core.files import is_remote
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
        DataError: no pattern matches a file, a file cannot be opened, or a record is longer than
            its file.
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
            files = tuple(pool.map(look_at, paths))
    except READ_ERRORS as error:
        message = f"Cannot read {_listed(patterns)}: {reason(error)}"
        raise DataError(message, path=_only(patterns)) from error
    for file in files:
        check_lengths(file)
    return files


@functools.lru_cache(maxsize=4096)
def check_lengths(file: RecordFile, most: int | None = None) -> None:
    """Raises `DataError` where a record says that it is longer than its whole file.

    TensorFlow asks for the memory first, and does not outlive that there is none. Only the frames
    are looked at, 0.2 µs each, of files that are local and not compressed: others would have to be
    fetched, or unpacked, twice, and what is packed is read piece by piece anyway.

    Args:
        file: what to look at; a file that has not changed is looked at once.
        most: how many records are going to be read; None for all.
    """
    if file.compression or is_remote(file.path) or file.size < FRAME_BYTES:
        return
    try:
        number, length = _last_frame(file, most)
    except (OSError, ValueError) as error:  # it is gone, or empty by now
        raise DataError(f"{file.path} cannot be read: {error}", path=file.path) from error
    if length <= file.size:
        return
    try:
        for _ in record_dataset(file.path, file.compression).take(number):
            pass
    except READ_ERRORS:  # an earlier record is damaged: reading ends there, and says so
        return
    raise DataError(
        f"{file.path}: cannot be read at record {number} (counted from 0). Expected a TFRecord "
        f"file, found: a record of {length:,} bytes in a file of {file.size:,}. Write the file "
        "again, or take it out of the split.",
        path=file.path,
        record=number,
    )


def _last_frame(file: RecordFile, most: int | None) -> tuple[int, int]:
    """Returns number and length of the record with which the frames end, or leave the file."""
    unpack = struct.Struct("<Q").unpack_from
    position, number, length = 0, -1, 0
    with (
        open(file.path, "rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        end = len(content) - FRAME_BYTES
        while position <= end and number + 1 != most:
            (length,) = unpack(content, position)
            position += length + FRAME_BYTES
            number += 1
    return number, length


def read_records(
    source: str | Sequence[bytes], count: int, most_bytes: float = math.inf
) -> list[bytes]:
    """Returns up to `count` serialized examples.

    Args:
        source: a TFRecord glob, whose files may be compressed, or the examples themselves.
        count: how many are wanted; they come from as many files as that takes.
        most_bytes: where reading ends before there are so many; the first is always read.

    Raises:
        DataError: nothing matches, or a file is no TFRecord.
    """
    if not isinstance(source, str):
        return list(source[:count])
    try:
        paths = sorted(path for path in tf.io.gfile.glob(source) if not tf.io.gfile.isdir(path))
    except READ_ERRORS as error:
        raise DataError(f"Cannot read {source!r}: {reason(error)}", path=source) from error
    records: list[bytes] = []
    for path in paths:
        left = most_bytes - sum(map(len, records))
        if len(records) < count and left > 0:
            records += _first_records(path, count - len(records), left)
    if not records:
        raise DataError(
            f"no examples: {len(paths)} files match {source!r} and hold no record", path=source
        )
    return records


def copy_records(source: str, folder: str, count: int, most_bytes: float = math.inf) -> str:
    """Writes the first records of TFRecord files into one with the name of the first of them.

    Args:
        source: a glob, whose files may be compressed; the copy is so too, as its name says.
        folder: where to; it is made.
        count: how many records.
        most_bytes: see `read_records`.

    Returns:
        The path of the copy.

    Raises:
        DataError: nothing matches, or a file is no TFRecord.
    """
    records = read_records(source, count, most_bytes)
    first = min(path for path in tf.io.gfile.glob(source) if not tf.io.gfile.isdir(path))
    path = f"{folder}/{first.rpartition('/')[2]}"
    tf.io.gfile.makedirs(folder)
    with tf.io.TFRecordWriter(path, "GZIP" if path.endswith(".gz") else "") as writer:
        for record in records:
            writer.write(record)
    return path


def reason(error: BaseException) -> str:
    """Returns what one of `READ_ERRORS` says, without the names of TensorFlow's nodes."""
    if not isinstance(error, tf.errors.OpError):
        return "bytes that are not text"
    first_line = str(error.message).split("\n")[0]
    return re.sub(r"^\{\{.*?\}\} | \[Op:.*$|\.$", "", first_line)


def record_dataset(path: tf.Tensor | str, compression: tf.Tensor | str) -> tf.data.Dataset:
    """Returns the serialized records of one file."""
    # `tf.data.TFRecordDataset` maps a function over names, also where there is one: tracing it
    # takes longer than opening the file, and every record passes through it.
    records = tf.raw_ops.TFRecordDataset(
        filenames=path, compression_type=compression, buffer_size=_READ_BUFFER_BYTES
    )
    return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))


def _first_records(path: str, count: int, most_bytes: float) -> list[bytes]:
    try:
        file = look_at(path, whatever_its_name=True)
        check_lengths(file, count)
        records: list[bytes] = []
        for record in record_dataset(path, file.compression).take(count):
            records.append(bytes(record.numpy()))
            most_bytes -= len(records[-1])
            if most_bytes <= 0:
                break
        return records
    except READ_ERRORS as error:
        raise DataError(f"{path} is not a TFRecord file: {reason(error)}", path=path) from error


def look_at(path: str, whatever_its_name: bool = False) -> RecordFile:
    """Returns what can be told of a file without reading it; raises one of `READ_ERRORS`."""
    stat = tf.io.gfile.stat(path)
    is_gzip = path.endswith(".gz") and not whatever_its_name
    compression = "GZIP" if is_gzip else _sniff(path, stat.length)
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
