"""`generic-trainer init`: a small working project to start from."""

from __future__ import annotations

import argparse
import csv
import importlib.resources
import json
import random
from pathlib import Path
from typing import Any

from generic_trainer.errors import ConfigurationError

_FILES = ("README.md", "pipeline.py", "test_trainer.py", "trainer.py")
_ROWS = 200
_COLUMNS = ("area", "rooms", "district", "price")
_DISTRICTS = {"north": 2.0, "east": 2.4, "south": 3.1, "west": 2.7}  # thousands per square metre


def add_init(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "init",
        help="write a small working project: module file, pipeline, test, data",
        description="Writes a project that trains as it is, to put your own data and model into.",
    )
    parser.set_defaults(run=_init)
    parser.add_argument("directory", metavar="DIR", help="where; what is there is not overwritten")
    parser.add_argument("--json", action="store_true", help="print the files' names as JSON")


def _init(options: argparse.Namespace) -> int:
    root = Path(options.directory)
    data = root / "data" / "houses.csv"
    written = [root / name for name in _FILES] + [data]
    if there := [str(path) for path in written if path.exists()]:
        raise ConfigurationError(
            f"{', '.join(there)} exists already: expected a directory without such files",
            path=options.directory,
        )
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        templates = importlib.resources.files(__package__) / "templates"
        for name in _FILES:
            text = (templates / f"{name}.txt").read_text(encoding="utf-8")
            (root / name).write_text(text, encoding="utf-8")
        _write_data(data)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename} cannot be written: {error.strerror}", path=options.directory
        ) from error
    if options.json:
        print(json.dumps([str(path) for path in written]))
    else:
        print("\n".join(map(str, written)))
        print(f"\nNow: cd {root} && python -m pytest && python pipeline.py")
    return 0


def _write_data(path: Path) -> None:
    """Writes made-up houses, the same each time."""
    source = random.Random(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for _ in range(_ROWS):
            area, district = round(source.uniform(30, 200), 1), source.choice(list(_DISTRICTS))
            rooms = max(1, round(area / 25 + source.gauss(0, 0.7)))
            price = area * _DISTRICTS[district] * source.uniform(0.9, 1.1) + 10 * rooms
            writer.writerow([area, rooms, district, round(price, 1)])
