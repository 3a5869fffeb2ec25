"""The folder of the column cache: where it lies, what it holds, what goes when it is full.

It can be asked without TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.machine import free_disk_bytes
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError

# Environment variables, because they belong to the machine; see `_budget.MEMORY_VARIABLE`.
DIRECTORY_VARIABLE = "GENERIC_TRAINER_CACHE_DIR"
LIMIT_VARIABLE = "GENERIC_TRAINER_CACHE_MB"
OFF = "off"

_MB = 10**6
_DEFAULT_LIMIT_MB = 20_000
_SHARE_OF_FREE_DISK = 4
_DISK_RESERVE_BYTES = 1 << 30
_PAGE_BYTES = 4096
_FACTS = "columns.json"


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the cache says of one set of files.

    Attributes:
        files: the paths that were read.
        num_rows: examples in them.
        facts: what it takes to map the columns.
    """

    files: Sequence[str]
    num_rows: int
    facts: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Writes what is said into the folder of the columns, below a checksum of it."""
        text = json.dumps(dataclasses.asdict(self))
        (folder / _FACTS).write_text(f"{_checksum(text)}\n{text}", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Entry | None:
        """Returns what is said in a folder; None where it cannot be read or is damaged."""
        try:
            checksum, _, text = (folder / _FACTS).read_text(encoding="utf-8").partition("\n")
            return cls(**json.loads(text)) if checksum == _checksum(text) else None
        except (OSError, ValueError, TypeError):
            return None


@dataclasses.dataclass(frozen=True)
class EntryInfo:
    """An entry as it is listed.

    Attributes:
        folder: where it lies.
        num_bytes: what it takes on the disk.
        used_s: when it was used last, in seconds since the epoch.
    """

    folder: Path
    num_bytes: int
    used_s: float

    def entry(self) -> Entry | None:
        """Returns what it says; None where it is damaged."""
        return Entry.read(self.folder)


@dataclasses.dataclass(frozen=True)
class CacheFolder:
    """A folder for cached columns, of this user alone.

    Attributes:
        path: where it lies.
        limit_bytes: what it may take.
    """

    path: Path
    limit_bytes: int

    @classmethod
    def of_environment(cls) -> CacheFolder | None:
        """Returns the folder of this user; None where caching is off.

        Raises:
            ConfigurationError: the limit in the environment is no number.
        """
        given = os.environ.get(DIRECTORY_VARIABLE, "").strip()
        if given == OFF:
            return None
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        path = Path(given or os.path.join(home, "generic-trainer")).absolute() / "columns"
        text = os.environ.get(LIMIT_VARIABLE, "").strip()
        if text and not text.isdecimal():
            raise ConfigurationError(
                f"{LIMIT_VARIABLE}: expected a whole number of megabytes, such as 20000, found "
                f"{text!r}"
            )
        return cls(path, int(text or _DEFAULT_LIMIT_MB) * _MB)

    def entries(self) -> list[EntryInfo]:
        """Returns what is cached, what was used last first."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.path) as listed:
            for each in listed:
                with contextlib.suppress(OSError):
                    if os.path.isfile(os.path.join(each.path, _FACTS)):
                        size, used_s = _size(each.path), each.stat().st_mtime
                        found.append(EntryInfo(Path(each.path), size, used_s))
        return sorted(found, key=lambda each: each.used_s, reverse=True)

    def facts(self, folder: Path) -> dict[str, Any] | None:
        """Returns what it takes to map the columns in a folder, and notes that they are used.

        None where there are none, or where they are another user's, who is not trusted.
        """
        try:
            if folder.lstat().st_uid != os.geteuid():
                return None
            entry = Entry.read(folder)
            os.utime(folder)
        except OSError:
            return None
        return entry.facts if entry else None

    def make_room(self, num_bytes: int) -> bool:
        """Makes the folder, and room in it by deleting what was not used for longest.

        Returns:
            Whether there is room now.

        Raises:
            OSError: the folder cannot be made.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        entries = self.entries()
        taken = sum(each.num_bytes for each in entries)
        free = free_disk_bytes(str(self.path)) - _DISK_RESERVE_BYTES
        limit = min(self.limit_bytes, taken + max(0, free) // _SHARE_OF_FREE_DISK)
        if num_bytes > limit:
            return False
        while entries and taken + num_bytes > limit:
            oldest = entries.pop()
            self.delete(oldest.folder)
            taken -= oldest.num_bytes
        return taken + num_bytes <= limit

    def unfinished(self) -> ScratchFolder:
        """Returns a folder for what is being written or deleted.

        Raises:
            ConfigurationError: it cannot be made.
        """
        return ScratchFolder(".unfinished-", str(self.path))

    def delete(self, folder: Path) -> None:
        """Deletes one entry; who has opened its files keeps them."""
        with (
            contextlib.suppress(OSError, ConfigurationError),
            self.unfinished() as unfinished,
        ):
            folder.rename(Path(unfinished, folder.name))

    def clear(self) -> int:
        """Deletes all entries and returns how many bytes they took."""
        entries = self.entries()
        for each in entries:
            self.delete(each.folder)
        return sum(each.num_bytes for each in entries)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _size(folder: str) -> int:
    with os.scandir(folder) as listed:
        sizes = [each.stat().st_size for each in listed]
    return sum(-(-size // _PAGE_BYTES) * _PAGE_BYTES for size in sizes)
