"""Decoding of serialized tf.Examples into Arrow's record batches.

tfx_bsl's decoder makes them value by value. TensorFlow's parser takes a fifth of its time, and the
arrays that it yields become those of a batch as they are. It does not tell a feature that is
missing from one that is an empty list, which are null and [] in a batch: records in which that is
open go to tfx_bsl's decoder.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tensorflow as tf

from generic_trainer._core.machine import available_cpus
from generic_trainer._core.records import RecordFile
from generic_trainer.data._columns import gather
from generic_trainer.data._graph import as_it_stands, traced
from generic_trainer.data._loading import FilesRead, files_at_once, record_blocks, sized
from generic_trainer.data._order import unshuffled_rows
from generic_trainer.data._plan import first_records

_DTYPES: Mapping[pa.DataType, tf.DType] = {
    pa.int64(): tf.int64,
    pa.float32(): tf.float32,
    pa.large_binary(): tf.string,
}
# A message of a `Feature` without a byte: that of a list, a packed list or a value, all empty. The
# same bytes may mean something else, which costs time only. `\C` is one byte, also of no text.
_EMPTY_MESSAGE = r"(?s)\C*[\x0a\x12\x1a]\x00\C*"
# Where more records than this have to go through tfx_bsl, all do: parsing them first costs more.
_MOST_AGAIN = 0.5
_SAMPLE_RECORDS = 100
# Making the arrays of a block takes as long for one row as for hundreds.
_BLOCK_ROWS, _BLOCK_BYTES = 4096, 16 << 20


@dataclass(frozen=True)
class DecodedRows:
    """All rows of some files.

    Attributes:
        batch: the rows, one file's block after another's.
        runs: see `Columns`.
        num_files: how many files they are of.
    """

    batch: pa.RecordBatch
    runs: Sequence[tuple[int, int]]
    num_files: int

    @functools.cached_property
    def in_order(self) -> np.ndarray:
        """The numbers of the rows, int64 [rows], in the order in which TFX reads them."""
        order = unshuffled_rows(self.runs, self.num_files)
        return np.arange(self.batch.num_rows) if order is None else order


def decode_files(files: Sequence[RecordFile], schema: Any, room: int) -> DecodedRows | None:
    """Returns the rows of files; None where they need more than `room` bytes, or there are none.

    Raises:
        DataError: a file is cut off.
        tf.errors.OpError: a file cannot be read, or TensorFlow cannot parse a record.
        RuntimeError: tfx_bsl cannot decode a record, or by this schema.
    """
    batches: list[pa.RecordBatch] = []
    read = FilesRead(files)
    taken = 0
    for numbers, sizes, batch in _blocks(files, schema):
        taken += batch.nbytes
        if 2 * taken > room:  # they are copied into one
            return None
        batches.append(batch)
        read.add(numbers, sizes)
    read.finish()
    if not batches:
        return None
    return DecodedRows(_as_one(pa.Table.from_batches(batches)), read.runs, len(files))


def _blocks(
    files: Sequence[RecordFile], schema: Any
) -> Iterator[tuple[np.ndarray, np.ndarray, pa.RecordBatch]]:
    """Yields (file numbers, their sizes, rows) of some records after another; see `sized`."""
    sample = first_records(max(files, key=lambda file: file.size), _SAMPLE_RECORDS)
    decoder = ExampleDecoder(schema, sample)

    @traced
    def parse(numbers: tf.Tensor, blocks: Any) -> Any:
        numbers, sizes, records = sized(numbers, blocks)
        return numbers, sizes, decoder.parse(records)

    record_bytes = sum(map(len, sample.numpy())) // max(1, len(sample))
    block_rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, record_bytes)))
    threads = len(available_cpus())
    parsed = record_blocks(files, block_rows, files_at_once(files)).map(
        parse, num_parallel_calls=threads, deterministic=True
    )
    waiting: deque[tuple[np.ndarray, np.ndarray, Future[pa.RecordBatch]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for *known, block in as_it_stands(parsed.prefetch(2)).as_numpy_iterator():
            waiting.append((*known, pool.submit(decoder.batch, block)))
            if len(waiting) > threads:
                numbers, sizes, batch = waiting.popleft()
                yield numbers, sizes, batch.result()
        for numbers, sizes, batch in waiting:
            yield numbers, sizes, batch.result()


def _as_one(table: pa.Table) -> pa.RecordBatch:
    (batch,) = table.combine_chunks().to_batches()
    return batch


class _Parsed(NamedTuple):
    """What TensorFlow has parsed of the features of one type, one behind another.

    Attributes:
        splits: where the list of each row starts within its feature, int64 [features, rows + 1].
        values: of all features; strings in one.
        lengths: of strings, int32 [values]; else empty.
    """

    splits: Any
    values: Any
    lengths: Any


class ExampleDecoder:
    """Makes what `tfx_bsl.coders.example_coder.ExamplesToRecordBatchDecoder` makes.

    `parse` belongs into a dataset of blocks of records, `batch` behind it, in any thread.
    """

    def __init__(self, schema: Any, sample: tf.Tensor) -> None:
        """Takes a schema, and records, string [n], which show whether parsing pays.

        Raises:
            RuntimeError: tfx_bsl cannot decode by the schema.
            tf.errors.OpError: TensorFlow cannot parse the records.
        """
        self._schema = schema.SerializeToString()
        self._of_thread = threading.local()
        self._groups: dict[tf.DType, list[str]] = {}
        self._arrow_schema = self._decoder.ArrowSchema()
        for field in self._arrow_schema:
            self._groups.setdefault(_DTYPES[field.type.value_type], []).append(field.name)
        self._parses = bool(self._groups) and self._pays(sample)

    @property
    def _decoder(self) -> Any:
        if not hasattr(self._of_thread, "decoder"):
            from tfx_bsl.coders import example_coder

            self._of_thread.decoder = example_coder.ExamplesToRecordBatchDecoder(self._schema)
        return self._of_thread.decoder

    def parse(self, records: tf.Tensor) -> tuple[Any, ...]:
        """Parses records, string [n], into what `batch` takes."""
        if not self._parses:
            return tf.range(tf.size(records, tf.int64)), records, ()
        values, splits = self._lists(records)
        again = self._again(records, splits)
        groups, start = [], 0
        for dtype, names in self._groups.items():
            own = slice(start, start + len(names))
            start = own.stop
            groups.append(_parsed(dtype, tf.concat(values[own], axis=0), splits[own]))
        return again, gather(records, again), tuple(groups)

    def batch(self, parsed: Any) -> pa.RecordBatch:
        """Returns the record batch of what `parse` has made, as NumPy arrays."""
        again, records, groups = parsed
        if not groups:
            return self._decoder.DecodeBatch(records)
        arrays: dict[str, pa.Array] = {}
        for names, group in zip(self._groups.values(), groups, strict=True):
            arrays.update(zip(names, _arrays(group), strict=True))
        columns = [arrays[name] for name in self._arrow_schema.names]
        whole = pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)
        if not len(again):
            return whole
        order = np.arange(whole.num_rows)
        order[again] = whole.num_rows + np.arange(len(again))
        both = pa.Table.from_batches([whole, self._decoder.DecodeBatch(records)])
        return _as_one(both).take(pa.array(order))

    def _pays(self, sample: tf.Tensor) -> bool:
        _, splits = self._lists(sample)
        return len(self._again(sample, splits)) <= _MOST_AGAIN * len(sample)

    def _lists(self, records: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the values of each feature, and the `splits` of all; see `_Parsed`."""
        types = [dtype for dtype, names in self._groups.items() for _ in names]
        # Ragged tensors of them would take 2 ms each to make.
        parsed = tf.raw_ops.ParseExampleV2(
            serialized=records,
            names=tf.constant([], tf.string),
            sparse_keys=tf.constant([], tf.string),
            dense_keys=tf.constant([], tf.string),
            ragged_keys=[name for names in self._groups.values() for name in names],
            dense_defaults=[],
            num_sparse=0,
            sparse_types=[],
            ragged_value_types=types,
            ragged_split_types=[tf.int64] * len(types),
            dense_shapes=[],
        )
        return parsed.ragged_values, tf.stack(parsed.ragged_row_splits)

    def _again(self, records: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Returns the places of the records that tfx_bsl has to decode, int64 [n]."""
        with_empty = tf.reduce_any(tf.equal(splits[:, 1:], splits[:, :-1]), axis=0)
        places = tf.reshape(tf.where(with_empty), [-1])
        is_open = tf.strings.regex_full_match(gather(records, places), _EMPTY_MESSAGE)
        return tf.boolean_mask(places, is_open)


def _parsed(dtype: tf.DType, values: tf.Tensor, splits: tf.Tensor) -> _Parsed:
    if dtype == tf.string:
        return _Parsed(splits, tf.strings.reduce_join(values), tf.strings.length(values))
    return _Parsed(splits, values, ())


def _arrays(group: _Parsed) -> Iterator[pa.Array]:
    """Yields the lists of each feature, empty ones as null."""
    if isinstance(group.values, bytes):
        offsets = np.concatenate([[0], np.cumsum(group.lengths, dtype=np.int64)])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(group.values)]
        values = pa.Array.from_buffers(pa.large_binary(), len(group.lengths), buffers)
    else:
        values = pa.array(group.values)
    start = 0
    for splits in group.splits:
        filled = splits[1:] > splits[:-1]
        yield pa.Array.from_buffers(
            pa.large_list(values.type),
            len(filled),
            [_bits(filled), pa.py_buffer(splits)],
            children=[values.slice(start, splits[-1])],
        )
        start += splits[-1]


def _bits(values: np.ndarray) -> pa.Buffer | None:
    """Returns Arrow's bitmap of what is not null; None: nothing is."""
    return None if np.all(values) else pa.py_buffer(np.packbits(values, bitorder="little"))
