"""CSV files as examples with a schema, for `generic-trainer run` without a pipeline.

As in CsvExampleGen, integers, other numbers and strings are features of type INT, FLOAT and BYTES,
an integer that does not fit into 64 bits is a string, spaces around a string are part of it, and an
empty cell is a feature without a value. Spaces around the names of columns are not part of them.
"""

import contextlib
import csv
import dataclasses
import io
import itertools
import os
from collections.abc import Mapping, Sequence

from generic_trainer._core.files import read_text
from generic_trainer._core.texts import shown
from generic_trainer.errors import DataError

SUFFIX = ".csv"
_FILE_BYTES = 2 << 20
_LISTS = {int: "int64_list", float: "float_list", str: "bytes_list"}
_EVAL_EVERY = 3  # of one file, two thirds of the rows are for training, as in CsvExampleGen


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of CSV files, by split.

    Attributes:
        columns: name → `int`, `float` or `str`.
        rows: split → cells of each row, in the order of the columns.
    """

    columns: Mapping[str, type]
    rows: Mapping[str, Sequence[Sequence[str]]]


def read_csv(paths: Mapping[str, str]) -> Table:
    """Reads the files of splits; a single file, of the split `""`, is divided into two splits.

    Args:
        paths: split → CSV file whose first line names the columns, local or remote.

    Raises:
        DataError: a file cannot be read or is empty, a row has too many or too few cells, or the
            files have different columns.
    """
    names: list[str] = []
    rows: dict[str, list[list[str]]] = {}
    for split, path in paths.items():
        header, rows[split] = _read(path)
        if names and header != names:
            raise DataError(f"{path}: expected the columns {names}, found {header}", path=path)
        names = header
    if "" in rows:
        whole = rows.pop("")
        rows["eval"] = whole[_EVAL_EVERY - 1 :: _EVAL_EVERY]
        rows["train"] = [row for number, row in enumerate(whole, 1) if number % _EVAL_EVERY]
        if not rows["eval"]:
            raise DataError(
                f"{path} has {len(whole)} rows: expected at least {_EVAL_EVERY}, as every third "
                "is for evaluation",
                path=path,
            )
    cells = zip(*(row for split in rows.values() for row in split), strict=True)
    columns = {name: _type(column) for name, column in zip(names, cells, strict=True)}
    return Table(columns, rows)


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
    """
    import tensorflow as tf

    from generic_trainer._core.records import FRAME_BYTES

    def record(row: Sequence[str]) -> bytes:
        example = tf.train.Example()
        for (name, kind), cell in zip(table.columns.items(), row, strict=True):
            values = getattr(example.features.feature[name], _LISTS[kind]).value
            values.extend([cell.encode() if kind is str else kind(cell)] if cell else [])
        return bytes(example.SerializeToString(deterministic=True))

    written: dict[str, tuple[str, ...]] = {}
    for split, rows in table.rows.items():
        directory = os.path.join(folder, f"Split-{split}")
        os.makedirs(directory)
        records = map(record, rows[:most])
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


def write_schema(table: Table, path: str) -> str:
    """Writes the schema of a table in text format, and returns its path.

    A column with a value in every row is a required feature of shape [1].
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    kinds = {int: schema_pb2.INT, float: schema_pb2.FLOAT, str: schema_pb2.BYTES}
    schema = schema_pb2.Schema()
    for column, (name, kind) in enumerate(table.columns.items()):
        feature = schema.feature.add(name=name, type=kinds[kind])
        if all(row[column] for rows in table.rows.values() for row in rows):
            feature.presence.min_fraction = 1.0
            feature.shape.dim.add(size=1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text_format.MessageToString(schema))
    return path


def _read(path: str) -> tuple[list[str], list[list[str]]]:
    try:
        reader = csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff")), strict=True)
        lines = [row for row in reader if row]
        lines[:1] = [[name.strip() for name in row] for row in lines[:1]]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV file: {error}", path=path) from error
    if len(lines) < 2 or "" in lines[0] or len(set(lines[0])) < len(lines[0]):
        found = f"{shown(lines[0])} and {len(lines) - 1} rows" if lines else "an empty file"
        raise DataError(
            f"{path}: expected a first line with a different name for each column, and rows below "
            f"it; found {found}",
            path=path,
        )
    header, *rows = lines
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataError(
                f"{path}, row {number}: expected {len(header)} cells, found {len(row)}", path=path
            )
    return header, rows


def _type(cells: Sequence[str]) -> type:
    found = {_type_of(cell.encode()) for cell in cells if cell}
    return next((kind for kind in (str, float, int) if kind in found), str)


def _type_of(cell: bytes) -> type:
    """Returns the type of a cell in UTF-8: digits and spaces beyond ASCII are text, as in TFX."""
    with contextlib.suppress(ValueError):
        return int if -(2**63) <= int(cell) < 2**63 else str
    with contextlib.suppress(ValueError):
        return type(float(cell))
    return str
