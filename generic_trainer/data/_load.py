"""Reading TFRecord files into columns: once, in parallel, in an order that all workers share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from generic_trainer._core.records import RecordFile, record_dataset
from generic_trainer.data._graph import traced
from generic_trainer.data._layout import Layout, make_layout
from generic_trainer.data._parse import Parser
from generic_trainer.data._store import Store
from generic_trainer.data._strings import SEPARATORS
from generic_trainer.data._vocabulary import VocabularyOutgrown
from generic_trainer.data._whole import FRAME_BYTES, check_whole

__all__ = ["Loaded", "SeparatorInData", "Storing", "load"]

_logger = logging.getLogger(__name__)

# A fixed number, so that the order does not depend on the number of cores.
_FILES_AT_A_TIME = 16
_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = (16, 4096)


class SeparatorInData(Exception):
    """A string feature holds every byte sequence that could end a stored string."""


@dataclass
class Loaded:
    """Columns, and where the examples of each file are among their rows.

    Attributes:
        runs: (file number, rows) of neighbouring rows from one file, in stored order.
        read_bytes: length of the records of each file, with their frames.
    """

    layout: Layout
    store: Store
    num_files: int
    runs: list[tuple[int, int]] = field(default_factory=list)
    read_bytes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.read_bytes = [0] * self.num_files

    @property
    def num_rows(self) -> int:
        """Number of examples."""
        return sum(rows for _, rows in self.runs)

    def rows_per_file(self) -> list[int]:
        """Returns the number of examples of each file."""
        counts = [0] * self.num_files
        for file, rows in self.runs:
            counts[file] += rows
        return counts


@dataclass(frozen=True)
class Storing:
    """How and where columns are stored.

    Attributes:
        coded: features whose strings are worth a vocabulary.
        vocabulary_limit_bytes: memory that it may take; beyond it, strings are stored as words.
        directory: where columns go; None: in memory.
    """

    coded: AbstractSet[str]
    vocabulary_limit_bytes: int
    directory: str | None


def load(
    files: Sequence[RecordFile],
    parser: Parser,
    storing: Storing,
    *,
    record_bytes: int,
    reader_num_threads: int,
    parser_num_threads: int,
    on_block: Callable[[Loaded], None],
) -> Loaded:
    """Reads all records of some files into columns.

    Args:
        files: what to read.
        parser: how to parse a record.
        storing: how to store columns.
        record_bytes: about how long a serialized record is.
        reader_num_threads: files read at a time.
        parser_num_threads: blocks parsed at a time.
        on_block: called after each block; it may raise, or move the columns elsewhere.

    Raises:
        tf.errors.OpError: a file cannot be read, or a record cannot be parsed.
        DataError: a compressed file is cut off.
        SeparatorInData: strings cannot be stored.
    """
    low, high = _BLOCK_ROWS
    block_rows = min(high, max(low, _BLOCK_BYTES // max(1, record_bytes)))
    records = _records(files, block_rows, reader_num_threads)
    separators = iter(SEPARATORS)
    separator = next(separators)
    while True:
        layout = make_layout(parser, separator, storing.coded)
        store = Store(layout.arrays, storing.directory, storing.vocabulary_limit_bytes)
        loaded = Loaded(layout, store, len(files))
        blocks = _blocks(records, parser, layout, parser_num_threads)
        try:
            _fill(loaded, blocks, on_block)
            check_whole(files, loaded.read_bytes)
            store.vocabulary.freeze()
            return loaded
        except VocabularyOutgrown:
            store.close()
            _logger.info("Reading again from the start: strings repeat less than they seemed to")
            storing = replace(storing, coded=frozenset())
        except SeparatorInData:
            store.close()
            separator = _following(separators)
        except BaseException:
            store.close()
            raise


def _following(separators: Iterator[bytes]) -> bytes:
    for separator in separators:
        return separator
    raise SeparatorInData


def _fill(loaded: Loaded, blocks: Iterator[Any], on_block: Callable[[Loaded], None]) -> None:
    for file, rows, num_bytes, arrays, spoiled in blocks:
        if spoiled:
            raise SeparatorInData
        loaded.store.append(arrays)
        loaded.runs.append((int(file), int(rows)))
        loaded.read_bytes[int(file)] += int(num_bytes) + int(rows) * FRAME_BYTES
        on_block(loaded)


def _records(files: Sequence[RecordFile], block_rows: int, num_threads: int) -> tf.data.Dataset:
    """Returns a dataset of (file number, serialized records [n]), each block from one file."""

    @traced
    def blocks_of_file(number: tf.Tensor, path: tf.Tensor, compression: tf.Tensor) -> Any:
        blocks = record_dataset(path, compression).batch(block_rows)
        return blocks.map(traced(lambda records: (number, records)))

    numbered = tf.data.Dataset.from_tensor_slices(
        (
            tf.range(len(files), dtype=tf.int64),
            [file.path for file in files],
            [file.compression for file in files],
        )
    )
    return numbered.interleave(
        blocks_of_file,
        cycle_length=min(_FILES_AT_A_TIME, len(files)),
        num_parallel_calls=min(_threads(num_threads), _FILES_AT_A_TIME, len(files)),
        deterministic=True,
    )


def _threads(number: int) -> int:
    # The tuner of `tf.data` starts with one thread: a short pass is over before it has more.
    return number if number > 0 else len(os.sched_getaffinity(0))


def _blocks(
    records: tf.data.Dataset, parser: Parser, layout: Layout, num_threads: int
) -> Iterator[Any]:
    @traced
    def pack(file: tf.Tensor, serialized: tf.Tensor) -> Any:
        arrays, spoiled = layout.pack(parser.parse_lists(serialized))
        num_bytes = tf.reduce_sum(tf.cast(tf.strings.length(serialized), tf.int64))
        return file, tf.size(serialized), num_bytes, arrays, spoiled

    packed = records.map(
        pack, num_parallel_calls=_threads(num_threads), deterministic=True
    ).prefetch(2)
    yield from packed.as_numpy_iterator()
