"""The column cache: processes map columns that an earlier process has parsed of the same files.

The cache of a user is a folder with a subfolder for each set of files and features. The name of the
subfolder is a hash of the files' fingerprints, of the features and of the version of the layout. It
contains the arrays of the columns as they are mapped, the vocabulary, and `columns.json`, which
describes how they belong together and has a checksum of every block. A subfolder appears and
disappears by a single rename, so it is always complete; a process that has opened its files can
read them after that.

A failure of the cache never fails a run: unreadable columns are parsed again, and columns that
cannot be written are not cached.
"""

import contextlib
import hashlib
import json
import logging
import os
import pickle
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import fingerprint_of_file
from generic_trainer._core.machine import available_cpus
from generic_trainer._core.records import RecordFile
from generic_trainer._core.values import unpickled_data
from generic_trainer.data._cache_folder import CacheFolder, Entry
from generic_trainer.data._counting import remember_counts
from generic_trainer.data._layout import make_layout
from generic_trainer.data._loading import Columns
from generic_trainer.data._parser import Parser
from generic_trainer.data._store import Store
from generic_trainer.errors import DataError, GenericTrainerError

_logger = logging.getLogger(__name__)

# To be increased by any change of the rows, of their order or of their form in the files.
_VERSION = 3
_DIGITS = 32
_BLOCK_BYTES = 4 << 20
_PARALLEL_LOOKS = 16
_VOCABULARY = "vocabulary"
# Errors of reading files that are damaged, or that another process is deleting.
_ERRORS = (OSError, ValueError, DataError)


def columns_key(files: Sequence[RecordFile], parser: Parser) -> str:
    """Returns the name of columns in the cache: a hash of the files' contents and the features.

    Raises:
        tf.errors.OpError: a file cannot be read.
    """
    with ThreadPoolExecutor(_PARALLEL_LOOKS) as pool:
        prints = list(pool.map(fingerprint_of_file, [file.path for file in files]))
    text = json.dumps([_VERSION, prints, [file.compression for file in files], parser.key()])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def open_columns(
    cache: CacheFolder,
    key: str,
    entry: Entry,
    files: Sequence[RecordFile],
    parser: Parser,
    *,
    in_memory: bool,
) -> Columns | None:
    """Returns columns of the cache. Deletes them and returns None if a block is damaged.

    Args:
        cache: the cache.
        key: the `columns_key`.
        entry: the description of the columns, from `cache.find(key)`.
        files: the files of the columns.
        parser: the parser of the columns.
        in_memory: whether there is memory for them.
    """
    folder = cache.path / key
    try:
        for name, expected in entry.checksums.items():
            if _checksums(folder / name) != expected:
                raise DataError(f"the content of {folder / name} has changed")
        layout = make_layout(parser, bytes.fromhex(entry.separator), frozenset(entry.coded))
        *names, vocabulary = entry.checksums
        strings = unpickled_data((folder / vocabulary).read_bytes())
        paths = [str(folder / name) for name in names]
        store = Store.of_files(layout.arrays, paths, strings, in_memory=in_memory)
    except FileNotFoundError:
        return None  # another process has deleted them to make room
    except _ERRORS as error:
        _logger.warning("Cached columns are damaged; parsing the examples again: %s", error)
        cache.delete(folder)
        return None
    runs = [(file, rows) for file, rows in entry.runs]
    remember_counts(files, np.bincount(*np.array(runs).T, len(files)))
    return Columns(layout, store, len(files), runs, entry.expected_bytes)


def keep_columns(
    folder: CacheFolder,
    key: str,
    files: Sequence[RecordFile],
    parser: Parser,
    columns: Columns,
) -> None:
    """Copies columns into the cache; logs the reason if that fails.

    Args:
        folder: the cache.
        key: the `columns_key` from before the files were read.
        files: the files of the columns.
        parser: the parser of the columns.
        columns: the columns.
    """
    target, size = folder.path / key, columns.store.num_bytes
    try:
        if folder.find(key):
            return  # another process was faster
        if not folder.make_room(size):
            _logger.info("The columns are not cached: %s has no room for them", folder.path)
            return
        with folder.unfinished() as scratch:
            source = Path(scratch) / "columns"
            source.mkdir()
            _write(source, columns)
            if columns_key(files, parser) != key:
                _logger.info("The columns are not cached: files have changed meanwhile")
                return
            if target.exists() and not folder.find(key):  # its description is damaged
                folder.delete(target)
            with contextlib.suppress(OSError):
                source.rename(target)
    except (*_ERRORS, GenericTrainerError, tf.errors.OpError) as error:
        _logger.info("The columns are not cached: %s", error)


def _write(folder: Path, columns: Columns) -> None:
    names = [f"{number}.array" for number in range(len(columns.layout.arrays))]
    columns.store.copy_to([str(folder / name) for name in names])
    (folder / _VOCABULARY).write_bytes(pickle.dumps(columns.store.vocabulary.strings()))
    entry = Entry(
        num_bytes=columns.store.num_bytes,
        expected_bytes=columns.expected_bytes,
        separator=columns.layout.separator.hex(),
        coded=sorted(columns.layout.coded),
        runs=columns.runs,
        checksums={name: _checksums(folder / name) for name in (*names, _VOCABULARY)},
    )
    entry.write(folder)


def _checksums(path: Path) -> list[int]:
    """Returns the length of a file and a checksum of each of its blocks."""
    size = path.stat().st_size
    with path.open("rb") as file, ThreadPoolExecutor(len(available_cpus())) as pool:

        def checksum(start: int) -> int:
            return zlib.crc32(os.pread(file.fileno(), _BLOCK_BYTES, start))

        return [size, *pool.map(checksum, range(0, size, _BLOCK_BYTES))]
