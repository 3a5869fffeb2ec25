"""Whether the project that `generic-trainer init` writes for a table learns something, unedited.

::

    python -m benchmarks.own_tables [FOLDER] [--only penguins OJ]

For each table: `init --from`, `run`, and `predict` for a fifth of its rows, which neither training
nor validation have seen. Prints the error beside that of a constant answer: for a regression the
root of the mean squared error, beside that of the mean; for classes the share of right answers,
beside that of the most frequent class. Exit status 1 if a model is not better.

Tables come with scikit-learn and palmerpenguins, and from CSV files in FOLDER, which these packages
have: ISLP (Bikeshare, Boston, Carseats, College, Credit, OJ, Wage), vega_datasets
(seattle-weather), statsmodels (modechoice), pydataset (diamonds, mpg, tips, titanic).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import io
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from generic_trainer import cli
from generic_trainer.cli._csv_text import read_sheet

LABELS = {
    "iris": "species",
    "wine": "class",
    "breast_cancer": "class",
    "diabetes": "target",
    "penguins": "species",
    "Bikeshare": "bikers",
    "Boston": "medv",
    "Carseats": "Sales",
    "College": "Private",
    "Credit": "Balance",
    "OJ": "Purchase",
    "Wage": "wage",
    "seattle-weather": "weather",
    "modechoice": "choice",
    "diamonds": "price",
    "mpg": "class",
    "tips": "tip",
    "titanic": "survived",
}
_TEST_EVERY = 5


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="CSV files, such as OJ.csv")
    parser.add_argument("--only", nargs="+", choices=LABELS, help="tables (default: all)")
    options = parser.parse_args()
    shown = Table("table", "rows", "label", "measure", "constant", "model", "seconds")
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        for path in found(Path(scratch, "tables"), options.folder):
            name = path.stem
            if options.only and name not in options.only:
                continue
            row, is_better = measured(path, LABELS[name], Path(scratch, name))
            print(*row, flush=True)
            shown.add_row(*row)
            failed += [] if is_better else [name]
    Console().print(shown)
    sys.exit(f"not better than a constant: {failed}" if failed else 0)


def found(scratch: Path, folder: Path | None) -> Iterator[Path]:
    """Yields the CSV files of the tables that are installed or in the folder."""
    scratch.mkdir()
    if importlib.util.find_spec("sklearn"):
        from sklearn import datasets

        for name in ("iris", "wine", "breast_cancer", "diabetes"):
            data = getattr(datasets, f"load_{name}")()
            classes = getattr(data, "target_names", None)
            labels = [value if classes is None else classes[value] for value in data.target]
            with (scratch / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*data.feature_names, LABELS[name]])
                writer.writerows([*row, y] for row, y in zip(data.data, labels, strict=True))
            yield scratch / f"{name}.csv"
    if spec := importlib.util.find_spec("palmerpenguins"):
        yield Path(spec.origin or "").parent / "data" / "penguins.csv"
    if folder is not None:
        yield from sorted(path for path in folder.glob("*.csv") if path.stem in LABELS)


def measured(path: Path, label: str, scratch: Path) -> tuple[tuple[str, ...], bool]:
    """Returns the row to print, and whether the model is better than a constant."""
    scratch.mkdir()
    sheet = read_sheet(str(path))
    splits: dict[str, list[list[str]]] = {"train": [], "test": []}
    for number, row in enumerate(sheet.rows, 1):
        splits["train" if number % _TEST_EVERY else "test"].append(row)
    for split, rows in splits.items():
        with (scratch / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([sheet.names, *rows])
    started = time.perf_counter()
    project = scratch / "project"
    command("init", project, "--from", scratch / "train.csv", "--label", label)
    words = ["--examples", project / "data" / "train.csv", "--schema", project / "schema.pbtxt"]
    command("run", project / "trainer.py", *words, "--output", project / "runs")
    model = project / "runs" / "model" / "1" / "Format-Serving"
    lines = command("predict", model, scratch / "test.csv", "--json").splitlines()
    seconds = time.perf_counter() - started
    predicted = [json.loads(line)[label] for line in lines]
    index = sheet.names.index(label)
    train, test = ([row[index] for row in splits[split]] for split in ("train", "test"))
    if "CLASSES" in (project / "trainer.py").read_text(encoding="utf-8"):
        [(constant, _)] = Counter(train).most_common(1)
        measure, best = "accuracy", statistics.mean(map(constant.__eq__, test))
        reached = statistics.mean(map(str.__eq__, map(str, predicted), test))
        is_better = reached > best
    else:
        mean = statistics.mean(map(float, train))
        measure, best = "RMSE", error([mean] * len(test), test)
        reached = error(predicted, test)
        is_better = reached < best
    values = (f"{best:.3g}", f"{reached:.3g}", f"{seconds:.0f}")
    return (path.stem, str(len(sheet.rows)), label, measure, *values), is_better


def error(predicted: list[float], cells: list[str]) -> float:
    """Returns the root of the mean squared error."""
    pairs = zip(predicted, map(float, cells), strict=True)
    return statistics.mean((one - other) ** 2 for one, other in pairs) ** 0.5


def command(*words: object) -> str:
    """Runs the command in this process, and returns what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = cli.main(list(map(str, words)))
    if status:
        sys.exit(f"{words}: exit status {status}")
    return printed.getvalue()


if __name__ == "__main__":
    main()
