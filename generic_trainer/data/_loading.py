"""Loading of TFRecord files into columns: once, in parallel, in an order that all workers share.

Columns that become larger than expected move from memory to disk, or are abandoned.

Examples and their bytes are counted, by which truncated files are found. A gzip file that is
truncated between two records reads as a shorter file without an error. But the last four bytes of a
complete file are the length of its content (RFC 1952, section 2.3.1, ISIZE).
"""

import functools
import gzip
import logging
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.machine import available_cpus
from generic_trainer._core.records import (
    FRAME_BYTES,
    READ_ERRORS,
    RecordFile,
    match_files,
    record_dataset,
)
from generic_trainer._core.texts import duration, reason_of
from generic_trainer.data._columns import SEPARATORS
from generic_trainer.data._graph import as_it_stands, eagerly, traced
from generic_trainer.data._layout import Layout, make_layout
from generic_trainer.data._parser import Parser
from generic_trainer.data._plan import NoColumns, NoRoom, ReadPlan
from generic_trainer.data._sources import out_of_order
from generic_trainer.data._store import Store, VocabularyOutgrown
from generic_trainer.errors import DataError

_BATCH = 4096
_ISIZE_BYTES = 4
_PIECE_BYTES = 1 << 20
_counts: dict[RecordFile, int] = {}
# A fixed number, so that no order depends on the number of processors.
FILES_AT_A_TIME = 16
_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = (16, 4096)
# A block costs a millisecond in Python, whatever its size; joining blocks costs some thirty.
_FEW_FILES = 32
_MOST_FILES = 256
_VOCABULARY_SHARE = 8  # of the memory budget, also where columns are on disk
_PROGRESS_INTERVAL_S = 10.0

_logger = logging.getLogger(__name__)


def count_examples(file_patterns: str | Sequence[str]) -> int:
    """Returns the number of records in all files that match any pattern.

    A file is read once. The count of a file that the reader has read, or an earlier call has
    counted, is known until the file changes.

    Args:
        file_patterns: glob patterns, such as `fn_args.train_files`.

    Raises:
        DataError: no file matches, or one cannot be read.
    """
    return count_of(match_files(file_patterns))


def count_of(files: Sequence[RecordFile]) -> int:
    """Returns the number of records in files; see `count_examples`."""
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
        """Mean size that was expected of an example, at least 1.

        Blocks, windows and chunks of rows are made by it: a run that resumes at a position where
        less memory is free, or a worker there, has to find the same rows.
        """
        return max(1, self.expected_bytes // max(1, self.num_rows))


def load_columns(
    files: Sequence[RecordFile], parser: Parser, options: Any, plan: ReadPlan
) -> Columns:
    """Reads files into memory or onto disk, as planned unless they are larger than expected.

    Raises:
        DataError: a file is cut off.
        tf.errors.OpError: a file cannot be read, or a record cannot be parsed.
        NoRoom: the columns are too large after all.
        NoColumns: they hold strings or sparse tensors that cannot be stored.
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
        start_s = time.monotonic()
        next_log_s = start_s + _PROGRESS_INTERVAL_S
        try:
            for numbers, sizes, arrays, spoiled, odd in _blocks(records, parser, layout, threads):
                if odd:
                    raise NoColumns("a sparse tensor repeats an index, or has one out of order")
                if spoiled:
                    raise _SeparatorInData
                store.append(arrays)
                columns.runs.extend(zip(numbers.tolist(), sizes[:, 0].tolist(), strict=True))
                np.add.at(sizes_of_files, numbers, sizes)
                if time.monotonic() > next_log_s:
                    next_log_s = time.monotonic() + _PROGRESS_INTERVAL_S
                    _log_progress(columns.num_rows, plan, time.monotonic() - start_s)
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


def _log_progress(rows: int, plan: ReadPlan, seconds: float) -> None:
    total = plan.expected.num_examples
    left_s = seconds * max(0, total - rows) / max(1, rows)
    left = duration(left_s)
    _logger.info("Reading examples: %s of about %s, about %s left", f"{rows:,}", f"{total:,}", left)


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
    """Yields (file numbers, their sizes, arrays, whether they hold the separator, `odd`).

    `odd`: whether a sparse tensor cannot be in columns; see `out_of_order`.
    """

    @traced
    def pack(numbers: tf.Tensor, blocks: Any) -> Any:
        numbers, sizes, serialized = _sized(numbers, blocks)
        parsed = parser.parse_lists(serialized)
        odd = out_of_order(parser.features, parsed)
        return numbers, sizes, *layout.pack(parsed), odd

    packed = records.map(pack, num_parallel_calls=threads, deterministic=True)
    yield from as_it_stands(packed.prefetch(2)).as_numpy_iterator()


def _threads(number: int | None) -> int:
    return number if number and number > 0 else len(available_cpus())


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
