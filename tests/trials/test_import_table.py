"""Each import line of the documents' table has a file of its time, which a test runs."""

import ast
import re

import pytest

from tests.house import ROOT

TABLE = (ROOT / "docs" / "coming-from-other-trainers.md").read_text()
OTHERS = {  # rows without an import line of their own, by the first two cells
    "PEDL's Keras trials, and `keras.data.InMemorySequence`": "pedl_digits",
    "TensorFlow 1, with `tf.contrib`, `tf.app`, `tf.layers`, … | `import tensorflow as tf`": (
        "numerals"
    ),
    "TFX's first trainer, `trainer_fn` | `import tensorflow as tf`": "penguin_trainer_fn",
    "`tf.estimator` | `import tensorflow as tf`": "wines",
}


def rows() -> list[tuple[str, list[str], list[str]]]:
    """Returns the first two cells of each row, its import lines then, and its import lines now."""
    found = []
    for line in TABLE.split("import line now |")[1].split("\n\n")[0].splitlines()[2:]:
        written_for, then, now = (cell.strip() for cell in line.strip("|").split("|"))
        lines = [
            [code for code in re.findall(r"`([^`]+)`", cell) if re.match("from|import", code)]
            for cell in (then, now)
        ]
        found.append((f"{written_for} | {then}".removeprefix(" | "), *lines))
    return found


def imported(source: str) -> set[str]:
    """Returns what is imported, as `module.name` or `module as name`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {f"{each.name} as {each.asname or each.name}" for each in node.names}
    return found


def names(line: str) -> set[str]:
    """Returns what a line of the table imports; of two that "…" ends, the names that it has."""
    return imported(re.sub(r",? …$", "", line))


FILES = {
    path.stem: path
    for path in [*(ROOT / "tests").rglob("written_for_*/*.py"), *ROOT.glob("module_files/*.py")]
}
TESTS = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
PAIRS = [
    (then, now[min(index, len(now) - 1)])
    for title, lines, now in rows()
    if title not in OTHERS
    for index, then in enumerate(lines)
]


@pytest.mark.parametrize(("then", "now"), PAIRS, ids=[then for then, _ in PAIRS])
def test_a_file_has_the_import_line(then: str, now: str) -> None:
    wanted = names(then)
    # What it is now may have the names of then: `from generic_trainer.trials.keras import …`.
    module = now.removeprefix("from ").partition(" import ")[0]
    if now.endswith("…"):
        wanted |= {f"{module}.{name.rpartition('.')[2]}" for name in names(then)}
    else:
        wanted |= names(now)
    files = [stem for stem, path in FILES.items() if imported(path.read_text()) & wanted]
    assert [stem for stem in files if stem in TESTS], f"no file with {then!r} is tested"


@pytest.mark.parametrize("title", OTHERS)
def test_rows_without_a_line_of_their_own(title: str) -> None:
    [now] = [line for found, _, lines in rows() for line in lines if found == title]
    stem = OTHERS[title]
    then = {"tensorflow as tf"} if "tensorflow as tf" in title else set()
    assert imported(FILES[stem].read_text()) & (names(now) | then)
    assert stem in TESTS


def test_the_table_was_read() -> None:
    assert len(PAIRS) > 20
    assert all(lines and now for title, lines, now in rows() if title not in OTHERS)
    assert {title for title, _, _ in rows()} >= OTHERS.keys()
