"""The plan for reading some files: an estimate of their columns, and the path for them."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from generic_trainer._core.cluster import has_parameter_servers
from generic_trainer._core.records import FRAME_BYTES, RecordFile, record_dataset
from generic_trainer.data._budget import ReaderBudget, ReadPath, size_text
from generic_trainer.data._columns import SEPARATORS
from generic_trainer.data._graph import as_it_stands
from generic_trainer.data._layout import Layout, make_layout
from generic_trainer.data._parser import Parser

# In a cluster, larger columns are streamed: every worker must have room for smaller ones, in memory
# or on disk.
_MOST_CLUSTER_BYTES = 4 * 10**9
_SAMPLE_FILES = 3
_SAMPLE_RECORDS = 1000
# Dictionary encoding pays off even if most sampled strings are distinct: over a million rows few
# are new.
_MOST_DISTINCT = 0.9
_HEAD_BYTES = 1 << 17
_SNAPPY_RATIO = 2.0


class NoColumns(Exception):
    """Examples cannot be kept in columns; the message gives the reason."""


class NoRoom(NoColumns):
    """This machine has no room for columns, while another one might have."""


def reason_to_stream(parser: Parser) -> str | None:
    """Returns why columns of this process cannot serve the dataset, or None if they can."""
    configs = parser.features.values()
    sparse = [config for config in configs if isinstance(config, tf.io.SparseFeature)]
    if any({*config.index_key, config.value_key} & parser.features.keys() for config in sparse):
        return "a list is read both by itself and as a part of a sparse tensor"
    # `SerializeManySparse` refuses such sparse tensors: those of a chunk may have 2^63 cells in
    # all. An empty array has no rows.
    shapes = [getattr(config, "size", getattr(config, "shape", ())) for config in configs]
    if any(min(shape, default=1) < 1 or math.prod(shape) > 1 << 40 for shape in shapes):
        return "by the schema, a tensor is empty, huge, or sparse with an index of no int_domain"
    if tf.inside_function():
        return "the dataset is built inside a tf.function, which may run in another process"
    kind = tf.distribute.ParameterServerStrategy
    if has_parameter_servers() or isinstance(tf.distribute.get_strategy(), kind):
        return "the dataset is sent to other processes, those of a cluster with parameter servers"
    return None


@dataclass(frozen=True)
class Estimate:
    """An estimate of the content of some files.

    Attributes:
        num_examples: approximate number of examples.
        record_bytes: approximate length of a serialized record.
        column_bytes: approximate size of the columns of all examples.
        coded: features whose strings repeat often enough for a vocabulary.
    """

    num_examples: int
    record_bytes: int
    column_bytes: int
    coded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReadPlan:
    """A path for the columns of some files.

    Attributes:
        path: source of the examples.
        reason: reason for the path, in words for the log.
        expected: the estimate by which the path was chosen.
        budget: room for the columns.
        may_spill: whether columns that outgrow the memory move to disk. For one pass that is not
            worth it, except in a cluster, whose workers must not stream by their memory.
    """

    path: ReadPath
    reason: str
    expected: Estimate
    budget: ReaderBudget
    may_spill: bool


def choose_path(
    num_bytes: int, budget: ReaderBudget, *, one_pass: bool, in_cluster: bool
) -> tuple[ReadPath, str]:
    """Returns the path for columns of this size, and the reason.

    Memory and disk give the same order of rows, streaming gives another one. So the workers of a
    cluster, whose memory and disks may differ, stream by the size of the data alone.

    Raises:
        NoColumns: the examples are to be streamed.
        NoRoom: because of this machine.
    """
    size = f"about {size_text(num_bytes)} of columns"
    if in_cluster and num_bytes > _MOST_CLUSTER_BYTES:
        most = size_text(_MOST_CLUSTER_BYTES)
        raise NoColumns(f"{size} are more than {most} on each worker")
    if num_bytes <= budget.memory_bytes:
        return "memory", f"{size} within the budget of {size_text(budget.memory_bytes)}"
    larger = f"{size} are more than the memory budget of {size_text(budget.memory_bytes)}"
    if one_pass and not in_cluster:
        raise NoColumns(f"{larger}, and one pass is asked for")
    free = budget.disk_bytes()
    if num_bytes <= free:
        return "disk", larger
    raise NoRoom(f"{larger} and than the {size_text(free)} that are free in {budget.directory}")


def estimate(files: Sequence[RecordFile], parser: Parser) -> Estimate:
    """Returns an estimate from the first records of a few files, spread evenly.

    Raises:
        tf.errors.OpError: one of them cannot be read or parsed.
    """
    filled = [file for file in files if file.size]
    chosen = filled[:: max(1, len(filled) // _SAMPLE_FILES)][:_SAMPLE_FILES]
    samples = [_first_records(file, parser.rows_at_once(_SAMPLE_RECORDS)) for file in chosen]
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


def _first_records(file: RecordFile, count: int) -> tf.Tensor:
    """Returns up to `count` serialized records, string [n]."""
    batches = record_dataset(file.path, file.compression).take(count)
    return next(iter(as_it_stands(batches.batch(count))), tf.zeros([0], tf.string))


def _inflation(file: RecordFile) -> float:
    """Returns the ratio of the bytes of records to the bytes of the file."""
    if not file.compression:
        return 1.0
    if file.compression != "GZIP":
        return _SNAPPY_RATIO
    with tf.io.gfile.GFile(file.path, "rb") as opened:
        head = opened.read(_HEAD_BYTES)
    either_header = 32 + zlib.MAX_WBITS
    return len(zlib.decompressobj(either_header).decompress(head)) / len(head)


def _repeats(values: Any) -> bool:
    """Returns whether the values of a feature are strings that repeat."""
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
