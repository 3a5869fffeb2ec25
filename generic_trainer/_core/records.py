"""TFRecord files: the files that match patterns, and their records."""

import contextlib
import heapq
import itertools
import logging
import os
import random
import re
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tensorflow as tf

from generic_trainer._core.files import is_remote
from generic_trainer._core.texts import reason_of
from generic_trainer.errors import DataError

_logger = logging.getLogger(__name__)

# Errors of TensorFlow for bad input; if records are not text, formatting its message fails.
READ_ERRORS = (tf.errors.OpError, UnicodeDecodeError)

# Bytes around a record: its length, the checksum of that, and the checksum of the record.
FRAME_BYTES = 8 + 4 + 4

# Set while the reader in use streams records instead of taking rows from columns. The two have
# different orders, and free memory decides between them: a fit that resumes has to compare.
streaming = threading.Event()

# A look at a file on an object store is one round trip, so several run in parallel.
_PARALLEL_LOOKS = 16
_READ_BUFFER_BYTES = 1 << 20
_SAMPLED_BYTES = 256 << 20  # that a sample is taken from, in seconds
_RECORD_COST = 256  # bytes that are read as fast as a record without any
_SAMPLED_BLOCK = 64  # records that are read at once, of as many bytes at most:
_BLOCK_BYTES = 1 << 20
# With the method, deflate, and the level in byte 8: the magic alone also starts TFRecords of 35,615
# and, with the method, of 559,903 bytes.
_GZIP = re.compile(rb"\x1f\x8b\x08.{5}[\0\2\4]", re.S)


@dataclass(frozen=True)
class RecordFile:
    """One TFRecord file.

    Attributes:
        path: local path or URI.
        size: length in bytes.
        changed: the time of the last modification in nanoseconds; of a local file its inode and
            change time too, because programs can set the time of the modification.
        compression: as in `tf.data.TFRecordDataset`: "", "GZIP" or "SNAPPY".
    """

    path: str
    size: int
    changed: tuple[int, ...]
    compression: str


def match_files(file_pattern: str | Sequence[str]) -> tuple[RecordFile, ...]:
    """Returns the files that match any pattern, in the order in which TFX reads them unshuffled.

    A file that matches two patterns is listed twice, as TFX does.

    Raises:
        DataError: no pattern matches a file, or a file cannot be opened.
    """
    patterns = [file_pattern] if isinstance(file_pattern, str) else list(file_pattern)
    listed = ", ".join(map(repr, patterns)) or "an empty list of patterns"
    only = patterns[0] if len(patterns) == 1 else None
    try:
        paths = sorted(path for pattern in patterns for path in tf.io.gfile.glob(pattern))
        if not paths:
            raise DataError(
                f"No file matches {listed}: expected the TFRecord files of a split. "
                "Check that the split exists and that the upstream component wrote it.",
                path=only,
            )
        with ThreadPoolExecutor(_PARALLEL_LOOKS) as pool:
            return tuple(pool.map(look_at, paths))
    except READ_ERRORS as error:
        raise DataError(f"Cannot read {listed}: {reason_of(error)}", path=only) from error


def read_records(source: str | Sequence[bytes], count: int) -> list[bytes]:
    """Returns up to `count` serialized examples.

    Args:
        source: a TFRecord glob, whose files may be compressed, or the examples themselves.
        count: the wanted number, from as many files as needed.

    Raises:
        DataError: no file matches, or one is not a TFRecord file.
    """
    return [*itertools.islice(_records_of(source), count)]


def sample_records(source: str | Sequence[bytes], count: int, most_bytes: int) -> list[bytes]:
    """Returns up to `count` serialized examples from all over the source, in its order.

    The first ones of a file that is sorted, perhaps by its label, are not like the others. The same
    source has the same sample.

    Args:
        source: as for `read_records`.
        count: the wanted number.
        most_bytes: of the sample; one record is always in it.

    Raises:
        DataError: no file matches, or one is not a TFRecord file; once there are as many as wanted,
            it ends the sample with a warning.
    """
    number_of = random.Random(0).random
    sample: list[tuple[float, int, bytes]] = []  # the records of the highest numbers
    kept = seen = place = 0
    try:
        for place, record in enumerate(_records_of(source, _SAMPLED_BLOCK), 1):
            number = number_of()
            is_full = len(sample) >= max(count, 1) or kept + len(record) > most_bytes
            if not (is_full and sample and number < sample[0][0]):
                heapq.heappush(sample, (number, place, record))
                kept += len(record)
            while len(sample) > max(count, 1) or (kept > most_bytes and len(sample) > 1):
                kept -= len(heapq.heappop(sample)[2])
            seen += len(record) + _RECORD_COST
            if seen >= _SAMPLED_BYTES:
                break
    except DataError as error:
        if place < count and len(sample) == place:
            raise
        _logger.warning("The sample of %d examples ends before a file: %s", len(sample), error)
    return [record for _, _, record in sorted(sample, key=lambda each: each[1])]


def _records_of(source: str | Sequence[bytes], block: int = 1) -> Iterator[bytes]:
    if not isinstance(source, str):
        yield from source
        return
    paths = _paths(source)
    records = _records(paths, block)
    first = next(records, None)
    if first is None:
        raise DataError(
            f"no examples: {len(paths)} files match {source!r} and hold no record", path=source
        )
    yield first
    yield from records


def hold_no_record(source: str) -> bool:
    """Returns whether files match a TFRecord glob, and are all empty.

    It runs no op of TensorFlow, whose threads a process that is forked later would lack.
    """
    paths = _paths(source)
    return bool(paths) and all(map(_is_empty, paths))


def _is_empty(path: str) -> bool:
    with tf.io.gfile.GFile(path, "rb") as file:
        start = file.read(1 << 10)
    unpacked = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of gzip or zlib
    try:
        return not start or (unpacked.decompress(start) == b"" and unpacked.eof)
    except zlib.error:
        return False


def _paths(source: str) -> list[str]:
    try:
        return sorted(path for path in tf.io.gfile.glob(source) if not tf.io.gfile.isdir(path))
    except READ_ERRORS as error:
        raise DataError(f"Cannot read {source!r}: {reason_of(error)}", path=source) from error


def record_dataset(path: tf.Tensor | str, compression: tf.Tensor | str) -> tf.data.Dataset:
    """Returns the serialized records of one file."""
    # `tf.data.TFRecordDataset` maps a function over names, even of a single file: tracing it takes
    # longer than opening the file, and every record passes through it.
    records = tf.raw_ops.TFRecordDataset(
        filenames=path, compression_type=compression, buffer_size=_READ_BUFFER_BYTES
    )
    return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))


def _records(paths: Iterable[str], block: int) -> Iterator[bytes]:
    for path in paths:
        try:
            file = look_at(path, whatever_its_name=True)
            dataset = record_dataset(path, file.compression)
            longest = 1
            for record in dataset.take(block).as_numpy_iterator():
                yield record
                longest = max(longest, len(record))
            size = max(1, min(block, _BLOCK_BYTES // longest))
            for records in dataset.skip(block).batch(size).as_numpy_iterator():
                yield from records
        except READ_ERRORS as error:
            reason = reason_of(error)
            raise DataError(f"{path} is not a TFRecord file: {reason}", path=path) from error


def look_at(path: str, whatever_its_name: bool = False) -> RecordFile:
    """Returns size, times and compression of a file; raises one of `READ_ERRORS`."""
    stat = tf.io.gfile.stat(path)
    changed: tuple[int, ...] = (stat.mtime_nsec,)
    if not is_remote(path):
        with contextlib.suppress(OSError):  # TensorFlow reports a file that is gone meanwhile
            local = os.stat(path)
            changed += (local.st_ino, local.st_ctime_ns)
    is_gzip = path.endswith(".gz") and not whatever_its_name
    compression = "GZIP" if is_gzip else _sniff(path, stat.length)
    return RecordFile(path, stat.length, changed, compression)


def _sniff(path: str, size: int) -> str:
    # A TFRecord starts with the little-endian length of its first record; a snappy stream with
    # the big-endian length of its first block, which read as a record length exceeds any file.
    with tf.io.gfile.GFile(path, "rb") as file:
        head = file.read(9)
    if _GZIP.match(head):
        return "GZIP"
    if len(head) < 8 or struct.unpack("<Q", head[:8])[0] <= size:
        return ""
    return "SNAPPY" if struct.unpack(">I", head[:4])[0] <= size else ""
