"""Counts of the examples of files, and of their bytes, by which truncated files are found.

A gzip file that is truncated between two records reads as a shorter file without an error. But the
last four bytes of a complete file are the length of its content (RFC 1952, section 2.3.1, ISIZE).
"""

import functools
import gzip
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from generic_trainer._core.records import (
    FRAME_BYTES,
    READ_ERRORS,
    RecordFile,
    match_files,
    record_dataset,
)
from generic_trainer._core.texts import reason_of
from generic_trainer.data._graph import as_it_stands, eagerly, traced
from generic_trainer.errors import DataError

_BATCH = 4096
_ISIZE_BYTES = 4
_PIECE_BYTES = 1 << 20

_counts: dict[RecordFile, int] = {}


def count_examples(file_patterns: str | Sequence[str]) -> int:
    """Returns the number of records in all files that match any pattern.

    A file is read once. The count of a file that the reader has read, or an earlier call has
    counted, is known until the file changes.

    Args:
        file_patterns: glob patterns, such as `fn_args.train_files`.

    Raises:
        DataError: no file matches, or one cannot be read.
    """
    files = match_files(file_patterns)
    for file in files:
        if file not in _counts:
            _counts[file] = eagerly(functools.partial(_count, file))
    return sum(_counts[file] for file in files)


def remember_counts(files: Sequence[RecordFile], counts: Iterable[int]) -> None:
    """Stores the numbers of examples that reading files has found."""
    _counts.update(zip(files, map(int, counts), strict=True))


class SplitCounts(Mapping[str, int]):
    """Split name → number of examples. The files of a split are read when its number is needed.

    Files that the reader has read already are not read again.
    """

    def __init__(self, split_patterns: Mapping[str, Sequence[str]]) -> None:
        """Takes split name → file patterns of TFRecord files."""
        self._split_patterns = dict(split_patterns)

    def __getitem__(self, split: str) -> int:
        return count_examples(self._split_patterns[split])

    def __iter__(self) -> Iterator[str]:
        return iter(self._split_patterns)

    def __len__(self) -> int:
        return len(self._split_patterns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._split_patterns)})"


@traced
def size_of_records(records: tf.Tensor) -> tf.Tensor:
    """Returns the number of serialized records [n], and their length with frames, int64 [2]."""
    return tf.stack([tf.size(records, tf.int64), tf.reduce_sum(lengths_with_frames(records))])


def lengths_with_frames(records: tf.Tensor) -> tf.Tensor:
    """Returns the bytes that each of the serialized records [n] takes in a file, int64 [n]."""
    return tf.cast(tf.strings.length(records), tf.int64) + FRAME_BYTES


def check_whole(files: Sequence[RecordFile], read_bytes: Iterable[int]) -> None:
    """Raises `DataError` if gzip files, read to this length, end before their streams do.

    The message names all of them, `path` is the first one.
    """
    cut_off = [
        file.path
        for file, num_bytes in zip(files, read_bytes, strict=True)
        if file.compression == "GZIP" and file.size and _is_cut_off(file, int(num_bytes))
    ]
    if cut_off:
        raise DataError(
            f"{', '.join(cut_off)}: cannot be read to the end. Expected a whole GZIP TFRecord "
            "file, found one that is cut off. Write the file again, or take it out of the split.",
            path=cut_off[0],
        )


def _count(file: RecordFile) -> int:
    sizes = record_dataset(file.path, file.compression).batch(_BATCH).map(size_of_records)
    try:
        rows, num_bytes = as_it_stands(sizes).reduce(np.zeros(2, np.int64), traced(tf.add)).numpy()
    except READ_ERRORS as error:
        raise DataError(
            f"{file.path}: cannot be read while counting its records. Expected a TFRecord file, "
            f"found: {reason_of(error)}. Write the file again, or take it out of the split.",
            path=file.path,
        ) from error
    check_whole([file], [int(num_bytes)])
    return int(rows)


def _is_cut_off(file: RecordFile, read_bytes: int) -> bool:
    with tf.io.gfile.GFile(file.path, "rb") as stream:
        stream.seek(max(0, file.size - _ISIZE_BYTES))
        end = stream.read(_ISIZE_BYTES)
        if end == struct.pack("<I", read_bytes % 2**32):
            return False
        # The length differs if a file consists of several gzip streams: decompress all of it.
        stream.seek(0)
        try:
            with gzip.GzipFile(fileobj=stream, mode="rb") as content:
                while content.read(_PIECE_BYTES):
                    pass
        except (EOFError, gzip.BadGzipFile):
            return True
    return False
