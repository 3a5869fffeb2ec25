"""Columns of some files by a plan, moved to disk or given up where the estimate was too low."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from generic_trainer._core.records import READ_ERRORS, RecordFile, reason
from generic_trainer.data._count import remember_counts
from generic_trainer.data._diagnose import diagnose
from generic_trainer.data._estimate import Estimate
from generic_trainer.data._load import Loaded, SeparatorInData, Storing, load
from generic_trainer.data._parse import Parser
from generic_trainer.data._plan import Limits, Path
from generic_trainer.data._progress import Progress
from generic_trainer.errors import DataError

__all__ = ["Collected", "NoRoom", "collect", "read_error"]

_logger = logging.getLogger(__name__)

# Of the memory budget, also where columns are on disk.
_VOCABULARY_SHARE = 8


class NoRoom(Exception):
    """Columns cannot be kept; the message says why."""


@dataclass(frozen=True)
class Collected:
    """Columns, and where they are."""

    loaded: Loaded
    path: Path


def collect(
    files: Sequence[RecordFile],
    parser: Parser,
    options: Any,
    path: Path,
    limits: Limits,
    expected: Estimate,
    one_pass: bool,
) -> Collected:
    """Reads files into memory or onto disk.

    Args:
        files: what to read.
        parser: how.
        options: the dataset's, for the numbers of threads.
        path: "memory" or "disk".
        limits: what there is room for.
        expected: the estimate that the path was chosen by.
        one_pass: whether moving to disk is not worth it.

    Raises:
        DataError: a file or record is at fault.
        NoRoom: the columns are too large after all, or hold strings that cannot be stored.
    """
    guard = _Guard(path, limits, expected, one_pass)
    storing = Storing(
        expected.coded,
        limits.memory_bytes // _VOCABULARY_SHARE,
        directory=None if path == "memory" else limits.directory,
    )
    try:
        loaded = load(
            files,
            parser,
            storing,
            record_bytes=expected.record_bytes,
            reader_num_threads=options.reader_num_threads,
            parser_num_threads=options.parser_num_threads,
            on_block=guard,
        )
    except SeparatorInData as error:
        raise NoRoom("strings hold every separator that could end them") from error
    except READ_ERRORS as error:
        raise read_error(files, parser, error) from error
    remember_counts(files, loaded.rows_per_file())
    return Collected(loaded, guard.path)


def read_error(files: Sequence[RecordFile], parser: Parser, error: Exception) -> DataError:
    """Returns the `DataError` that says which file, record and feature an error comes from."""
    unknown = f"Cannot read {len(files)} TFRecord file(s), such as {files[0].path}: {reason(error)}"
    return diagnose(files, parser) or DataError(unknown)


class _Guard:
    """Looks after each block whether there still is room."""

    def __init__(self, path: Path, limits: Limits, expected: Estimate, one_pass: bool) -> None:
        self.path = path
        self._limits = limits
        self._one_pass = one_pass
        self._progress = Progress(expected.num_examples)
        self._read = 0

    def __call__(self, loaded: Loaded) -> None:
        self._read += loaded.runs[-1][1]
        self._progress.update(self._read)
        size = loaded.store.num_bytes
        if self.path == "memory" and size > self._limits.memory_bytes:
            self._leave_memory(loaded, size)
        elif self.path == "disk" and not self._limits.disk_bytes():
            raise NoRoom(f"disk is short in {self._limits.directory}")

    def _leave_memory(self, loaded: Loaded, size: int) -> None:
        if self._one_pass:
            raise NoRoom("the columns outgrow the memory budget, and one pass is asked for")
        if size > self._limits.disk_bytes():
            raise NoRoom(f"memory is short, and disk in {self._limits.directory}")
        _logger.info("The columns outgrow the memory budget: moved to %s", self._limits.directory)
        loaded.store.spill(self._limits.directory)
        self.path = "disk"
