"""`generic-trainer init`: a small working project to start from, for a table of the user's."""

from __future__ import annotations

import argparse
import importlib.resources
import importlib.util
import itertools
import json
import logging
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.files import write_whole
from generic_trainer._core.texts import argument_names, listed, load_schema
from generic_trainer.cli._csv import SUFFIX, Table, read_csv, schema_text, types_of_schema
from generic_trainer.cli._csv_text import as_csv
from generic_trainer.cli._options import add_command, require_files
from generic_trainer.cli._profile import Profile, profile_of
from generic_trainer.errors import ConfigurationError

_TEMPLATES = "README.md", "pipeline.py", "test_trainer.py", "trainer.py"
_SCHEMA = "schema.pbtxt"
_SAMPLE = "houses.csv.txt"
_SAMPLE_LABEL = "price"
_TRAIN_SHARE = 2 / 3
_LINE = 80
_REQUEST = "request.json"
_LONGEST_INSTANCE = 2000  # characters of a row in the README; a longer one is in a file


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _init,
        "Write a small working project: module file, pipeline, test, data",
        "Writes a project that trains as it is: for a CSV file of yours, or for a sample, to "
        "put your own data and model into.",
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="directory of the project; existing files are not overwritten",
    )
    parser.add_argument(
        "--from",
        metavar="FILE",
        dest="table",
        help="a .csv file, which is copied to DIR/data as UTF-8 with commas",
    )
    parser.add_argument(
        "--label", metavar="COLUMN", help="the column of the file to predict: numbers, or classes"
    )
    parser.add_argument(
        "--schema",
        metavar="FILE",
        help="schema.pbtxt that decides which columns of the file are numbers",
    )
    parser.add_argument("--json", action="store_true", help="print the files' names as JSON")


def _init(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # what reading a table says
    if bool(options.table) != bool(options.label) or (options.schema and not options.table):
        raise ConfigurationError("--from and --label go together, and --schema with both")
    require_files(**{"from": options.table, "schema": options.schema})
    root = Path(options.directory)
    templates = importlib.resources.files(__package__) / "templates"
    with importlib.resources.as_file(templates / _SAMPLE) as sample:
        types = types_of_schema(load_schema(options.schema)) if options.schema else None
        table = read_csv({"": options.table or str(sample)}, types)
    profile = profile_of(table, options.label or _SAMPLE_LABEL)
    name = Path(options.table or _SAMPLE.removesuffix(".txt")).name
    name = re.sub(r"[^\w.-]", "_", name.removesuffix(SUFFIX)) + SUFFIX
    values = _values(table, profile, name)
    texts = {
        file: _rendered((templates / f"{file}.txt").read_text(encoding="utf-8"), values)
        for file in _TEMPLATES
    }
    texts[_SCHEMA] = schema_text(table)
    texts[f"data/{name}"] = as_csv(itertools.chain([table.columns], *table.rows.values()))
    if values["request_file"]:
        texts[_REQUEST] = f"{values['request']}\n"
    written = _write(root, texts)
    if options.json:
        print(json.dumps([str(path) for path in written]))
        return 0
    print("\n".join(map(str, written)))
    sources = "; ".join(f"{kind}: {listed(names)}" for kind, names in profile.columns.items())
    task = f"{profile.task}: {listed(profile.classes)}" if profile.classes else profile.task
    print(f"Predicts {profile.label!r} ({task}) from {sources}. COLUMNS in trainer.py decides it.")
    for remark in profile.remarks:
        print(remark)
    has_tfx = importlib.util.find_spec("tfx") is not None
    command = "python pipeline.py" if has_tfx else values["command"]
    print(f"\nNow: cd {shlex.quote(str(root))} && {command}")
    return 0


def _write(root: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes the files of a project, all or none, and returns their paths.

    Files that are there with the same content, as a killed `init` leaves them, stay as they are.

    Raises:
        ConfigurationError: another file is in the place of one, or one cannot be written.
    """
    contents = {root / file: text.encode() for file, text in texts.items()}
    others: list[str] = []
    missing: list[Path] = []
    for path, content in contents.items():
        if not path.exists():
            missing.append(path)
        elif not path.is_file() or path.read_bytes() != content:
            others.append(str(path))
    if others:
        raise ConfigurationError(
            f"{', '.join(others)} exists already: expected a directory without such files",
            path=str(root),
        )
    made: list[Path] = []
    path = root / "data"
    try:
        path.mkdir(parents=True, exist_ok=True)
        for path in missing:
            made.append(path)
            write_whole(str(path), contents[path])
    except BaseException as error:  # also Ctrl-C
        for file in made:  # or the next call would find them, perhaps for another table
            file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigurationError(
                f"{path} cannot be written: {error.strerror}", path=str(root)
            ) from error
        raise
    return [*contents]


def _values(table: Table, profile: Profile, name: str) -> dict[str, Any]:
    """Returns name → value for the templates."""
    (rows,) = table.rows.values()
    fullest = min(rows, key=lambda row: list(row).count(""))
    first = dict(zip(table.columns, fullest, strict=True))
    used = [column for names in profile.columns.values() for column in names]
    arguments = argument_names(column for column in table.columns if column in used)
    instance = {
        argument: _as_json(first[column], table.columns[column] is not str)
        for column, argument in arguments.items()
    }
    probabilities = "probability" if profile.task == "two classes" else "probabilities"
    row = json.dumps(instance, ensure_ascii=False)
    request = {"signature_name": "columns", "instances": [instance]}
    return {
        **vars(profile),
        "table": name,
        "name": name.removesuffix(SUFFIX),
        "steps": math.ceil(profile.rows * _TRAIN_SHARE / profile.batch_size),
        "eval_steps": math.ceil(profile.rows * (1 - _TRAIN_SHARE) / profile.batch_size),
        "instance": row,
        "has_points": any("." in name for name in instance),
        "renamed": [pair for pair in arguments.items() if pair[0] != pair[1]],
        "request": json.dumps(request, ensure_ascii=False),
        "request_file": _REQUEST if len(row) > _LONGEST_INSTANCE else "",
        # The label is an output as well.
        "probabilities": f"{probabilities}_2" if profile.label == probabilities else probabilities,
        "model_name": re.sub(r"\W", "_", name.removesuffix(SUFFIX)),
        "command": f"generic-trainer run trainer.py --examples data/{name} --schema {_SCHEMA} "
        f"--label {shlex.quote(profile.label)} --output runs",
    }


def _as_json(cell: str, is_number: bool) -> Any:
    if not is_number:
        return cell
    return int(cell) if re.fullmatch(r"\s*[+-]?\d+\s*", cell) else float(cell or 0)


def _rendered(template: str, values: dict[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["literal"] = _literal
    environment.filters["quoted"] = shlex.quote
    return environment.from_string(template).render(values)


def _literal(value: Any) -> str:
    """Returns a string, a list or a dict of lists as Python code."""
    if isinstance(value, dict):
        items = (f"    {_literal(key)}: {_literal(inner)},\n" for key, inner in value.items())
        return "{\n" + "".join(items) + "}"
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    lines = ["["]
    for text in map(_literal, value):
        if len(lines[-1]) + len(text) > _LINE:
            lines.append("    ")
        lines[-1] += f"{text}, "
    return "\n    ".join(line.rstrip() for line in lines).rstrip(",") + "]"
