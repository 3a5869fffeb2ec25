"""`generic-trainer predict`: predictions of a published model for rows of a table."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from generic_trainer._core.files import is_remote, read_text
from generic_trainer._core.texts import describe, parse_json
from generic_trainer.cli._csv import is_empty
from generic_trainer.cli._csv_text import Sheet, as_csv, decoded, sheet_of_text, with_decimal_points
from generic_trainer.cli._options import add_command, hidden_stderr, quiet_libraries, require_files
from generic_trainer.cli._validate import require_model
from generic_trainer.errors import ConfigurationError, DataError

_STDIN = "-"
_DEFAULT = "serving_default"  # of TensorFlow Serving


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _predict,
        "Print the predictions of a published model for rows of a table",
        "Prints a line for each row, as CSV under the names of the model's outputs. The model "
        "is called with tf.Examples of the columns that it uses, as a server calls it; other "
        "columns are ignored. Its operations run in this process, without the confinement of "
        "the checks.",
    )
    parser.add_argument("model", metavar="MODEL", help="local directory with saved_model.pb")
    parser.add_argument(
        "rows",
        metavar="ROWS",
        nargs="?",
        default=_STDIN,
        help="a CSV file with a first line of names, or JSON objects, one in a line; default: "
        "standard input",
    )
    parser.add_argument(
        "--signature",
        metavar="NAME",
        help="signature to call (default: that of a request of TensorFlow Serving, or "
        "serving_default)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print each prediction as a line of JSON"
    )


def _predict(options: argparse.Namespace) -> int:
    if is_remote(options.model):
        raise ConfigurationError(f"MODEL: {options.model} is remote: copy it to a local directory")
    require_model(Path(options.model))
    if options.rows != _STDIN:
        require_files(ROWS=options.rows)
    rows, places, signature = _read(options.rows)
    quiet_libraries()
    with hidden_stderr():
        importlib.import_module("tensorflow")
    from generic_trainer.validation import ServedModel  # it imports NumPy

    model = ServedModel(options.model, options.signature or signature)
    strings = {name for name, feature in model.features.items() if feature.dtype == "string"}
    if isinstance(rows, Sheet):
        for index, name in enumerate(rows.names):
            if name not in strings:
                with_decimal_points([rows], index)
        rows = [dict(zip(rows.names, row, strict=True)) for row in rows.rows]

    def value_in(name: str, cell: Any) -> Any:
        is_missing = isinstance(cell, str) and name not in strings and is_empty(cell)
        return None if is_missing else cell

    rows = [{name: value_in(name, cell) for name, cell in row.items()} for row in rows]
    outputs = model.predict(rows, places)
    # An output [rows, 1] has one value, as one [rows] has.
    outputs = {k: v[:, 0] if getattr(v, "shape", ())[1:] == (1,) else v for k, v in outputs.items()}
    printed = [
        {name: _plain(array[row]) for name, array in outputs.items()} for row in range(len(rows))
    ]
    if options.json:
        for row in printed:
            print(json.dumps(row, ensure_ascii=False))
        return 0
    lines = [
        [json.dumps(c, ensure_ascii=False) if isinstance(c, list) else c for c in row.values()]
        for row in printed
    ]
    print(as_csv([outputs, *lines]), end="")
    return 0


def _read(path: str) -> tuple[Sheet | Sequence[Mapping[str, Any]], list[str], str | None]:
    """Returns the rows of a file or of standard input, the place of each, and their signature.

    Places are for messages. A request of TensorFlow Serving may name the signature.

    Raises:
        DataError: it cannot be read.
    """
    name = "standard input" if path == _STDIN else path
    try:
        text = (
            decoded(name, sys.stdin.buffer.read())
            if path == _STDIN
            else read_text(path, lambda content: decoded(name, content))
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{name} cannot be read: {error}", path=name) from error
    if not text.lstrip().startswith(("{", "[")):
        sheet = sheet_of_text(name, text)
        return sheet, [f"{name}, row {number}" for number in sheet.numbers], None
    rows: list[Any] = []
    places: list[str] = []
    signatures = set()
    for number, value in _parsed(text, name):
        if isinstance(value, dict) and (asked := _requested(value, name)) is not None:
            signatures.add(str(value.get("signature_name") or _DEFAULT))
            value = asked
        values = value if isinstance(value, list) else [value]
        rows += values
        places += [f"{name}, line {number}"] * len(values)
    for value, place in zip(rows, places, strict=True):
        if not isinstance(value, dict):
            raise DataError(f"{place}: expected a JSON object, found {describe(value)}", path=name)
    if not rows:
        raise DataError(f"{name} has no rows", path=name)
    if len(signatures) > 1:
        listed = ", ".join(sorted(signatures))
        raise DataError(f"{name} has requests for several signatures: {listed}", path=name)
    return rows, places, next(iter(signatures - {_DEFAULT}), None)


def _requested(value: Mapping[str, Any], name: str) -> list[Any] | None:
    """Returns the rows of a request of TensorFlow Serving, which has them in either form."""
    if isinstance(value.get("instances"), list):
        return value["instances"]
    if not isinstance(value.get("inputs"), dict):
        return None
    columns = value["inputs"]
    lengths = {key: len(c) if isinstance(c, list) else None for key, c in columns.items()}
    if None in lengths.values() or len({*lengths.values()}) > 1:
        raise DataError(f"{name}: expected lists of one length in inputs: {lengths}", path=name)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _parsed(text: str, name: str) -> list[tuple[int, Any]]:
    """Returns the values of JSON lines, or the one that takes several lines, by their numbers."""
    with contextlib.suppress(ValueError):
        return [(1, parse_json(text))]
    parsed = []
    # Not `splitlines`, which divides strings of JSON at U+2028 too.
    for number, line in enumerate(text.split("\n"), 1):
        try:
            parsed += [(number, parse_json(line))] if line.strip() else []
        except ValueError as error:
            raise DataError(
                f"{name}, line {number}: expected a JSON object: {error}", path=name
            ) from error
    return parsed


def _plain(value: Any) -> Any:
    """Returns a part of an output as a value of JSON; a float as short as its type allows."""
    if getattr(value, "ndim", 0):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if hasattr(value, "item") and not hasattr(value, "decode"):
        kind = value.dtype.kind
        plain = float(str(value)) if kind == "f" else value.item()
        return str(plain) if kind == "c" else plain  # JSON has no complex numbers
    return value
