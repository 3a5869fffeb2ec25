"""CSV files as examples with a schema, for `generic-trainer run` without a pipeline.

As CsvExampleGen does it: whole numbers, other numbers and texts are features of type INT, FLOAT and
BYTES, and an empty cell is a feature without a value.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer._core.files import is_remote, read_text
from generic_trainer._core.texts import shown
from generic_trainer.errors import DataError

SUFFIX = ".csv"
_EVAL_EVERY = 3  # of one file: two thirds of the rows to train on, as with CsvExampleGen


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of CSV files, by split.

    Attributes:
        columns: name → `int`, `float` or `str`.
        rows: split → cells of each row, in the order of the columns.
        modified_ns: time of the files' last change, in nanoseconds since the epoch.
    """

    columns: Mapping[str, type]
    rows: Mapping[str, Sequence[Sequence[str]]]
    modified_ns: int


def read_csv(paths: Mapping[str, str]) -> Table:
    """Reads the files of splits; one file alone, of the split `""`, is divided into two splits.

    Args:
        paths: split → CSV file whose first line names the columns, local or remote.

    Raises:
        DataError: a file cannot be read, has no rows, or a row with another number of cells; or the
            files have different columns.
    """
    names: list[str] = []
    rows: dict[str, list[list[str]]] = {}
    for split, path in paths.items():
        header, rows[split] = _read(path)
        if names and header != names:
            raise DataError(f"{path} has the columns {header}, and another file {names}", path=path)
        names = header
    if "" in rows:
        whole = rows.pop("")
        rows["eval"] = whole[_EVAL_EVERY - 1 :: _EVAL_EVERY]
        rows["train"] = [row for place, row in enumerate(whole, 1) if place % _EVAL_EVERY]
        if not rows["eval"]:
            raise DataError(
                f"{paths['']} has {len(whole)} rows: expected at least {_EVAL_EVERY}, of which "
                "every third is to evaluate on",
                path=paths[""],
            )
    cells = zip(*(row for split in rows.values() for row in split), strict=True)
    columns = {name: _type(column) for name, column in zip(names, cells, strict=True)}
    local = [os.stat(path).st_mtime_ns for path in paths.values() if not is_remote(path)]
    return Table(columns, rows, max(local, default=0))


def write_examples(
    table: Table, folder: str, most: int | None = None
) -> dict[str, tuple[str, ...]]:
    """Writes a TFRecord of `tf.Example`s for each split, and returns split → file.

    Args:
        table: what is written.
        folder: a local one, which is made.
        most: so many rows of each split, the first ones; None for all.
    """
    import tensorflow as tf

    def feature(kind: type, cell: str) -> Any:
        values = [] if cell == "" else [kind(cell)]
        if kind is int:
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        if kind is float:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        texts = [str(value).encode() for value in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))

    written: dict[str, tuple[str, ...]] = {}
    for split, rows in table.rows.items():
        path = os.path.join(folder, f"Split-{split}", "data_tfrecord-00000")
        os.makedirs(os.path.dirname(path))
        with tf.io.TFRecordWriter(path) as writer:
            for row in rows[:most]:
                cells = zip(table.columns.items(), row, strict=True)
                features = {name: feature(kind, cell) for (name, kind), cell in cells}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString(deterministic=True))
        os.utime(path, ns=(table.modified_ns, table.modified_ns))  # a killed run goes on
        written[split] = (path,)
    return written


def write_schema(table: Table, path: str) -> str:
    """Writes the schema of a table in text format, and returns its path.

    A column that has a value in every row has the shape [1], and must be there.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    kinds = {int: schema_pb2.INT, float: schema_pb2.FLOAT, str: schema_pb2.BYTES}
    schema = schema_pb2.Schema()
    for place, (name, kind) in enumerate(table.columns.items()):
        feature = schema.feature.add(name=name, type=kinds[kind])
        if all(row[place] for rows in table.rows.values() for row in rows):
            feature.presence.min_fraction = 1.0
            feature.shape.dim.add(size=1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text_format.MessageToString(schema))
    return path


def _read(path: str) -> tuple[list[str], list[list[str]]]:
    try:
        reader = csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff")), strict=True)
        header, *rows = ([cell.strip() for cell in row] for row in reader if row)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as a CSV with a first line of names: {error}", path=path
        ) from error
    if "" in header or len(set(header)) < len(header) or not rows:
        raise DataError(
            f"{path}: expected a first line with a name for each column, each another one, and "
            f"rows below it; found {shown(header)} and {len(rows)} rows",
            path=path,
        )
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataError(
                f"{path}, row {number}: expected {len(header)} cells, found {len(row)}", path=path
            )
    return header, rows


def _type(cells: Sequence[str]) -> type:
    for kind in (int, float):
        try:
            values = [kind(cell) for cell in cells if cell]
        except ValueError:
            continue
        if values and all(-(2**63) <= value < 2**63 for value in values if kind is int):
            return kind
    return str
