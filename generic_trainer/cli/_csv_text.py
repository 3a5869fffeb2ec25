"""The text of a CSV file: its encoding, its separator, and a column of row numbers."""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import logging
import re
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from generic_trainer._core.files import read_text
from generic_trainer._core.texts import listed, shown
from generic_trainer.errors import DataError

SUFFIX = ".csv"
_NO_TEXTS = {  # how such a file begins → what it is
    b"\x1f\x8b": "it is packed by gzip, and no text: unpack it first",
    b"PK\x03\x04": "it is an Excel file or a ZIP archive, and no text: save its table as CSV",
    b"\xd0\xcf\x11\xe0": "it is an Excel file, and no text: save its table as CSV",
    b"PAR1\x15": "it is a Parquet file, and no text: write its table as CSV",
}
_JSON = re.compile(r'\s*(\[\s*)?\{\s*"')
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What pandas.read_csv takes for an empty cell, and what MySQL writes for one.
_MARKERS = (
    "#N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A NA NULL NaN None n/a nan null \\N"
)
EMPTY_MARKERS = frozenset({"", "#N/A N/A", *_MARKERS.split()})
_SEPARATOR_LINE = re.compile(r"\Asep=.\r?\n")  # tells Excel the separator
_COMMA_OF_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+(,\d*)?|,\d+)([eE][+-]?\d+)?")

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Sheet:
    """The cells of a CSV file.

    Attributes:
        path: the file.
        names: of its columns.
        rows: cells of each row, below the first line.
        numbers: of the rows, as a spreadsheet counts them: blank rows count.
        separator: between cells; where it is no comma, numbers may have decimal commas.
    """

    path: str
    names: list[str]
    rows: list[list[str]]
    numbers: list[int]
    separator: str


def read_sheet(path: str) -> Sheet:
    """Reads a file, whatever its encoding and separator, without a column of row numbers.

    Args:
        path: local or remote, in UTF-8, UTF-16 or cp1252, with commas, semicolons, tabs or vertical
            bars between the cells.

    Raises:
        DataError: it cannot be read, or its rows do not fit the names of its columns.
    """
    try:
        text = read_text(path, functools.partial(decoded, path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: expected a file of text in UTF-8, UTF-16 or cp1252: {error}",
            path=path,
        ) from error
    return sheet_of_text(path, text)


def sheet_of_text(path: str, text: str) -> Sheet:
    """Returns the sheet of the text of a file; see `read_sheet`."""
    if _JSON.match(text):
        raise DataError(f"{path} is JSON, and no table: write its rows as CSV", path=path)
    text = _SEPARATOR_LINE.sub("\n", text)
    try:
        with _cells_of_any_length(text):
            separator = _separator(text)
            numbered = [*_lines(text, separator)]
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as a CSV file: {error}", path=path) from error
    numbers = [number for number, _ in numbered]
    lines, index = _without_index([line for _, line in numbered])
    names = Counter(lines[0] if lines else ())
    if len(lines) < 2 or names[""] or names.total() > len(names):
        actual = f"{shown(lines[0])} and {len(lines) - 1} rows" if lines else "an empty file"
        if repeated := [name for name, count in names.items() if name and count > 1]:
            actual = f"several columns with the name {listed([*map(repr, repeated)])}"
        elif names[""] and len(names) > 1:
            place, count = lines[0].index("") + 1 + index, len(lines[0]) + index
            actual = f"no name for column {place} of {count}"
        raise DataError(
            f"{path}: expected a first line with a different name for each column, and rows below "
            f"it; found {actual}",
            path=path,
        )
    header, *rows = lines
    for number, row in zip(numbers[1:], rows, strict=True):
        if len(row) != len(header):
            raise DataError(
                f"{path}, row {number}: expected {len(header)} cells, found {len(row)}, separated "
                f"by {_SEPARATORS[separator]}, as in the first line, {shown(header)}",
                path=path,
            )
    if separator != ",":
        _logger.info("%s: its cells are separated by %s", path, _SEPARATORS[separator])
    if index:
        _logger.info("%s: its first column has no name, and is left out as an index", path)
    return Sheet(path, header, rows, numbers[1:], separator)


def decoded(path: str, content: bytes) -> str:
    """Returns the text of the content of a file, in UTF-8, UTF-16 or cp1252.

    Raises:
        ValueError: it is not a text in one of them.
    """
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding)
    # Without a mark: every other byte of most texts in UTF-16 is 0.
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(content) > 1 and not any(content[start : start + 64 : 2]):
            return content.decode(encoding)
    for beginning, remedy in _NO_TEXTS.items():
        if content.startswith(beginning):
            raise ValueError(remedy)
    if content[4:8] == bytes(4):  # the upper half of the length of the first record
        raise ValueError("it is a file of TFRecords, and no text")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        try:
            text = content.decode("cp1252")
        except UnicodeDecodeError:
            raise ValueError("it has another encoding: convert it to UTF-8") from error
        row = content.count(b"\n", 0, error.start) + 1
        # A warning, which every command shows: other encodings of one byte decode as well.
        _logger.warning(
            "%s is not in UTF-8 (row %d), and is read as cp1252; from any other encoding convert "
            "it to UTF-8 first, or its letters become other ones",
            path,
            row,
        )
        return text


@contextlib.contextmanager
def _cells_of_any_length(text: str) -> Iterator[None]:
    """Lifts the limit of the `csv` module, which is for the whole process: 131,072 characters."""
    limit = csv.field_size_limit()
    csv.field_size_limit(max(limit, len(text) + 1))
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _lines(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the cells of each row that is not blank."""
    line_ends = "\n" if "\n" in text else ""  # in the latter case CR alone, of old Macs, is one
    reader = csv.reader(io.StringIO(text, line_ends), delimiter=separator, strict=True)
    rows = ((number, row) for number, row in enumerate(reader, 1) if row)
    for number, names in itertools.islice(rows, 1):
        yield number, [name.strip() for name in names]
    yield from rows


def _separator(text: str) -> str:
    """Returns the separator that divides all rows alike, else that of most names.

    If several do, it is that of most names, and not the comma, which numbers and names may have.
    """
    widths: dict[str, int] = {}
    fitting: dict[str, int] = {}
    for separator in _SEPARATORS:
        try:
            lines = _lines(text, separator)
            widths[separator] = names = len(next(lines, (0, []))[1])
            # One more may be the number of the row; any more must be empty.
            sizes = {
                len(row) if len(row) <= names + 1 else max(names, _filled_width(row))
                for _, row in lines
            }
            if names > 1 and sizes <= {names, names + 1}:
                fitting[separator] = names
        except csv.Error:
            widths.setdefault(separator, 0)
    candidates = fitting or widths
    return max(
        candidates,
        key=lambda separator: (candidates[separator], bool(fitting) and separator != ","),
    )


def _filled_width(line: Sequence[str]) -> int:
    """Returns the number of cells up to the last one with a text."""
    return next((size for size in range(len(line), 0, -1) if line[size - 1]), 0)


def _without_index(lines: list[list[str]]) -> tuple[list[list[str]], bool]:
    """Returns the lines without a nameless first column, as pandas and R write one.

    Separators at the end of the lines, or of those below the first, make no column.
    """
    if len(lines) < 2 or len(lines[0]) < 2:
        return lines, False
    widths = sorted(map(len, lines))
    is_even = widths[1] == widths[-1]  # only the line of the names may be shorter
    # Of most tables the first line answers this.
    ends_empty = not any(line[-1] for line in lines if len(line) == widths[-1])
    if is_even and ends_empty and any(lines[0]):
        end = max(map(_filled_width, lines))
        lines = [line[:end] for line in lines]
    if lines[0][0] == "":
        return [line[1:] for line in lines], True
    if {len(row) for row in lines[1:]} == {len(lines[0]) + 1}:  # of R, without a cell in line 1
        return [lines[0], *(row[1:] for row in lines[1:])], True
    return lines, False


def as_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Returns rows as the text of a CSV file, which `sheet_of_text` reads as the same cells."""
    lines: list[str] = []
    file: Any = types.SimpleNamespace(write=lines.append)  # which gets a line in each call
    # Before Python 3.13 the writer quotes a line break in a cell only if lines end with it.
    csv.writer(file, lineterminator="\r\n").writerows(rows)
    return "".join(f"{line.removesuffix(chr(13) + chr(10))}\n" for line in lines)


def with_decimal_points(sheets: Iterable[Sheet], index: int) -> bool:
    """Replaces the decimal commas of a column of numbers, in all files or in none.

    A table with commas between its cells has none. With semicolons, which take the place of commas
    because numbers have these, each comma is a decimal one. With tabs or vertical bars, commas may
    as well divide thousands: they are left if all of them could.

    Returns whether there were any.
    """
    sheets = [sheet for sheet in sheets if sheet.separator != ","]
    filled = {row[index].strip() for sheet in sheets for row in sheet.rows} - EMPTY_MARKERS
    with_commas = {cell for cell in filled if "," in cell}
    if not with_commas or not all(map(_DECIMAL_COMMA.fullmatch, filled)):
        return False
    may_divide = any(sheet.separator != ";" for sheet in sheets)
    if may_divide and all(map(_COMMA_OF_THOUSANDS.fullmatch, with_commas)):
        return False
    for row in itertools.chain(*(sheet.rows for sheet in sheets)):
        row[index] = row[index].replace(",", ".")
    return True
