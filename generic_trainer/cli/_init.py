"""`generic-trainer init`: a small working project to start from."""

import argparse
import importlib.resources
import json
from pathlib import Path
from typing import Any

from generic_trainer.cli._options import add_command
from generic_trainer.errors import ConfigurationError

_FILES = ("README.md", "pipeline.py", "test_trainer.py", "trainer.py", "data/houses.csv")


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    add_command(commands, _init)


def _init(options: argparse.Namespace) -> int:
    """Write a small working project: module file, pipeline, test, data.

    Writes a project that trains as it is, to put your own data and model into.

    Options:
        directory DIR: directory of the project; existing files are not overwritten
        --json: print the files' names as JSON
    """
    root = Path(options.directory)
    written = [root / name for name in _FILES]
    if existing := [str(path) for path in written if path.exists()]:
        raise ConfigurationError(
            f"{', '.join(existing)} exists already: expected a directory without such files",
            path=options.directory,
        )
    try:
        templates = importlib.resources.files(__package__) / "templates"
        for path in written:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((templates / f"{path.name}.txt").read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename} cannot be written: {error.strerror}", path=options.directory
        ) from error
    if options.json:
        print(json.dumps([str(path) for path in written]))
    else:
        print("\n".join(map(str, written)))
        print(f"\nNow: cd {root} && pip install pytest && python -m pytest && python pipeline.py")
    return 0
