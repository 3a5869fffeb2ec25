"""The folder of the column cache, its entries, and their eviction."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.data._budget import bytes_in_environment, free_disk_bytes
from generic_trainer.errors import ConfigurationError

# Environment variables, because they belong to the machine; see `_budget.MEMORY_VARIABLE`.
DIRECTORY_VARIABLE = "GENERIC_TRAINER_CACHE_DIR"
LIMIT_VARIABLE = "GENERIC_TRAINER_CACHE_MB"
OFF = "off"

_DEFAULT_LIMIT_BYTES = 20 * 10**9
_SHARE_OF_FREE_DISK = 4
_PAGE_BYTES = 4096
_FACTS = "columns.json"


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
        found = []
        for facts in self.path.glob(f"*/{_FACTS}"):
            with contextlib.suppress(OSError):
                folder = facts.parent
                found.append(EntryInfo(folder, _size(folder), folder.stat().st_mtime))
        return sorted(found, key=lambda each: each.used_s, reverse=True)

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
        taken = sum(each.num_bytes for each in entries)
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
        with (
            contextlib.suppress(OSError, ConfigurationError),
            self.unfinished() as unfinished,
        ):
            folder.rename(Path(unfinished, folder.name))


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _size(folder: Path) -> int:
    sizes = [each.stat().st_size for each in folder.iterdir()]
    return sum(-(-size // _PAGE_BYTES) * _PAGE_BYTES for size in sizes)
