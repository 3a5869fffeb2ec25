"""CSV files as examples with a schema, for `generic-trainer run` without a pipeline.

As in CsvExampleGen, integers, other numbers and strings are features of type INT, FLOAT and BYTES,
an integer that does not fit into 64 bits is a string, spaces around a string are part of it, an
empty cell is a feature without a value, and a hash of the row decides its split. Spaces around the
names of columns are not part of them. Beyond that, `NA` and other markers of pandas and MySQL are
empty cells in a column of numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.files import write_whole
from generic_trainer._core.texts import did_you_mean, listed, shown
from generic_trainer.cli._csv_text import (
    EMPTY_MARKERS,
    SUFFIX,
    Sheet,
    read_sheet,
    with_decimal_points,
)
from generic_trainer.errors import DataError, raise_problems

__all__ = [
    "SUFFIX",
    "EmptyCells",
    "Table",
    "read_csv",
    "schema_text",
    "write_examples",
    "write_schema",
]

_FILE_BYTES = 2 << 20
_MOST_FLOAT = 3.4028235e38  # of float32, in which tf.Examples have numbers
_LISTS = {int: "int64_list", float: "float_list", str: "bytes_list"}
_MANY_CELLS = 5_000_000  # which take some 20 seconds
_MANY_MISSING = 20  # columns
_EVAL_SHARE = 3  # of one file, a third of the rows is for evaluation, as in CsvExampleGen
# A column is of numbers, and other cells in it are mistakes, if there are few of them, and alike.
_NUMBERS_PER_MISTAKE = 50
_DIFFERENT_MISTAKES = 3
_CODE = re.compile(r"[+-]?\d+|.*([A-Za-z].*\d|\d.*[A-Za-z]).*")  # beyond 64 bits, or as 136A
_WHOLE = re.compile(r"\s*([+-]?\d+)\.0*\s*")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_FEWEST_THOUSANDS = 5  # different ones

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EmptyCells:
    """The cells of a column without a value.

    Attributes:
        count: their number.
        rows: number of rows of the table.
        first: file and row of the first one, for messages.
    """

    count: int
    rows: int
    first: str

    def __str__(self) -> str:
        return f"{self.count} of {self.rows} cells are empty, the first in {self.first}"


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of CSV files, by split.

    Attributes:
        columns: name → `int`, `float` or `str`.
        rows: split → cells of each row, in the order of the columns; "" is an empty cell. The split
            `""` is a single file, which `write_examples` divides.
        empty: column → its empty cells, of those that have some, or of which only a schema knows.
        path: the first file.
    """

    columns: Mapping[str, type]
    rows: Mapping[str, Sequence[Sequence[str]]]
    empty: Mapping[str, EmptyCells]
    path: str

    def column(self, name: str) -> list[str]:
        """Returns the cells of a column, of all splits."""
        index = list(self.columns).index(name)
        return [row[index] for rows in self.rows.values() for row in rows]

    def require_label(self, name: str) -> None:
        """Checks that a column exists and has a value in each row, and no infinite one.

        Raises:
            DataError: it does not.
        """
        if name not in self.columns:
            near = did_you_mean(name, self.columns)
            raise DataError(
                f"{self.path}: no column {name!r}{near}; the columns are {[*self.columns]}",
                path=self.path,
            )
        if name in self.empty:
            raise empty_label(name, str(self.empty[name]))
        numbers = self.column(name) if self.columns[name] is float else ()
        wrong = (cell for cell in numbers if not abs(float(cell)) <= _MOST_FLOAT)  # also NaN
        if cell := next(wrong, None):
            raise DataError(
                f"column {name!r} is the label, but has {cell!r} in a cell, which is not finite as "
                "float32: no model learns from it. Correct or remove such rows.",
                path=self.path,
                feature=name,
            )


def empty_label(name: str, cells: str) -> DataError:
    """Returns the error for a label with empty cells.

    Args:
        name: the column.
        cells: the text of its `EmptyCells`.
    """
    return DataError(
        f"column {name!r} is the label, but {cells}: a row without a label trains nothing. Fill "
        "in or remove such rows.",
        feature=name,
    )


def read_csv(paths: Mapping[str, str], types: Mapping[str, type] | None = None) -> Table:
    """Reads the files of splits; a single file has the split `""`.

    Args:
        paths: split → CSV file whose first line names the columns, local or remote.
        types: column → `int`, `float` or `str`; others are inferred.

    Raises:
        DataError: a file cannot be read or is empty, a row has too many or too few cells, the files
            have different columns, or a column of numbers has a cell that is not a number.
    """
    sheets = {split: read_sheet(path) for split, path in paths.items()}
    first = next(iter(sheets.values()))
    sheets = {split: _in_order(sheet, first) for split, sheet in sheets.items()}
    files = ", ".join(sheet.path for sheet in sheets.values())
    rows = sum(len(sheet.rows) for sheet in sheets.values())
    if rows * len(first.names) >= _MANY_CELLS:
        _logger.info("Examining %s cells of %s", f"{rows * len(first.names):,}", files)
    columns: dict[str, type] = {}
    problems: list[str] = []
    empty: dict[str, EmptyCells] = {}
    marks: dict[str, list[str]] = {",": [], ".": []}
    thousands: list[str] = []
    for index, name in enumerate(first.names):
        given = (types or {}).get(name)
        replaced = given is not str and with_decimal_points(sheets.values(), index)
        cells = [row[index] for sheet in sheets.values() for row in sheet.rows]
        different = () if given is str else set(cells)
        kinds = {cell: _type_of(cell) for cell in different if not is_empty(cell)}
        kind = given or _type(cells, kinds)
        if kind is int and float in kinds.values():  # of the schema; pandas writes 4.0 beside gaps
            for row in itertools.chain(*(sheet.rows for sheet in sheets.values())):
                if whole := _WHOLE.fullmatch(row[index]):
                    kinds[whole[1]] = _type_of(whole[1])
                    kinds.pop(row[index], None)
                    row[index] = whole[1]
        columns[name] = kind
        if kind is float and _may_have_thousands(kinds):
            thousands.append(name)
        if replaced or (kind is float and any("." in cell for cell in kinds)):
            marks["," if replaced else "."].append(name)
        if kind is not str:
            for row in itertools.chain(*(sheet.rows for sheet in sheets.values())):
                row[index] = "" if is_empty(row[index]) else row[index]
            if wrong := {cell for cell, actual in kinds.items() if not _fits(actual, kind)}:
                problems.append(_mistake(sheets.values(), index, name, kind, wrong))
        if places := [place for place, row in _placed(sheets.values()) if not row[index]]:
            empty[name] = EmptyCells(len(places), len(cells), _text(places[0]))
    raise_problems(DataError, "the table cannot be read", problems, path=first.path)
    if first.separator != ";" and marks[","]:
        _logger.info("%s: commas are decimal marks in %s", files, listed(marks[","]))
    if first.separator != "," and all(marks.values()):
        _logger.warning(
            "%s has numbers with commas (%s) and numbers with points (%s), and takes both for "
            "decimal marks: if one of them divides thousands, remove it",
            files,
            *map(listed, marks.values()),
        )
    if thousands:
        _logger.warning(
            "%s: in %s, all numbers with a mark have three digits after it, and the others are "
            "below 1,000: it is taken for a decimal mark; if it divides thousands, remove it",
            files,
            listed(thousands),
        )
    if counts := [f"{name} {cells.count}" for name, cells in empty.items()]:
        _logger.info("%s: empty cells in %s rows: %s", files, f"{rows:,}", listed(counts))
    if missing := [name for name in types or {} if name not in columns]:
        others = [name for name in columns if name not in (types or {})]
        few = len(missing) <= _MANY_MISSING  # to look for similar names takes long
        _logger.warning(
            "%s: no column for %s of the schema, which the model would have to do without",
            files,
            listed([f"{name!r}{did_you_mean(name, others) if few else ''}" for name in missing]),
        )
        for name in missing:
            empty[name] = EmptyCells(rows, rows, f"{first.path}, which has no such column")
    return Table(columns, {split: sheet.rows for split, sheet in sheets.items()}, empty, first.path)


def _may_have_thousands(kinds: Mapping[str, type]) -> bool:
    """Whether decimals look like thousands: 1.234 or 12.500, in a column that also has 950."""
    decimals = [cell for cell, kind in kinds.items() if kind is float]
    others = [cell for cell, kind in kinds.items() if kind is int]
    return (
        len(decimals) >= _FEWEST_THOUSANDS
        and len(others) > 0
        and all(map(_THOUSANDS.fullmatch, decimals))
        and all(abs(int(cell)) < 1000 for cell in others)
    )


def _in_order(sheet: Sheet, first: Sheet) -> Sheet:
    """Returns a sheet with its columns in the order of those of the first one."""
    if sheet.names == first.names:
        return sheet
    lacks = [name for name in first.names if name not in sheet.names]
    adds = [name for name in sheet.names if name not in first.names]
    if lacks or adds:
        differences = {"lacks": lacks, "has besides": adds}
        found = ", and ".join(
            f"{verb} {listed(names)}" for verb, names in differences.items() if names
        )
        raise DataError(
            f"{sheet.path}: expected the columns of {first.path}, but it {found}", path=sheet.path
        )
    places = [sheet.names.index(name) for name in first.names]
    rows = [[row[place] for place in places] for row in sheet.rows]
    return dataclasses.replace(sheet, names=first.names, rows=rows)


def is_empty(cell: str) -> bool:
    """Whether a cell of a column of numbers has no value."""
    return cell.strip() in EMPTY_MARKERS


def value_of(cell: str, kind: type) -> Any:
    """Returns the value of a cell that is not empty.

    Raises:
        ValueError: it does not have such a value.
    """
    if kind is str:
        return cell.encode()
    if not _fits(_type_of(cell), kind):
        raise ValueError(_expected(cell))
    return kind(cell)


def write_examples(
    table: Table, folder: str, most: int | None = None
) -> dict[str, tuple[str, ...]]:
    """Writes TFRecords of `tf.Example`s for each split, and returns split → file pattern.

    The files are small enough for the run key to cover their content instead of their inodes, so
    the next attempt at a run, which writes them again, continues the run.

    Args:
        table: the rows to write.
        folder: a local directory, which is created.
        most: number of rows to write of each split, the first ones; None for all.

    Raises:
        DataError: the rows of a single file all belong to one split.
    """
    import tensorflow as tf

    from generic_trainer._core.records import FRAME_BYTES

    def record(row: Sequence[str]) -> bytes:
        example = tf.train.Example()
        for (name, kind), cell in zip(table.columns.items(), row, strict=True):
            feature = example.features.feature[name]
            if cell:
                value = cell.encode() if kind is str else kind(cell)
                getattr(feature, _LISTS[kind]).value.append(value)
        return bytes(example.SerializeToString(deterministic=True))

    splits: dict[str, Iterator[bytes]]
    splits = {split: map(record, rows) for split, rows in table.rows.items()}
    if "" in splits:
        splits |= _divided(list(splits.pop("")), table.path)
    written: dict[str, tuple[str, ...]] = {}
    for split, all_records in splits.items():
        directory = os.path.join(folder, f"Split-{split}")
        os.makedirs(directory)
        records = itertools.islice(all_records, most)
        for number in itertools.count():
            left = _FILE_BYTES
            with tf.io.TFRecordWriter(f"{directory}/data_tfrecord-{number:05d}") as writer:
                while left > 0 and (serialized := next(records, None)) is not None:
                    writer.write(serialized)
                    left -= len(serialized) + FRAME_BYTES
            if left > 0:
                break
        written[split] = (os.path.join(directory, "*"),)
    return written


def _divided(records: Sequence[bytes], path: str) -> dict[str, Iterator[bytes]]:
    """Divides records by a hash: a row stays in its split if others come and go.

    CsvExampleGen hashes the row alone, which has the label in it. Then, of few different rows, all
    (x, yes) may train and all (x, no) evaluate. So the second of equal rows gets a hash of its own.

    Rows for evaluation come in the order of their hashes: tables are often sorted by time or by the
    label, and what the checks say of the first eval rows is to hold for all of them.
    """
    splits: dict[str, list[tuple[str, bytes]]] = {"train": [], "eval": []}
    earlier: Counter[bytes] = Counter()
    for record in records:
        number = earlier[record]
        earlier[record] += 1
        digest = hashlib.sha256(record + (f"#{number}".encode() if number else b"")).hexdigest()
        is_eval = int(digest, 16) % _EVAL_SHARE == _EVAL_SHARE - 1
        splits["eval" if is_eval else "train"].append((digest, record))
    for split, rows in splits.items():
        if not rows:
            raise DataError(
                f"{path} has {len(records)} rows, and by a hash of each row none of them is in the "
                f"split {split!r}: add rows, or name a file for each split with --train and --eval",
                path=path,
            )
    splits["eval"].sort()
    return {split: iter([record for _, record in rows]) for split, rows in splits.items()}


def write_schema(table: Table, path: str) -> str:
    """Writes the schema of a table, and returns its path."""
    write_whole(path, schema_text(table))
    return path


def schema_text(table: Table) -> str:
    """Returns the schema of a table in text format.

    A column with a value in every row is a required feature of shape [1].
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    kinds = {int: schema_pb2.INT, float: schema_pb2.FLOAT, str: schema_pb2.BYTES}
    schema = schema_pb2.Schema()
    for name, kind in table.columns.items():
        feature = schema.feature.add(name=name, type=kinds[kind])
        if name not in table.empty:
            feature.presence.min_fraction = 1.0
            feature.shape.dim.add(size=1)
    return text_format.MessageToString(schema)


def types_of_schema(schema: Any) -> dict[str, type]:
    """Returns feature → type of the cells, of the features in use of a `Schema` proto or None."""
    if schema is None:
        return {}
    from tensorflow_metadata.proto.v0 import schema_pb2

    from generic_trainer.data import is_read  # it imports TensorFlow

    kinds = {schema_pb2.INT: int, schema_pb2.FLOAT: float, schema_pb2.BYTES: str}
    features = (feature for feature in schema.feature if feature.type in kinds)
    return {feature.name: kinds[feature.type] for feature in features if is_read(feature)}


def _placed(sheets: Any) -> Iterator[tuple[tuple[Sheet, int], Sequence[str]]]:
    """Yields each row with its sheet and number."""
    for sheet in sheets:
        for number, row in zip(sheet.numbers, sheet.rows, strict=True):
            yield (sheet, number), row


def _text(place: tuple[Sheet, int]) -> str:
    return f"{place[0].path}, row {place[1]}"


def _mistake(sheets: Any, index: int, name: str, kind: type, wrong: set[str]) -> str:
    """Returns a sentence about the cells of a column of numbers that are not such numbers."""
    mistakes = [(place, row[index]) for place, row in _placed(sheets) if row[index] in wrong]
    place, cell = mistakes[0]
    others = f", as in {len(mistakes) - 1} more of its cells" if mistakes[1:] else ""
    are_numbers = all(_type_of(each) is float for each in wrong)
    what, needed = ("numbers", "FLOAT") if are_numbers else ("text", "BYTES")
    return (
        f"{_text(place)}, column {name!r}: {_expected(cell)}{others}. Correct it, or leave "
        f"it empty; for a column of {what}, pass a --schema in which {name!r} is of type {needed}."
    )


def _type(cells: Sequence[str], kind_of: Mapping[str, type]) -> type:
    """Returns the type of a column.

    Args:
        cells: all of the column.
        kind_of: cell → its type, for those that are not empty.
    """
    texts = {cell for cell, kind in kind_of.items() if kind is str}
    if texts:
        counts = Counter(cells)
        mistakes = sum(counts[cell] for cell in texts)
        numbers = sum(counts[cell] for cell in kind_of) - mistakes
        are_few = len(texts) <= _DIFFERENT_MISTAKES and numbers >= _NUMBERS_PER_MISTAKE * mistakes
        if not are_few or any(map(_CODE.fullmatch, texts)):
            return str
    return next((kind for kind in (float, int) if kind in kind_of.values()), str)


def _fits(actual: type, kind: type) -> bool:
    """Whether a cell of one type can stand in a column of numbers of another type."""
    return actual is not str and (kind is float or actual is int)


def _expected(cell: str) -> str:
    """Returns the fault of a cell that does not fit, in words."""
    wanted = "an integer" if _type_of(cell) is float else "a number"
    return f"expected {wanted}, found {shown(cell)}"


def _type_of(cell: str) -> type:
    """Returns the type of a cell in UTF-8: digits and spaces beyond ASCII are text, as in TFX.

    So is "1_10", which Python reads as a number.
    """
    encoded = cell.encode()
    if b"_" in encoded:
        return str
    # Faster than contextlib.suppress, for millions of cells.
    try:
        return int if -(2**63) <= int(encoded) < 2**63 else str
    except ValueError:
        pass
    try:
        return type(float(encoded))
    except ValueError:
        return str
