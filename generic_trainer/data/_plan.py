"""The plan for reading some files: what to expect of them, and so where their columns go."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from generic_trainer._core.cluster import has_parameter_servers
from generic_trainer._core.records import FRAME_BYTES, RecordFile, record_dataset
from generic_trainer.data._budget import ReaderBudget, size_text
from generic_trainer.data._columns import SEPARATORS
from generic_trainer.data._graph import as_it_stands
from generic_trainer.data._layout import Layout, make_layout
from generic_trainer.data._parser import Parser

ReadPath = Literal["memory", "disk", "stream"]

_SAMPLE_FILES = 3
_SAMPLE_RECORDS = 1000
# A code saves time also where most strings of a sample are new: few of a million rows then are.
_MOST_DISTINCT = 0.9
_HEAD_BYTES = 1 << 17
_SNAPPY_RATIO = 2.0


def reason_to_stream() -> str | None:
    """Returns why columns of this process cannot serve the dataset; None: they can."""
    if tf.inside_function():
        return "the dataset is built inside a tf.function, which may run in another process"
    if has_parameter_servers():
        return "the cluster has parameter servers, which the coordinator sends the dataset to"
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return "a parameter server strategy sends the dataset to other processes"
    return None


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


@dataclass(frozen=True)
class ReadPlan:
    """A path for the columns of some files.

    Attributes:
        path: where the examples come from.
        reason: why, in words for the log.
        expected: the estimate that the path was chosen by.
        budget: what there is room for.
        one_pass: whether moving to disk is not worth it.
    """

    path: ReadPath
    reason: str
    expected: Estimate
    budget: ReaderBudget
    one_pass: bool


def choose_path(num_bytes: int, budget: ReaderBudget, one_pass: bool) -> tuple[ReadPath, str]:
    """Returns the path for columns of this size, and the reason."""
    size = f"about {size_text(num_bytes)} of columns"
    if num_bytes <= budget.memory_bytes:
        return "memory", f"{size} within the budget of {size_text(budget.memory_bytes)}"
    larger = f"{size} are more than the memory budget of {size_text(budget.memory_bytes)}"
    if one_pass:
        return "stream", f"{larger}, and one pass is asked for"
    free = budget.disk_bytes()
    if num_bytes <= free:
        return "disk", larger
    return "stream", f"{larger} and than the {size_text(free)} that are free in {budget.directory}"


def estimate(files: Sequence[RecordFile], parser: Parser) -> Estimate:
    """Looks at the first records of a few files, spread evenly.

    Raises:
        tf.errors.OpError: one of them cannot be read or parsed.
    """
    filled = [file for file in files if file.size]
    chosen = filled[:: max(1, len(filled) // _SAMPLE_FILES)][:_SAMPLE_FILES]
    samples = [first_records(file, parser.rows_at_once(_SAMPLE_RECORDS)) for file in chosen]
    records = tf.concat([tf.zeros([0], tf.string), *samples], axis=0)
    number = len(records)
    if not number:
        return Estimate(0, 0, 0)
    record_bytes = int(tf.reduce_sum(tf.strings.length(records))) / number
    inflation = sum(map(_inflation, chosen)) / len(chosen)
    all_bytes = sum(file.size for file in files) * inflation
    num_examples = int(all_bytes / (record_bytes + FRAME_BYTES)) + 1
    parsed = parser.parse_lists(records)
    coded = frozenset(key for key, values in parsed.items() if _repeats(values))
    row_bytes = _column_bytes(make_layout(parser, SEPARATORS[0], coded), parsed) / number
    return Estimate(num_examples, int(record_bytes), int(num_examples * row_bytes), coded)


def first_records(file: RecordFile, count: int) -> tf.Tensor:
    """Returns up to `count` serialized records, string [n]."""
    batches = record_dataset(file.path, file.compression).take(count)
    return next(iter(as_it_stands(batches.batch(count))), tf.zeros([0], tf.string))


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
