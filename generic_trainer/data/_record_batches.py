"""`make_record_batch_factory`, the drop-in for TFX's `record_batch_factory`.

tfx_bsl decodes records on one thread, and anew in every epoch. Here it decodes them once; the rows
are kept as one batch, of which others are taken, and the column cache keeps them for later
processes.
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

from generic_trainer._core.files import fingerprint_of_file, gfile
from generic_trainer.data._budget import default_budget_bytes
from generic_trainer.data._cache import checksums
from generic_trainer.data._cache_folder import CacheFolder, Entry
from generic_trainer.errors import GenericTrainerError

_logger = logging.getLogger(__name__)

RecordBatchFactory = Callable[[Sequence[str], Any, Any], Iterator[pa.RecordBatch]]

# Another one for whatever changes the rows, their order or their form in the file.
_VERSION = 1
_DIGITS = 32
_DECODED_ROWS = 1 << 12
_FILE = "batches.arrow"
# What damaged files, full disks and directories of others can raise; `pa.ArrowInvalid` is one.
_ERRORS = (OSError, ValueError, KeyError, TypeError, pa.ArrowException, GenericTrainerError)


def make_record_batch_factory(fallback: RecordBatchFactory) -> RecordBatchFactory:
    """Returns a `record_batch_factory(file_pattern, options, schema)` for `fn_args.data_accessor`.

    The batches have the rows, columns and types of TFX's, and in order where they are not
    shuffled. Shuffled, the order is another one than TFX's, of all rows and another in each epoch;
    with a `shuffle_seed` it is the same in every run. Rows that take more memory than the reader
    may (GENERIC_TRAINER_READER_MEMORY_MB), and files without a schema, are left to TFX.

    Args:
        fallback: TFX's own factory, which decodes the records: tf.Examples, as TFX makes batches
            of nothing else.
    """
    held: dict[str, pa.RecordBatch] = {}

    def factory(file_pattern: Sequence[str], options: Any, schema: Any) -> Iterator[pa.RecordBatch]:
        if schema is None:  # columns are what each batch happens to have
            return fallback(file_pattern, options, schema)
        paths = _paths(file_pattern)
        key = _key(paths, schema)
        if key not in held:
            room = default_budget_bytes() - sum(each.nbytes for each in held.values())
            once = options._replace(
                batch_size=_DECODED_ROWS, num_epochs=1, shuffle=False, drop_final_batch=False
            )
            rows = _cached(key, room)
            if rows is None:
                rows = _decoded(fallback(file_pattern, once, schema), room)
                if rows is None:
                    _logger.info("Reading record batches through TFX: more than %d bytes", room)
                    return fallback(file_pattern, options, schema)
                if _key(paths, schema) == key:  # or files have changed meanwhile
                    _keep(key, paths, rows)
            held[key] = rows
        return _batches(held[key], options)

    return factory


def _paths(file_pattern: str | Sequence[str]) -> list[str]:
    patterns = [file_pattern] if isinstance(file_pattern, str) else file_pattern
    return sorted({path for pattern in patterns for path in gfile().glob(pattern)})


def _key(paths: Sequence[str], schema: Any) -> str:
    prints = [fingerprint_of_file(path) for path in paths]
    text = json.dumps([_FILE, _VERSION, prints, schema.SerializeToString().hex()])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _decoded(batches: Iterator[pa.RecordBatch], room: int) -> pa.RecordBatch | None:
    """Returns the rows of all batches as one; None where there is no room, or there are none."""
    taken, decoded = 0, []
    for batch in batches:
        taken += batch.nbytes
        if 2 * taken > room:  # they are copied into one
            return None
        decoded.append(batch)
    return _as_one(pa.Table.from_batches(decoded)) if decoded else None


def _as_one(table: pa.Table) -> pa.RecordBatch | None:
    batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else None  # a column may be too large for one


def _batches(rows: pa.RecordBatch, options: Any) -> Iterator[pa.RecordBatch]:
    """Yields batches as the options ask for them; like TFX's, one may be of two epochs."""
    rng, size = np.random.default_rng(options.shuffle_seed), options.batch_size
    left = np.empty(0, np.int64)
    for _ in itertools.count() if options.num_epochs is None else range(options.num_epochs):
        every = rng.permutation(rows.num_rows) if options.shuffle else np.arange(rows.num_rows)
        left = np.concatenate([left, every])
        while len(left) >= size:
            taken, left = left[:size], left[size:]
            yield rows.take(pa.array(taken))
    if len(left) and not options.drop_final_batch:
        yield rows.take(pa.array(left))


def _cached(key: str, room: int) -> pa.RecordBatch | None:
    """Returns the rows that an earlier process has decoded; None without such, or without room."""
    folder = CacheFolder.of_environment()
    if folder is None or (facts := folder.facts(folder.path / key)) is None:
        return None
    file = folder.path / key / _FILE
    try:
        if file.stat().st_size > room:
            return None
        if checksums(file) == facts["checksums"]:
            return _as_one(pa.ipc.open_file(pa.memory_map(str(file))).read_all())
        _logger.warning("Cached record batches are damaged, and decoded anew: %s", file)
        folder.delete(folder.path / key)
    except _ERRORS as error:
        _logger.info("Cached record batches cannot be read: %s", error)
    return None


def _keep(key: str, paths: Sequence[str], rows: pa.RecordBatch) -> None:
    """Copies rows into the cache, if there is one; says in the log why where it cannot be done."""
    folder = CacheFolder.of_environment()
    if folder is None or (folder.path / key).exists():
        return
    try:
        if not folder.make_room(rows.nbytes):
            _logger.info("The record batches are not cached: %s has no room", folder.path)
            return
        with folder.unfinished() as scratch:
            source = Path(scratch) / "columns"
            source.mkdir()
            with pa.ipc.new_file(str(source / _FILE), rows.schema) as file:
                file.write_batch(rows)
            Entry(paths, rows.num_rows, {"checksums": checksums(source / _FILE)}).write(source)
            with contextlib.suppress(OSError):  # another process was faster
                source.rename(folder.path / key)
    except _ERRORS as error:
        _logger.info("The record batches are not cached: %s", error)
