"""`make_record_batch_factory`, the drop-in for TFX's `record_batch_factory`.

TFX decodes records on one thread, and anew in every epoch. Here they are decoded once, on as many
threads as there are processors; the rows are kept as one batch, of which others are taken, and the
column cache keeps them for later processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from generic_trainer._core.files import fingerprint_of_file
from generic_trainer._core.records import READ_ERRORS, RecordFile, match_files
from generic_trainer.data._arrow import DecodedRows, decode_files
from generic_trainer.data._budget import default_budget_bytes
from generic_trainer.data._cache import checksums
from generic_trainer.data._cache_folder import CacheFolder, Entry
from generic_trainer.data._counting import count_examples
from generic_trainer.data._graph import eagerly
from generic_trainer.data._parser import TF_EXAMPLE
from generic_trainer.errors import GenericTrainerError

_logger = logging.getLogger(__name__)

RecordBatchFactory = Callable[[Sequence[str], Any, Any], Iterator[pa.RecordBatch]]

# Another one for whatever changes the rows, their order or their form in the file.
_VERSION = 2
_DIGITS = 32
_FILE = "batches.arrow"
# What damaged files, full disks and directories of others can raise; `pa.ArrowInvalid` is one.
_ERRORS = (OSError, ValueError, KeyError, TypeError, pa.ArrowException, GenericTrainerError)


def make_record_batch_factory(
    fallback: RecordBatchFactory, *, payload_format: str = TF_EXAMPLE
) -> RecordBatchFactory:
    """Returns a `record_batch_factory(file_pattern, options, schema)` for `fn_args.data_accessor`.

    The batches have the rows, columns and types of TFX's, and in order where they are not
    shuffled. Shuffled, the order is another one than TFX's, of all rows and another in each epoch;
    with a `shuffle_seed` it is the same in every run. Rows that take more memory than the reader
    may (GENERIC_TRAINER_READER_MEMORY_MB), and files without a schema, are left to TFX.

    Args:
        fallback: TFX's own factory.
        payload_format: name in `tfx.proto.example_gen_pb2.PayloadFormat`; all but tf.Examples is
            left to TFX.

    The factory itself raises `DataError` for files that are missing or cannot be read.
    """
    if payload_format != TF_EXAMPLE:
        return fallback
    held: dict[str, DecodedRows] = {}

    def factory(file_pattern: Sequence[str], options: Any, schema: Any) -> Iterator[pa.RecordBatch]:
        if schema is None:  # columns are what each batch happens to have
            return fallback(file_pattern, options, schema)
        files = match_files(file_pattern)
        key = _key(files, schema)
        if key not in held:
            room = default_budget_bytes() - sum(rows.batch.nbytes for rows in held.values())
            rows = _cached(key, len(files), room)
            if rows is None:
                reason = f"they take more than {room:,} bytes"
                try:
                    rows = eagerly(lambda: decode_files(files, schema, room))
                except READ_ERRORS as error:
                    count_examples([file.path for file in files])  # says which file it is, if one
                    reason = str(error)
                if rows is None:
                    _logger.info("Reading record batches through TFX: %s", reason)
                    return fallback(file_pattern, options, schema)
                if _key(files, schema) == key:  # or files have changed meanwhile
                    _keep(key, files, rows)
            held[key] = rows
        return _batches(held[key], options)

    return factory


def _key(files: Sequence[RecordFile], schema: Any) -> str:
    prints = [fingerprint_of_file(file.path) for file in files]
    text = json.dumps([_FILE, _VERSION, prints, schema.SerializeToString().hex()])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _batches(rows: DecodedRows, options: Any) -> Iterator[pa.RecordBatch]:
    """Yields batches as the options ask for them; like TFX's, one may be of two epochs."""
    rng, size = np.random.default_rng(options.shuffle_seed), options.batch_size
    in_order = np.empty(0, np.int64) if options.shuffle else rows.in_order
    left = np.empty(0, np.int64)
    for _ in itertools.count() if options.num_epochs is None else range(options.num_epochs):
        every = rng.permutation(rows.batch.num_rows) if options.shuffle else in_order
        left = np.concatenate([left, every])
        while len(left) >= size:
            taken, left = left[:size], left[size:]
            yield rows.batch.take(pa.array(taken))
    if len(left) and not options.drop_final_batch:
        yield rows.batch.take(pa.array(left))


def _cached(key: str, num_files: int, room: int) -> DecodedRows | None:
    """Returns the rows that an earlier process has decoded; None without such, or without room."""
    folder = CacheFolder.of_environment()
    if folder is None or (facts := folder.facts(folder.path / key)) is None:
        return None
    file = folder.path / key / _FILE
    try:
        if file.stat().st_size > room:
            return None
        if checksums(file) == facts["checksums"]:
            runs = [(int(number), int(rows)) for number, rows in facts["runs"]]
            (batch,) = pa.ipc.open_file(pa.memory_map(str(file))).read_all().to_batches()
            return DecodedRows(batch, runs, num_files)
        _logger.warning("Cached record batches are damaged, and decoded anew: %s", file)
        folder.delete(folder.path / key)
    except _ERRORS as error:
        _logger.info("Cached record batches cannot be read: %s", error)
    return None


def _keep(key: str, files: Sequence[RecordFile], rows: DecodedRows) -> None:
    """Copies rows into the cache, if there is one; says in the log why where it cannot be done."""
    folder = CacheFolder.of_environment()
    if folder is None or (folder.path / key).exists():
        return
    try:
        if not folder.make_room(rows.batch.nbytes):
            _logger.info("The record batches are not cached: %s has no room", folder.path)
            return
        with folder.unfinished() as scratch:
            source = Path(scratch) / "columns"
            source.mkdir()
            with pa.ipc.new_file(str(source / _FILE), rows.batch.schema) as opened:
                opened.write_batch(rows.batch)
            facts = {"checksums": checksums(source / _FILE), "runs": rows.runs}
            Entry([file.path for file in files], rows.batch.num_rows, facts).write(source)
            with contextlib.suppress(OSError):  # another process was faster
                source.rename(folder.path / key)
    except _ERRORS as error:
        _logger.info("The record batches are not cached: %s", error)
