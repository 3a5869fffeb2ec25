"""How many examples there are, counted once per file."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from generic_trainer._core.records import (
    READ_ERRORS,
    RecordFile,
    match_files,
    reason,
    record_dataset,
)
from generic_trainer.data._graph import eagerly, traced
from generic_trainer.data._whole import FRAME_BYTES, check_whole
from generic_trainer.errors import DataError

__all__ = ["count_examples", "remember_counts"]

_BATCH = 4096
_counts: dict[RecordFile, int] = {}


def count_examples(file_patterns: str | Sequence[str]) -> int:
    """Returns the number of records in all files that match any pattern.

    A file is read once: what the reader has read, or an earlier call has counted, is known until
    the file changes.

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


def remember_counts(files: Sequence[RecordFile], counts: Sequence[int]) -> None:
    """Notes what reading has shown."""
    _counts.update(zip(files, counts, strict=True))


def _count(file: RecordFile) -> int:
    batches = record_dataset(file.path, file.compression).batch(_BATCH)
    try:
        rows, num_bytes = batches.map(_sizes).reduce(np.zeros(2, np.int64), traced(tf.add)).numpy()
    except READ_ERRORS as error:
        raise DataError(
            f"{file.path}: cannot be read while counting its records. Expected a TFRecord file, "
            f"found: {reason(error)}. Write the file again, or take it out of the split."
        ) from error
    check_whole([file], [int(num_bytes)])
    return int(rows)


@traced
def _sizes(records: tf.Tensor) -> tf.Tensor:
    """Returns the number of some records, and their length with frames, int64 [2]."""
    rows = tf.size(records, tf.int64)
    lengths = tf.cast(tf.strings.length(records), tf.int64)
    return tf.stack([rows, tf.reduce_sum(lengths) + rows * FRAME_BYTES])
