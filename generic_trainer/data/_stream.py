"""The streaming reader: TFX's graph, read and parsed in parallel.

As in TFX's reader, a gzip file that is cut off exactly between two records reads as a shorter one
here; any other cut is an error. The other paths count the bytes of each file (`_whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.records import RecordFile, record_dataset
from generic_trainer.data._graph import traced
from generic_trainer.data._parse import Parser

__all__ = ["stream_dataset"]

# Records that one file contributes in its turn, where the order is shuffled anyway: handing over
# single records costs more than parsing them.
_BLOCK_ROWS = 64


def stream_dataset(
    files: Sequence[RecordFile], parser: Parser, options: Any, seed: int | None
) -> tf.data.Dataset:
    """Returns the dataset that `options` ask for, shuffled within a buffer as TFX does."""
    deterministic = not options.sloppy_ordering
    files_dataset = _record_files(files, options, seed)
    if options.shuffle:
        blocks = _interleaved(files_dataset, _blocks_of_file, options)
        dataset = blocks.unbatch().shuffle(options.shuffle_buffer_size, seed)
    else:
        dataset = _interleaved(files_dataset, record_dataset, options)
    if options.num_epochs != 1:
        dataset = dataset.repeat(options.num_epochs)
    drops_rest = options.drop_final_batch or options.num_epochs is None
    batches = dataset.batch(options.batch_size, drop_remainder=drops_rest)
    return parser.dataset(batches, options.parser_num_threads, deterministic)


def _interleaved(
    files: tf.data.Dataset, read: Callable[..., tf.data.Dataset], options: Any
) -> tf.data.Dataset:
    return files.interleave(
        traced(read),
        num_parallel_calls=options.reader_num_threads,
        deterministic=not options.sloppy_ordering,
    )


def _blocks_of_file(path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
    return record_dataset(path, compression).batch(_BLOCK_ROWS)


def _record_files(files: Sequence[RecordFile], options: Any, seed: int | None) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(
        ([file.path for file in files], [file.compression for file in files])
    )
    return dataset.shuffle(len(files), seed) if options.shuffle else dataset
