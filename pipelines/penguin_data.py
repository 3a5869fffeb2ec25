"""The Palmer penguins as a CSV that CsvExampleGen reads.

344 penguins from three islands, measured 2007-2009: Gorman, Williams and Fraser (2014),
"Ecological Sexual Dimorphism and Environmental Variability within a Community of Antarctic
Penguins", PLoS ONE 9(3): e90081. The PyPI package `palmerpenguins` carries the table.
"""

from __future__ import annotations

import csv
import io
from importlib import resources
from pathlib import Path


def write_penguin_csv(folder: Path) -> Path:
    """Writes the penguins to `folder`/penguins.csv, leaving an up-to-date file untouched.

    Args:
        folder: Is created where absent. CsvExampleGen takes it as its `input_base`.

    Returns:
        The file written.

    Raises:
        ModuleNotFoundError: `palmerpenguins` is not installed.
    """
    rows = csv.reader(io.StringIO(_original_csv()))
    # The table writes NA for "not measured". CsvExampleGen would take such a column for text; an
    # empty cell is a missing value.
    cleaned = [["" if cell == "NA" else cell for cell in row] for row in rows]
    text = "\n".join(",".join(row) for row in cleaned) + "\n"
    path = folder / "penguins.csv"
    if not path.exists() or path.read_text() != text:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def _original_csv() -> str:
    return (resources.files("palmerpenguins") / "data" / "penguins.csv").read_text()
