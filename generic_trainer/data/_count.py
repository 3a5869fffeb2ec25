"""How many examples there are, counted once per file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from generic_trainer.data._files import RecordFile, match_files, record_dataset
from generic_trainer.data._graph import traced
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
            _counts[file] = _count(file)
    return sum(_counts[file] for file in files)


def remember_counts(files: Sequence[RecordFile], counts: Sequence[int]) -> None:
    """Notes what reading has shown."""
    _counts.update(zip(files, counts, strict=True))


def _count(file: RecordFile) -> int:
    with tf.init_scope():  # counting happens now, also where a graph is being built
        batches = record_dataset(file.path, file.compression).batch(_BATCH)
        sizes = batches.map(traced(lambda records: tf.size(records, tf.int64)))
        try:
            return int(sizes.reduce(np.int64(0), traced(lambda total, size: total + size)))
        except tf.errors.OpError as error:
            raise DataError(
                f"{file.path}: cannot be read while counting its records. Expected a TFRecord "
                f"file, found: {error.message.splitlines()[0]}"
            ) from error
