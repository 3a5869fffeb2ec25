"""Datasets from columns: order rows, gather many batches at once, cut them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from generic_trainer.data._graph import traced
from generic_trainer.data._layout import Layout
from generic_trainer.data._order import Order
from generic_trainer.data._parse import Parser

__all__ = ["Columns", "column_dataset"]

# Rows that one call gathers: enough to make the cost of the ops small, little enough for the cache.
_CHUNK_ROWS = 1 << 12
_CHUNK_BYTES = 4 << 20
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Columns:
    """All examples of some files.

    Attributes:
        arrays: the arrays of `layout`, stored.
        vocabulary: the strings that codes in them stand for.
        num_bytes: their size.
    """

    layout: Layout
    arrays: tuple[tf.Tensor, ...]
    vocabulary: tf.Tensor
    num_rows: int
    num_bytes: int


@dataclass(frozen=True)
class _Batches:
    """Which positions of the endless stream of epochs each batch takes."""

    size: int
    full: int
    rest: int
    drops_rest: bool
    per_chunk: int

    def positions(self) -> tf.data.Dataset:
        """Returns a dataset of positions, int64 [batches, batch size], chunk by chunk."""
        chunks = tf.data.Dataset.range(-(-self.full // self.per_chunk)).map(self._chunk)
        if self.drops_rest:
            return chunks
        # Even where all batches are full: the element spec must not promise it, TFX's does not.
        return chunks.concatenate(tf.data.Dataset.range(bool(self.rest)).map(self._last))

    @traced
    def _chunk(self, number: tf.Tensor) -> tf.Tensor:
        first = number * self.per_chunk
        last = tf.minimum(first + self.per_chunk, self.full)
        return tf.reshape(tf.range(first * self.size, last * self.size), [-1, self.size])

    @traced
    def _last(self, _: tf.Tensor) -> tf.Tensor:
        return (self.full * self.size + tf.range(self.rest, dtype=tf.int64))[tf.newaxis]


def column_dataset(
    columns: Columns, parser: Parser, order: Order, options: Any, seed: int | None
) -> tf.data.Dataset:
    """Returns the dataset that `options` ask for; see `make_dataset_factory`."""
    batches = _batches(columns, options)
    chunks = _chunks(batches, order, options, seed)

    @traced
    def gather(stored: Any, rows: tf.Tensor) -> Any:
        arrays, vocabulary = stored
        features = columns.layout.take(arrays, vocabulary, rows)
        return tuple(tf.nest.flatten(parser.element(features)))

    encoded = (
        _beside((columns.arrays, columns.vocabulary), chunks)
        .map(
            gather,
            num_parallel_calls=options.parser_num_threads,
            deterministic=not options.sloppy_ordering,
        )
        .unbatch()
    )
    spec = parser.element_spec(batches.size if batches.drops_rest else None)
    dataset = tf.data.experimental.from_variant(tf.data.experimental.to_variant(encoded), spec)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(_cardinality(batches, options)))
    dataset.generic_trainer_encoded = encoded  # its functions live as long as it does
    return dataset.with_options(_without_copies())


def _without_copies() -> tf.data.Options:
    # Where it optimizes a dataset, TensorFlow takes a fingerprint, of a copy of all its tensors.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return options


def _beside(arrays: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    # Tensors that a function captures are written into its graph by every rewrite of the dataset;
    # tensors that flow through it are not.
    return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(arrays).repeat(), dataset))


def _batches(columns: Columns, options: Any) -> _Batches:
    size = options.batch_size
    row_bytes = max(1, columns.num_bytes // max(1, columns.num_rows))
    per_chunk = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes) // size)
    if options.num_epochs is None or options.num_epochs < 0:
        return _Batches(size, _ENDLESS // size, 0, True, per_chunk)
    full, rest = divmod(columns.num_rows * options.num_epochs, size)
    if options.drop_final_batch:
        return _Batches(size, full, 0, True, per_chunk)
    return _Batches(size, full, rest, False, per_chunk)


def _cardinality(batches: _Batches, options: Any) -> int:
    if options.num_epochs is None or options.num_epochs < 0:
        return int(tf.data.INFINITE_CARDINALITY)
    return batches.full + bool(batches.rest)


def _chunks(batches: _Batches, order: Order, options: Any, seed: int | None) -> tf.data.Dataset:
    """Returns a dataset of row numbers, int64 [batches, batch size]."""

    @traced
    def of_seed(seed: tf.Tensor) -> tf.data.Dataset:
        halves = tf.stack([seed & 0x7FFFFFFF, tf.bitwise.right_shift(seed, 32)])
        key = tf.cast(halves, tf.int32)

        @traced
        def rows(arrays: Any, positions: tf.Tensor) -> tf.Tensor:
            flat = order.rows(arrays, tf.reshape(positions, [-1]), key)
            return tf.ensure_shape(tf.reshape(flat, tf.shape(positions)), [None, None])

        positions = batches.positions()
        if not order.arrays:
            return positions.map(traced(lambda each: rows((), each)))
        return _beside(order.arrays, positions).map(rows)

    if not options.shuffle:
        return of_seed(tf.constant(0, tf.int64))
    # One number per iteration: a dataset that is iterated again is shuffled anew. The state that
    # this needs cannot be captured by the one-shot iterators of TF 1 graphs, which iterate once.
    again = True if tf.executing_eagerly() else None
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=again).take(1)
    return seeds.flat_map(of_seed)
