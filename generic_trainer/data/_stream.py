"""The streaming reader: TFX's graph, read and parsed in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.data._files import RecordFile, record_dataset
from generic_trainer.data._graph import traced
from generic_trainer.data._parse import Parser

__all__ = ["stream_dataset"]


def stream_dataset(
    files: Sequence[RecordFile], parser: Parser, options: Any, seed: int | None
) -> tf.data.Dataset:
    """Returns the dataset that `options` ask for, shuffled within a buffer as TFX does."""
    deterministic = not options.sloppy_ordering
    dataset = _record_files(files, options, seed).interleave(
        traced(record_dataset),
        num_parallel_calls=options.reader_num_threads,
        deterministic=deterministic,
    )
    if options.shuffle:
        dataset = dataset.shuffle(options.shuffle_buffer_size, seed)
    if options.num_epochs != 1:
        dataset = dataset.repeat(options.num_epochs)
    drops_rest = options.drop_final_batch or options.num_epochs is None
    batches = dataset.batch(options.batch_size, drop_remainder=drops_rest)
    return parser.dataset(batches, options.parser_num_threads, deterministic)


def _record_files(files: Sequence[RecordFile], options: Any, seed: int | None) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(
        ([file.path for file in files], [file.compression for file in files])
    )
    return dataset.shuffle(len(files), seed) if options.shuffle else dataset
