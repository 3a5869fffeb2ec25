"""The first hour of a new user: the documents' commands, from the clone to the first prediction.

::

    python -m benchmarks.first_hour [FOLDER] [--python python3.12] [--only penguins OJ] [--cache]

Clones the committed state of this repository, makes an environment and installs the package, with
the commands of README; then, for the sample and for each table, makes a project, trains, and
predicts, with the commands of docs/without-tfx.md. Commands run as they are printed there, but for
the address of the repository, the table's file and its label. Prints the seconds of each. Exit
status 1 if a command fails.

Tables are those of `benchmarks.own_tables`: of installed packages, and CSV files in FOLDER. Unless
`--cache` is given, pip has an empty cache and downloads 0.65 GB.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.own_tables import LABELS, found

ROOT = Path(__file__).parent.parent
_SAMPLE = ROOT / "generic_trainer" / "cli" / "templates" / "houses.csv.txt"
_TABLES = ["iris", "diabetes", "penguins"]  # classes, numbers, empty cells
_NEW_ROWS = 10
_TICK = "@@ "
_TIMED = f'\nprintf "\\n{_TICK}%s\\n" "$EPOCHREALTIME"\n'


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="CSV files, such as OJ.csv")
    parser.add_argument("--python", default="python3", help="the python3 of the commands")
    parser.add_argument(
        "--only", nargs="+", choices=LABELS, default=["iris", "diabetes", "penguins"]
    )
    parser.add_argument("--cache", action="store_true", help="use pip's cache")
    options = parser.parse_args()
    shown = Table("table", "command", "seconds")
    with tempfile.TemporaryDirectory() as scratch:
        environment = environment_of(Path(scratch), options.python, with_cache=options.cache)
        installing = 0.0
        for command, seconds in timed(install_commands(), Path(scratch), environment):
            shown.add_row("", command, f"{seconds:.0f}")
            installing += seconds
        activate = f". {scratch}/generic-trainer/.venv/bin/activate"
        for path, label in tables(Path(scratch), options.folder, options.only):
            project = Path(scratch, "projects", path.stem)
            project.mkdir(parents=True)
            shutil.copy(path, project / f"{path.stem}.csv")
            commands = [activate, *table_commands(project, path.stem, label)]
            total = installing
            for command, seconds in timed(commands, project, environment):
                shown.add_row(path.stem, command, f"{seconds:.0f}")
                total += seconds
            shown.add_row(path.stem, "from clone to prediction", f"{total:.0f}", end_section=True)
    Console().print(shown)


def environment_of(scratch: Path, python: str, *, with_cache: bool) -> dict[str, str]:
    """Returns the variables of a new user's shell, with a home directory of its own."""
    home, programs = scratch / "home", scratch / "programs"
    home.mkdir()
    programs.mkdir()
    interpreter = shutil.which(python) or sys.exit(f"no {python}")
    launcher = programs / "python3"
    launcher.write_text(f'#!/bin/sh\nexec {interpreter} "$@"\n')
    launcher.chmod(0o755)
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    path = f"{programs}:{variables['PATH']}"
    return variables | {"PATH": path} | ({} if with_cache else {"HOME": str(home)})


def blocks(document: str, after: str = "") -> list[str]:
    """Returns the command blocks of a document, from a heading on."""
    text = (ROOT / document).read_text(encoding="utf-8")
    fenced = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text[text.index(after) :])
    return [content for language, content in fenced if not language]


def install_commands() -> list[str]:
    """Returns the commands of README that install the package without TFX."""
    lines = blocks("README.md", "## Install")[0].splitlines()
    installs = [line for line in lines if line.startswith("pip install")]
    commands = [line for line in lines if line not in installs[:-1]]
    assert "[tfx]" not in commands[-1], commands
    return [command.replace("https://HOST/PATH", str(ROOT)) for command in commands]


def table_commands(project: Path, name: str, label: str) -> list[str]:
    """Returns the commands of a table in the current directory: project, training, predictions."""
    [training] = [b for b in blocks("docs/without-tfx.md") if "init houses --from" in b]
    predicting = blocks("docs/without-tfx.md", "## Calling the model")[0]
    rows = (project / f"{name}.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (project / "rows.csv").write_text("".join(rows[: 1 + _NEW_ROWS]), encoding="utf-8")
    written = re.sub(r"\bhouses\b", name, training).replace("--label price", f"--label {label}")
    commands = [*written.splitlines(), *predicting.splitlines()]
    return [command.replace(" rows.csv", " ../rows.csv") for command in commands]


def tables(scratch: Path, folder: Path | None, only: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yields CSV files and their labels, the sample first."""
    sample = scratch / "houses.csv"
    shutil.copy(_SAMPLE, sample)
    yield sample, "price"
    for path in found(scratch / "tables", folder):
        if path.stem in only:
            yield path, LABELS[path.stem]


def timed(
    commands: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    """Runs commands in one shell, and yields each with its seconds."""
    script = "set -e" + _TIMED + "".join(f"{command}{_TIMED}" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ticks = [float(tick) for tick in re.findall(rf"(?m)^{_TICK}([\d.]+)$", done.stdout)]
    if done.returncode:
        failed = commands[len(ticks) - 1]
        sys.exit(f"{failed}: exit status {done.returncode}\n{done.stdout[-4000:]}")
    for command, (start, end) in zip(commands, itertools.pairwise(ticks), strict=True):
        seconds = end - start
        print(f"{seconds:8.1f} s  {command}", flush=True)
        yield command, seconds


if __name__ == "__main__":
    main()
