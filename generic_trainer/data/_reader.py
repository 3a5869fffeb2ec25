"""A reader: the datasets of one factory, and the columns that they share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from generic_trainer._core.cluster import is_one_of_several
from generic_trainer._core.records import READ_ERRORS, RecordFile, match_files
from generic_trainer.data._collect import Collected, NoRoom, collect, read_error
from generic_trainer.data._diagnose import watch
from generic_trainer.data._estimate import Estimate, estimate
from generic_trainer.data._graph import eagerly
from generic_trainer.data._order import BlockShuffle, FullShuffle, Order, StoredOrder
from generic_trainer.data._parse import Parser
from generic_trainer.data._plan import Limits, Plan, choose_path, stream_reason
from generic_trainer.data._serve import Columns, column_dataset
from generic_trainer.data._stream import stream_dataset
from generic_trainer.data._unshuffled import unshuffled_rows

__all__ = ["Reader"]

_logger = logging.getLogger(__name__)

# Workers must agree on the order before they can shard it.
_CLUSTER_SEED = 0
_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 1 << 14
_LEAST_WINDOW_ROWS = 1 << 16

_Key = tuple[tuple[RecordFile, ...], str]


class Reader:
    """A `tf_dataset_factory`."""

    def __init__(
        self,
        limits: Callable[[], Limits],
        seed: int | None,
        path: Literal["auto", "memory", "disk", "stream"],
    ) -> None:
        """See `make_dataset_factory`; `limits` is called when the first dataset is made."""
        self._make_limits = limits
        self._limits: Limits | None = None
        self._seed = seed
        self._path = path
        self._collected: dict[_Key, Collected] = {}

    def __call__(
        self, file_pattern: str | Sequence[str], options: Any, schema: Any
    ) -> tf.data.Dataset:
        """Returns a dataset; see `make_dataset_factory`."""
        parser = Parser.from_schema(schema, options.label_key)
        files = match_files(file_pattern)
        seed = self._seed_of(options)
        reason = "that path was chosen" if self._path == "stream" else stream_reason()
        collected: Collected | None = None
        if reason is None:
            try:
                collected = self._collect(files, parser, options)
            except NoRoom as error:
                reason = str(error)
        if collected is None or not collected.loaded.num_rows:
            _logger.info("Streaming %s: %s", _count(files), reason or "they are empty")
            watch(files, parser)
            dataset = stream_dataset(files, parser, options, seed)
        else:
            dataset = self._serve(collected, parser, options, seed)
        return _finished(dataset, options)

    def _seed_of(self, options: Any) -> int | None:
        if options.shuffle_seed is not None:
            return int(options.shuffle_seed)
        if self._seed is None and is_one_of_several():
            return _CLUSTER_SEED
        return self._seed

    def _collect(self, files: tuple[RecordFile, ...], parser: Parser, options: Any) -> Collected:
        key = (files, parser.key())
        if key not in self._collected:
            self._collected[key] = self._read(files, parser, options)
        return self._collected[key]

    def _read(self, files: tuple[RecordFile, ...], parser: Parser, options: Any) -> Collected:
        expected = self._estimate(files, parser)
        limits = self._room()
        one_pass = options.num_epochs == 1
        plan = choose_path(expected, limits, one_pass)
        if self._path in ("memory", "disk"):
            plan = Plan(self._path, "that path was chosen")
        if plan.path == "stream":
            raise NoRoom(plan.reason)
        collected = eagerly(
            lambda: collect(files, parser, options, plan.path, limits, expected, one_pass)
        )
        _announce(files, collected, plan)
        return collected

    def _estimate(self, files: Sequence[RecordFile], parser: Parser) -> Estimate:
        try:
            return eagerly(lambda: estimate(files, parser))
        except READ_ERRORS as error:
            raise read_error(files, parser, error) from error

    def _room(self) -> Limits:
        if self._limits is None:
            self._limits = self._make_limits()
        taken = sum(each.loaded.store.memory_bytes for each in self._collected.values())
        return Limits(max(0, self._limits.memory_bytes - taken), self._limits.directory)

    def _serve(
        self, collected: Collected, parser: Parser, options: Any, seed: int | None
    ) -> tf.data.Dataset:
        loaded = collected.loaded
        store = loaded.store
        columns = Columns(
            loaded.layout,
            tuple(store.tensors()),
            store.vocabulary.tensor(),
            loaded.num_rows,
            store.num_bytes,
        )
        dataset = column_dataset(columns, parser, self._order(collected, options), options, seed)
        dataset.generic_trainer_columns = loaded  # keeps the files open as long as the dataset is
        return dataset

    def _order(self, collected: Collected, options: Any) -> Order:
        loaded = collected.loaded
        if not options.shuffle:
            arrays = unshuffled_rows(loaded.runs, loaded.num_files, options.reader_num_threads)
            return StoredOrder(loaded.num_rows, arrays)
        if collected.path == "memory":
            return FullShuffle(loaded.num_rows)
        row_bytes = max(1, loaded.store.num_bytes // loaded.num_rows)
        return _block_shuffle(loaded.num_rows, row_bytes, self._room().memory_bytes)


def _block_shuffle(num_rows: int, row_bytes: int, memory_bytes: int) -> BlockShuffle:
    block_rows = max(_BLOCK_BYTES // row_bytes, -(-num_rows // _MOST_BLOCKS), 1)
    fitting = max(_LEAST_WINDOW_ROWS, memory_bytes // row_bytes)
    window_rows = 1 << (fitting.bit_length() - 1)
    return BlockShuffle(num_rows, block_rows, window_rows)


def _finished(dataset: tf.data.Dataset, options: Any) -> tf.data.Dataset:
    with_options = tf.data.Options()
    with_options.deterministic = not options.sloppy_ordering
    return dataset.with_options(with_options).prefetch(options.prefetch_buffer_size)


def _announce(files: Sequence[RecordFile], collected: Collected, plan: Plan) -> None:
    loaded = collected.loaded
    _logger.info(
        "Reading %s examples (%s) from %s: %.1f MB of columns; %s; %s",
        f"{loaded.num_rows:,}",
        _count(files),
        collected.path,
        loaded.store.num_bytes / 1e6,
        plan.reason,
        "every epoch is a full shuffle"
        if collected.path == "memory"
        else "shuffled by block and within windows of blocks",
    )


def _count(files: Sequence[RecordFile]) -> str:
    return f"{len(files)} file(s), {sum(file.size for file in files) / 1e6:.1f} MB"
