"""How many examples some files hold and how large their columns will be, from a first look."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from generic_trainer._core.records import RecordFile, record_dataset
from generic_trainer.data._layout import Layout, make_layout
from generic_trainer.data._parse import Parser
from generic_trainer.data._strings import SEPARATORS

__all__ = ["Estimate", "estimate"]

_SAMPLE_FILES = 3
_SAMPLE_RECORDS = 1000
# A code saves time also where most strings of a sample are new: few of a million rows then are.
_MOST_DISTINCT = 0.9
_HEAD_BYTES = 1 << 20
_SNAPPY_RATIO = 2.0
_FRAME_BYTES = 16  # of a TFRecord: length, checksum of it, checksum of the record


@dataclass(frozen=True)
class Estimate:
    """What reading some files will give.

    Attributes:
        num_examples: about how many examples there are.
        record_bytes: about how long a serialized record is.
        column_bytes: about how large the columns of all examples are.
        coded: the features whose strings repeat so that a vocabulary is worth it.
    """

    num_examples: int
    record_bytes: int
    column_bytes: int
    coded: frozenset[str] = frozenset()


def estimate(files: Sequence[RecordFile], parser: Parser) -> Estimate:
    """Looks at the first records of a few files, spread evenly.

    Raises:
        tf.errors.OpError: one of them cannot be read or parsed.
    """
    filled = [file for file in files if file.size]
    chosen = filled[:: max(1, len(filled) // _SAMPLE_FILES)][:_SAMPLE_FILES]
    samples = [_first_records(file) for file in chosen]
    records = tf.concat([tf.zeros([0], tf.string), *samples], axis=0)
    number = len(records)
    if not number:
        return Estimate(0, 0, 0)
    record_bytes = int(tf.reduce_sum(tf.strings.length(records))) / number
    inflated = sum(file.size for file in files) * _mean_ratio(chosen)
    num_examples = int(inflated / (record_bytes + _FRAME_BYTES)) + 1
    parsed = parser.parse_lists(records)
    coded = frozenset(key for key, values in parsed.items() if _repeats(values))
    row_bytes = _column_bytes(make_layout(parser, SEPARATORS[0], coded), parsed) / number
    return Estimate(num_examples, int(record_bytes), int(num_examples * row_bytes), coded)


def _first_records(file: RecordFile) -> tf.Tensor:
    batches = record_dataset(file.path, file.compression).take(_SAMPLE_RECORDS)
    return next(iter(batches.batch(_SAMPLE_RECORDS)), tf.zeros([0], tf.string))


def _mean_ratio(files: Sequence[RecordFile]) -> float:
    return sum(_inflation(file) for file in files) / len(files)


def _inflation(file: RecordFile) -> float:
    """Returns how many bytes of records one byte of the file stands for."""
    if not file.compression:
        return 1.0
    if file.compression != "GZIP":
        return _SNAPPY_RATIO
    with tf.io.gfile.GFile(file.path, "rb") as opened:
        head = opened.read(_HEAD_BYTES)
    either_header = 32 + zlib.MAX_WBITS
    return len(zlib.decompressobj(either_header).decompress(head)) / len(head)


def _repeats(values: Any) -> bool:
    """Returns whether the values of a feature are strings of which many are the same."""
    if values.dtype != tf.string:
        return False
    if isinstance(values, tf.SparseTensor):
        values = values.values
    flat = tf.reshape(getattr(values, "flat_values", values), [-1])
    return len(tf.unique(flat).y) < _MOST_DISTINCT * len(flat)


def _column_bytes(layout: Layout, parsed: Mapping[str, Any]) -> int:
    arrays, _ = layout.pack(parsed)
    stored = [array[0] if isinstance(array, tuple) else array for array in arrays]
    return sum(array.dtype.size * int(tf.size(array)) for array in stored)
