"""The operator's page, `docs/operations.md`, compared with the files that are on the disk.

For a test of something that leaves files, or that makes a temporary folder: `not_named` returns
the files that the page does not list, `first_cells` the names in one of its tables.
"""

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"


def first_cells(heading: str) -> list[str]:
    """Returns what stands in code in the first column of the tables below a heading."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def not_named(directory: Path, roots: Mapping[str, str]) -> list[str]:
    """Returns the files below a directory that the page does not name.

    Args:
        directory: where to look.
        roots: a beginning of paths as the page writes it → what it is here.
    """
    named = []
    for cell in first_cells("On the pipeline root") + first_cells("On the machine"):
        for start, here in roots.items():
            if cell.startswith(start):
                # `<n>` stands for a name; what ends with a slash holds anything.
                rest = re.sub("<[^>]*>", "[^/]+", re.escape(cell.removeprefix(start)))
                named.append(re.escape(here) + rest + ".*" * cell.endswith("/"))
    files = [str(path) for path in directory.rglob("*") if path.is_file()]
    return [path for path in files if not re.fullmatch("|".join(named), path)]
