"""Loading of TFRecord files into columns: once, in parallel, in an order that all workers share.

Columns that become larger than expected move from memory to disk, or are abandoned.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.machine import available_cpus
from generic_trainer._core.records import RecordFile, record_dataset
from generic_trainer.data._columns import SEPARATORS
from generic_trainer.data._counting import (
    check_whole,
    lengths_with_frames,
    remember_counts,
    size_of_records,
)
from generic_trainer.data._graph import as_it_stands, traced
from generic_trainer.data._layout import Layout, make_layout
from generic_trainer.data._parser import Parser
from generic_trainer.data._plan import NoColumns, NoRoom, ReadPlan
from generic_trainer.data._store import Store, VocabularyOutgrown

_logger = logging.getLogger(__name__)

# A fixed number, so that no order depends on the number of processors.
FILES_AT_A_TIME = 16
_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = (16, 4096)
# A block costs a millisecond in Python, whatever its size; joining blocks costs some thirty.
_FEW_FILES = 32
_MOST_FILES = 256
_VOCABULARY_SHARE = 8  # of the memory budget, also where columns are on disk
_PROGRESS_INTERVAL_S = 10.0


class _SeparatorInData(Exception):
    """A string feature holds the byte sequence that ends stored strings."""


@dataclass
class Columns:
    """Columns of some files, and the places of each file's examples among their rows.

    Attributes:
        runs: (file number, rows) of neighbouring rows from one file, in the order of storage.
        expected_bytes: the size that was expected before reading. It follows from the files alone,
            while their actual size also depends on the memory that a vocabulary may take.
    """

    layout: Layout
    store: Store
    num_files: int
    runs: list[tuple[int, int]] = field(default_factory=list)
    expected_bytes: int = 0

    @property
    def num_rows(self) -> int:
        return sum(rows for _, rows in self.runs)

    @property
    def row_bytes(self) -> int:
        """Mean size of an example in the columns, at least 1."""
        return max(1, self.store.num_bytes // max(1, self.num_rows))


def load_columns(
    files: Sequence[RecordFile], parser: Parser, options: Any, plan: ReadPlan
) -> Columns:
    """Reads files into memory or onto disk, as planned unless they are larger than expected.

    Raises:
        DataError: a file is cut off.
        tf.errors.OpError: a file cannot be read, or a record cannot be parsed.
        NoRoom: the columns are too large after all.
        NoColumns: they hold strings that cannot be stored.
    """
    block_rows = parser.rows_at_once(_block_rows(plan.expected.record_bytes))
    at_once = parser.rows_at_once(block_rows * _files_at_once(files)) // block_rows
    records = _record_blocks(files, block_rows, at_once, options.reader_num_threads)
    # The tuner of `tf.data` starts with one thread: a short pass is over before it has more.
    threads = parser.threads(block_rows * at_once, _threads(options.parser_num_threads))
    coded: AbstractSet[str] = plan.expected.coded
    separators = list(SEPARATORS)
    while True:
        layout = make_layout(parser, separators[0], coded)
        directory = None if plan.path == "memory" else plan.budget.directory
        store = Store(layout.arrays, directory, plan.budget.memory_bytes // _VOCABULARY_SHARE)
        sizes_of_files = np.zeros([len(files), 2], np.int64)
        columns = Columns(layout, store, len(files), [], plan.expected.column_bytes)
        next_log_s = time.monotonic() + _PROGRESS_INTERVAL_S
        try:
            for numbers, sizes, arrays, spoiled in _blocks(records, parser, layout, threads):
                if spoiled:
                    raise _SeparatorInData
                store.append(arrays)
                columns.runs.extend(zip(numbers.tolist(), sizes[:, 0].tolist(), strict=True))
                np.add.at(sizes_of_files, numbers, sizes)
                if time.monotonic() > next_log_s:
                    next_log_s = time.monotonic() + _PROGRESS_INTERVAL_S
                    done = columns.num_rows, plan.expected.num_examples
                    _logger.info("Reading examples: %s of about %s", *map("{:,}".format, done))
                _keep_room(store, plan)
            check_whole(files, sizes_of_files[:, 1])
            remember_counts(files, sizes_of_files[:, 0])
            store.vocabulary.freeze()
            return columns
        except VocabularyOutgrown:
            store.close()
            _logger.info("Reading again from the start: strings repeat less than they seemed to")
            coded = frozenset()
        except _SeparatorInData as error:
            store.close()
            if not separators[1:]:
                raise NoColumns("strings hold every separator that could end them") from error
            separators.pop(0)
        except BaseException:
            store.close()
            raise


def _block_rows(record_bytes: int) -> int:
    least, most = _BLOCK_ROWS
    return min(most, max(least, _BLOCK_BYTES // max(1, record_bytes)))


def _files_at_once(files: Sequence[RecordFile]) -> int:
    """Returns from how many files to join blocks: 1, or more if there are many small files."""
    if len(files) <= _FEW_FILES:
        return 1
    mean_bytes = sum(file.size for file in files) // len(files)
    return min(_MOST_FILES, max(1, _BLOCK_BYTES // max(1, mean_bytes)))


def _record_blocks(
    files: Sequence[RecordFile], block_rows: int, at_once: int, num_threads: int
) -> tf.data.Dataset:
    """Returns a dataset of file numbers and their serialized records; see `_sized`.

    Args:
        files: the files.
        block_rows: maximal number of records in a block, which are of one file.
        at_once: how many blocks are joined to one element.
        num_threads: how many files are read in parallel; -1: as many as there are processors.
    """

    @traced
    def blocks_of_file(number: tf.Tensor, path: tf.Tensor, compression: tf.Tensor) -> Any:
        blocks = record_dataset(path, compression).batch(block_rows)
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(number).repeat(), blocks))

    numbered = tf.data.Dataset.from_tensor_slices(
        (
            tf.range(len(files), dtype=tf.int64),
            [file.path for file in files],
            [file.compression for file in files],
        )
    )
    blocks = numbered.interleave(
        blocks_of_file,
        cycle_length=min(FILES_AT_A_TIME, len(files)),
        num_parallel_calls=min(_threads(num_threads), FILES_AT_A_TIME, len(files)),
        deterministic=True,
    )
    return blocks if at_once == 1 else blocks.ragged_batch(at_once)


def _sized(numbers: tf.Tensor, records: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the same form of an element of `_record_blocks` of one file or of several.

    Returns:
        File numbers, int64 [blocks]; `size_of_records` of each, int64 [blocks, 2]; the serialized
        records of all, string [n].
    """
    if not isinstance(records, tf.RaggedTensor):
        return tf.expand_dims(numbers, 0), tf.expand_dims(size_of_records(records), 0), records
    flat = records.flat_values
    num_bytes = tf.math.segment_sum(lengths_with_frames(flat), records.value_rowids())
    return numbers, tf.stack([records.row_lengths(), num_bytes], axis=1), flat


def _blocks(
    records: tf.data.Dataset, parser: Parser, layout: Layout, threads: int
) -> Iterator[Any]:
    """Yields (file numbers, their sizes, arrays, whether they hold the separator)."""

    @traced
    def pack(numbers: tf.Tensor, blocks: Any) -> Any:
        numbers, sizes, serialized = _sized(numbers, blocks)
        return numbers, sizes, *layout.pack(parser.parse_lists(serialized))

    packed = records.map(pack, num_parallel_calls=threads, deterministic=True)
    yield from as_it_stands(packed.prefetch(2)).as_numpy_iterator()


def _threads(number: int) -> int:
    return number if number > 0 else len(available_cpus())


def _keep_room(store: Store, plan: ReadPlan) -> None:
    """Moves columns to disk that outgrow the memory budget; raises `NoRoom` if the disk is full."""
    budget = plan.budget
    if not store.in_memory:
        if not budget.disk_bytes():
            raise NoRoom(f"disk is short in {budget.directory}")
    elif store.num_bytes > budget.memory_bytes:
        if not plan.may_spill:
            raise NoRoom("the columns outgrow the memory budget, and one pass is asked for")
        if store.num_bytes > budget.disk_bytes():
            raise NoRoom(f"memory is short, and disk in {budget.directory}")
        _logger.info("The columns outgrow the memory budget: moved to %s", budget.directory)
        store.spill(budget.directory)
