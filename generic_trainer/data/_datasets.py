"""Datasets as TFX's options ask for them: from columns, or streamed from the files.

From columns: rows in some order, gathered for many batches at once, and cut apart. Streamed: TFX's
own graph, read and parsed in parallel. As with TFX, a gzip file that is truncated exactly between
two records then reads as a shorter one, while loading into columns counts the bytes (`_loading`).
"""

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.records import RecordFile, record_dataset
from generic_trainer.data._graph import traced
from generic_trainer.data._loading import FILES_AT_A_TIME, Columns
from generic_trainer.data._order import Order
from generic_trainer.data._parser import Parser

# Rows that one call gathers: enough to amortize the ops, few enough for the CPU's cache.
_CHUNK_ROWS = 1 << 12
_CHUNK_BYTES = 4 << 20
_ENDLESS = 1 << 62
# Records that one file contributes in its turn, where the order is shuffled anyway: handing over
# single records costs more than parsing them.
_STREAM_BLOCK_ROWS = 64

# Seeds that the iterations of a dataset in a TF 1 graph draw from: drawing takes a millisecond.
_SEEDS_OF_GRAPH = 1 << 12

# Dataset → the dataset behind it. A variant tensor connects the two, which does not keep the
# functions of the latter alive.
_made_of: weakref.WeakKeyDictionary[tf.data.Dataset, tf.data.Dataset] = weakref.WeakKeyDictionary()


def column_dataset(
    columns: Columns, parser: Parser, order: Order, options: Any, seed: int | None
) -> tf.data.Dataset:
    """Returns the dataset that `options` ask for; see `make_dataset_factory`."""
    batches = _batches(columns, options)

    # Order and rows in one function: tracing another one would take as long as gathering some ten
    # thousand examples.
    @traced
    def gather(stored: Any, seed: tf.Tensor, number: tf.Tensor) -> Any:
        arrays, vocabulary, of_order = stored
        positions = batches.positions(number)
        key = tf.cast([seed & 0x7FFFFFFF, tf.bitwise.right_shift(seed, 32)], tf.int32)
        rows = order.rows(of_order, tf.reshape(positions, [-1]), key)
        rows = tf.reshape(rows, tf.shape(positions))
        features = columns.layout.take(arrays, vocabulary, rows)
        return tuple(tf.nest.flatten(parser.element(features)))

    # Tensors that a function captures are written into its graph by every rewrite of the dataset;
    # tensors that flow through it are not.
    stored = tuple(columns.store.tensors()), columns.store.vocabulary.tensor(), order.arrays
    gathered = tf.data.Dataset.zip(
        (
            tf.data.Dataset.from_tensors(stored).repeat(),
            _seeds(options, seed),
            tf.data.Dataset.range(batches.chunks),
        )
    ).map(
        gather,
        num_parallel_calls=options.parser_num_threads,
        deterministic=not options.sloppy_ordering,
    )
    dataset = _cut(gathered, parser.element_spec(batches.size))
    setattr(dataset, internals.TF_DATASET_INPUT.name, _with_steps_of_tfx(columns.num_rows, options))
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


def _with_steps_of_tfx(num_rows: int, options: Any) -> tf.data.Dataset:
    """Returns a dataset with the transformations of TFX's own reader, for code that inspects them.

    TensorFlow Decision Forests refuses a dataset that is not batched, or is shuffled or repeated.
    """
    rows = tf.data.Dataset.range(num_rows)
    # With a seed of its own, so that it takes none of the user's random numbers.
    rows = rows.shuffle(1, seed=0) if options.shuffle else rows
    rows = rows if options.num_epochs == 1 else rows.repeat(options.num_epochs)
    return rows.batch(options.batch_size)


def stream_dataset(
    files: Sequence[RecordFile], parser: Parser, options: Any, seed: int | None, *, in_cluster: bool
) -> tf.data.Dataset:
    """Returns the dataset that `options` ask for, shuffled within a buffer as TFX does.

    In a cluster, `tf.data` shards the files if there is one for each worker, else the batches: then
    the order must not depend on the number of processors, as it otherwise does.
    """
    at_once = min(FILES_AT_A_TIME, len(files)) if in_cluster else None
    record_files = tf.data.Dataset.from_tensor_slices(
        ([file.path for file in files], [file.compression for file in files])
    )
    if options.shuffle:
        record_files = record_files.shuffle(len(files), seed)
    dataset = record_files.interleave(
        traced(_blocks_of_file if options.shuffle else record_dataset),
        cycle_length=at_once,
        num_parallel_calls=options.reader_num_threads,
        deterministic=not options.sloppy_ordering,
    )
    if options.shuffle:
        dataset = dataset.unbatch().shuffle(options.shuffle_buffer_size, seed)
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
        chunks: how many times `positions` gives batches of the same size.
        positions: returns the positions in a chunk, int64 [batches, batch size].
        size: rows of a batch; None: the last one may have fewer.
        number: of batches, as `tf.data` counts them.
    """

    chunks: int
    positions: Callable[[tf.Tensor], tf.Tensor]
    size: int | None
    number: int


def _batches(columns: Columns, options: Any) -> _Batches:
    size = options.batch_size
    per_chunk = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // columns.row_bytes) // size)
    is_endless = options.num_epochs is None or options.num_epochs < 0
    rows = _ENDLESS if is_endless else columns.num_rows * operator.index(options.num_epochs)
    full, rest = divmod(min(rows, _ENDLESS), size)
    are_full = is_endless or options.drop_final_batch
    rest = 0 if are_full else rest
    chunks = -(-full // per_chunk)  # behind them, the rest is one of its own

    def positions(number: tf.Tensor) -> tf.Tensor:
        start = tf.minimum(number * (per_chunk * size), full * size)
        end = tf.minimum(start + per_chunk * size, full * size)
        if not rest:
            return tf.reshape(tf.range(start, end), tf.constant([-1, size], tf.int64))
        is_rest = tf.equal(number, chunks)
        end = tf.where(is_rest, end + rest, end)
        width = tf.where(is_rest, tf.constant(rest, tf.int64), tf.constant(size, tf.int64))
        return tf.reshape(tf.range(start, end), tf.stack([-1, width]))

    number = int(tf.data.INFINITE_CARDINALITY) if is_endless else full + bool(rest)
    # Where all happen to be full, the element spec must not promise it: TFX's does not.
    return _Batches(chunks + bool(rest), positions, size if are_full else None, number)


def _seeds(options: Any, seed: int | None) -> tf.data.Dataset:
    """Returns a dataset of one number, int64, again and again: another one in each iteration."""
    if not options.shuffle:
        return tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).repeat()
    # A dataset that is iterated again is shuffled anew. The state that this needs cannot be
    # captured by the one-shot iterators of TF 1 graphs: there, a shuffle draws one of many seeds.
    again = True if tf.executing_eagerly() else None
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=again)
    if not again:
        seeds = seeds.take(_SEEDS_OF_GRAPH).shuffle(_SEEDS_OF_GRAPH, seed)

    def repeated(drawn: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(drawn).repeat()

    return seeds.take(1).flat_map(traced(repeated))


def _blocks_of_file(path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
    return record_dataset(path, compression).batch(_STREAM_BLOCK_ROWS)
