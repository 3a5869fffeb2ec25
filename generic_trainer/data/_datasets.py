"""Datasets as TFX's options ask for them: from columns, or streamed from the files.

From columns: rows in some order, gathered for many batches at once, and cut apart. Streamed: TFX's
own graph, read and parsed in parallel; as with TFX, a gzip file that is cut off exactly between two
records then reads as a shorter one, while loading into columns counts the bytes (`_counting`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.records import RecordFile, record_dataset
from generic_trainer.data._graph import traced
from generic_trainer.data._loading import Columns
from generic_trainer.data._order import Order
from generic_trainer.data._parser import Parser

# Rows that one call gathers: enough to make the cost of the ops small, little enough for the cache.
_CHUNK_ROWS = 1 << 12
_CHUNK_BYTES = 4 << 20
_ENDLESS = 1 << 62
# Records that one file contributes in its turn, where the order is shuffled anyway: handing over
# single records costs more than parsing them.
_STREAM_BLOCK_ROWS = 64

# Dataset → the one that it was made of by way of a variant tensor, which keeps no functions alive.
_made_of: weakref.WeakKeyDictionary[tf.data.Dataset, tf.data.Dataset] = weakref.WeakKeyDictionary()


def column_dataset(
    columns: Columns, parser: Parser, order: Order, options: Any, seed: int | None
) -> tf.data.Dataset:
    """Returns the dataset that `options` ask for; see `make_dataset_factory`."""
    batches = _batches(columns, options)

    @traced
    def gather(stored: Any, rows: tf.Tensor) -> Any:
        arrays, vocabulary = stored
        features = columns.layout.take(arrays, vocabulary, rows)
        return tuple(tf.nest.flatten(parser.element(features)))

    stored = tuple(columns.store.tensors()), columns.store.vocabulary.tensor()
    gathered = _beside(stored, _rows(batches, order, options, seed)).map(
        gather,
        num_parallel_calls=options.parser_num_threads,
        deterministic=not options.sloppy_ordering,
    )
    dataset = _cut(gathered, parser.element_spec(batches.size))
    setattr(dataset, internals.TF_DATASET_INPUT.name, _told(columns.num_rows, options))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches.number))
    if tf.executing_eagerly():  # a graph keeps its functions itself
        _made_of[dataset] = gathered
    # Where it optimizes a dataset, TensorFlow takes a fingerprint, of a copy of all its tensors.
    without_copies = tf.data.Options()
    without_copies.experimental_optimization.apply_default_optimizations = False
    return _finished(dataset.with_options(without_copies), options)


def _cut(gathered: tf.data.Dataset, element_spec: Any) -> tf.data.Dataset:
    """Returns the batches, one by one, of a dataset of many of them in encoded form."""
    # `Dataset.unbatch` would map a function over them first, for tensors that are not encoded.
    encoded = tf.raw_ops.UnbatchDataset(
        input_dataset=tf.data.experimental.to_variant(gathered),
        output_types=[spec.dtype for spec in gathered.element_spec],
        output_shapes=[spec.shape[1:] for spec in gathered.element_spec],
    )
    return tf.data.experimental.from_variant(encoded, element_spec)


def _told(num_rows: int, options: Any) -> tf.data.Dataset:
    """Returns a dataset of the steps that TFX's own reader has, for those who look for them.

    TensorFlow Decision Forests does: it refuses one that is not batched, is shuffled or repeated.
    """
    rows = tf.data.Dataset.range(num_rows)
    rows = rows.shuffle(1) if options.shuffle else rows
    rows = rows if options.num_epochs == 1 else rows.repeat(options.num_epochs)
    return rows.batch(options.batch_size)


def stream_dataset(
    files: Sequence[RecordFile], parser: Parser, options: Any, seed: int | None
) -> tf.data.Dataset:
    """Returns the dataset that `options` ask for, shuffled within a buffer as TFX does."""
    record_files = tf.data.Dataset.from_tensor_slices(
        ([file.path for file in files], [file.compression for file in files])
    )
    if options.shuffle:
        blocks = _interleaved(record_files.shuffle(len(files), seed), _blocks_of_file, options)
        dataset = blocks.unbatch().shuffle(options.shuffle_buffer_size, seed)
    else:
        dataset = _interleaved(record_files, record_dataset, options)
    if options.num_epochs != 1:
        dataset = dataset.repeat(options.num_epochs)
    drops_rest = options.drop_final_batch or options.num_epochs is None
    batches = dataset.batch(options.batch_size, drop_remainder=drops_rest)
    threads = parser.threads(options.batch_size, options.parser_num_threads)
    parsed = parser.dataset(batches, threads, not options.sloppy_ordering)
    return _finished(parsed, options)


def _finished(dataset: tf.data.Dataset, options: Any) -> tf.data.Dataset:
    with_options = tf.data.Options()
    with_options.deterministic = not options.sloppy_ordering
    return dataset.with_options(with_options).prefetch(options.prefetch_buffer_size)


class _Batches(NamedTuple):
    """The positions of the endless stream of epochs that each batch takes.

    Attributes:
        chunks: how many times `of_chunk` gives batches of the same size.
        of_chunk: returns the positions in a chunk, int64 [batches, batch size].
        rest: rows of the last batch, which is a shorter one; 0: there is none.
        of_rest: returns its positions, int64 [1, rows].
        size: rows of a batch; None: the last one may have fewer.
        number: of batches, as `tf.data` counts them.
    """

    chunks: int
    of_chunk: Callable[[tf.Tensor], tf.Tensor]
    rest: int
    of_rest: Callable[[tf.Tensor], tf.Tensor]
    size: int | None
    number: int


def _batches(columns: Columns, options: Any) -> _Batches:
    size = options.batch_size
    per_chunk = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // columns.row_bytes) // size)
    is_endless = options.num_epochs is None or options.num_epochs < 0
    full, rest = divmod(_ENDLESS if is_endless else columns.num_rows * options.num_epochs, size)

    def of_chunk(number: tf.Tensor) -> tf.Tensor:
        first = number * per_chunk
        last = tf.minimum(first + per_chunk, full)
        return tf.reshape(tf.range(first * size, last * size), [-1, size])

    def of_rest(_: tf.Tensor) -> tf.Tensor:
        return (full * size + tf.range(rest, dtype=tf.int64))[tf.newaxis]

    chunks = -(-full // per_chunk)
    if is_endless or options.drop_final_batch:
        number = int(tf.data.INFINITE_CARDINALITY) if is_endless else full
        return _Batches(chunks, of_chunk, 0, of_rest, size, number)
    # Even where all batches are full: the element spec must not promise it, TFX's does not.
    return _Batches(chunks, of_chunk, rest, of_rest, None, full + int(rest > 0))


def _rows(batches: _Batches, order: Order, options: Any, seed: int | None) -> tf.data.Dataset:
    """Returns a dataset of row numbers, int64 [batches, batch size]."""

    @traced
    def of_seed(seed: tf.Tensor) -> tf.data.Dataset:
        key = tf.cast([seed & 0x7FFFFFFF, tf.bitwise.right_shift(seed, 32)], tf.int32)

        def mapped(number: int, positions_of: Callable[[tf.Tensor], tf.Tensor]) -> tf.data.Dataset:
            @traced
            def rows(arrays: Any, each: tf.Tensor) -> tf.Tensor:
                positions = positions_of(each)
                flat = order.rows(arrays, tf.reshape(positions, [-1]), key)
                return tf.ensure_shape(tf.reshape(flat, tf.shape(positions)), [None, None])

            numbers = tf.data.Dataset.range(number)
            if not order.arrays:
                return numbers.map(traced(lambda each: rows((), each)))
            return _beside(order.arrays, numbers).map(rows)

        chunks = mapped(batches.chunks, batches.of_chunk)
        return chunks.concatenate(mapped(1, batches.of_rest)) if batches.rest else chunks

    if not options.shuffle:
        return of_seed(tf.constant(0, tf.int64))
    # One number per iteration: a dataset that is iterated again is shuffled anew. The state that
    # this needs cannot be captured by the one-shot iterators of TF 1 graphs, which iterate once.
    again = True if tf.executing_eagerly() else None
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=again).take(1)
    return seeds.flat_map(of_seed)


def _beside(arrays: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    # Tensors that a function captures are written into its graph by every rewrite of the dataset;
    # tensors that flow through it are not.
    return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(arrays).repeat(), dataset))


def _interleaved(
    files: tf.data.Dataset, read: Callable[..., tf.data.Dataset], options: Any
) -> tf.data.Dataset:
    return files.interleave(
        traced(read),
        num_parallel_calls=options.reader_num_threads,
        deterministic=not options.sloppy_ordering,
    )


def _blocks_of_file(path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
    return record_dataset(path, compression).batch(_STREAM_BLOCK_ROWS)
