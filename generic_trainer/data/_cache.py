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

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import pickle
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import fingerprint_of_file
from generic_trainer._core.machine import available_cpus
from generic_trainer._core.records import RecordFile
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.values import unpickled_data
from generic_trainer.data._budget import bytes_in_environment, free_disk_bytes
from generic_trainer.data._layout import make_layout
from generic_trainer.data._loading import Columns, remember_counts
from generic_trainer.data._parser import Parser
from generic_trainer.data._store import Store
from generic_trainer.errors import ConfigurationError, DataError, GenericTrainerError

# Environment variables, because they belong to the machine; see `_budget.MEMORY_VARIABLE`.
DIRECTORY_VARIABLE = "GENERIC_TRAINER_CACHE_DIR"
LIMIT_VARIABLE = "GENERIC_TRAINER_CACHE_MB"
OFF = "off"
_DEFAULT_LIMIT_BYTES = 20 * 10**9
_SHARE_OF_FREE_DISK = 4
_PAGE_BYTES = 4096
_FACTS = "columns.json"
# To be increased by any change of the rows, of their order or of their form in the files.
_VERSION = 4
_DIGITS = 32
_BLOCK_BYTES = 4 << 20
_PARALLEL_LOOKS = 16
_VOCABULARY = "vocabulary"
# Errors of reading files that are damaged, or that another process is deleting.
_ERRORS = (OSError, ValueError, DataError)

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Entry:
    """The description of the columns of one set of files.

    Attributes:
        num_bytes: size of the columns.
        expected_bytes, runs: see `_loading.Columns`.
        separator, coded: see `_layout.make_layout`; the separator in hex.
        checksums: file of the folder → its length and a checksum of each of its blocks; the arrays
            in their order, then the vocabulary.
    """

    num_bytes: int
    expected_bytes: int
    separator: str
    coded: Sequence[str]
    runs: Sequence[Sequence[int]]
    checksums: Mapping[str, list[int]]

    def write(self, folder: Path) -> None:
        """Writes the description into the folder of the columns, after a checksum of it."""
        text = json.dumps(dataclasses.asdict(self))
        (folder / _FACTS).write_text(f"{_checksum(text)}\n{text}", encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class EntryInfo:
    """An entry of the cache in a listing.

    Attributes:
        folder: path of the entry.
        num_bytes: room on the disk.
        used_s: time of the last use, in seconds since the epoch.
    """

    folder: Path
    num_bytes: int
    used_s: float


@dataclasses.dataclass(frozen=True)
class CacheFolder:
    """A folder for cached columns, which belongs to this user alone.

    Attributes:
        path: path of the folder.
        limit_bytes: room that it may take on the disk.
    """

    path: Path
    limit_bytes: int

    @classmethod
    def of_environment(cls) -> CacheFolder | None:
        """Returns the folder of this user, or None if caching is off.

        Raises:
            ConfigurationError: the limit in the environment is not a number.
        """
        given = os.environ.get(DIRECTORY_VARIABLE, "").strip()
        if given == OFF:
            return None
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        path = Path(given or os.path.join(home, "generic-trainer")).absolute() / "columns"
        limit_bytes = bytes_in_environment(LIMIT_VARIABLE)
        return cls(path, _DEFAULT_LIMIT_BYTES if limit_bytes is None else limit_bytes)

    def entries(self) -> list[EntryInfo]:
        """Returns all entries, the last used one first."""
        entries = []
        for facts in self.path.glob(f"*/{_FACTS}"):
            with contextlib.suppress(OSError):
                folder = facts.parent
                entries.append(EntryInfo(folder, _size(folder), folder.stat().st_mtime))
        return sorted(entries, key=lambda entry: entry.used_s, reverse=True)

    def find(self, key: str) -> Entry | None:
        """Returns the description of the columns with a key, and marks the columns as used.

        Returns None if there are no columns, if their description is damaged, or if they belong to
        another user, who is not trusted.
        """
        folder = self.path / key
        with contextlib.suppress(OSError, ValueError, TypeError):
            if folder.lstat().st_uid == os.geteuid():
                os.utime(folder)
                checksum, _, text = (folder / _FACTS).read_text(encoding="utf-8").partition("\n")
                return Entry(**json.loads(text)) if checksum == _checksum(text) else None
        return None

    def make_room(self, num_bytes: int) -> bool:
        """Creates the folder, and deletes the entries that were not used for longest.

        Returns:
            Whether there is room for so many bytes now.

        Raises:
            OSError: the folder cannot be created.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        entries = self.entries()
        taken = sum(entry.num_bytes for entry in entries)
        free = free_disk_bytes(str(self.path))
        limit = min(self.limit_bytes, taken + free // _SHARE_OF_FREE_DISK)
        if num_bytes > limit:
            return False
        while taken + num_bytes > limit:
            oldest = entries.pop()
            self.delete(oldest.folder)
            taken -= oldest.num_bytes
        return True

    def unfinished(self) -> ScratchFolder:
        """Returns a folder for an entry that is being written or deleted.

        Raises:
            ConfigurationError: it cannot be created.
        """
        return ScratchFolder(".unfinished-", str(self.path))

    def delete(self, folder: Path) -> None:
        """Deletes one entry; processes that have opened its files can still read them."""
        with contextlib.suppress(OSError, ConfigurationError), self.unfinished() as unfinished:
            folder.rename(Path(unfinished, folder.name))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _size(folder: Path) -> int:
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return sum(-(-size // _PAGE_BYTES) * _PAGE_BYTES for size in sizes)


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
    folder: CacheFolder, key: str, files: Sequence[RecordFile], parser: Parser, columns: Columns
) -> None:
    """Copies columns into the cache; logs the reason if that fails.

    Args:
        folder: the cache.
        key: the `columns_key` from before the files were read.
        files: the files of the columns.
        parser: the parser of the columns.
        columns: the columns.
    """
    target = folder.path / key
    size = columns.store.num_bytes
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
