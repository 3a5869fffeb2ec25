"""The profile of a table: the kind of its task, and the kinds of its columns.

`generic-trainer init` writes a project from it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from generic_trainer._core.texts import listed, shown
from generic_trainer.cli._csv import Table
from generic_trainer.errors import DataError

Task = Literal["regression", "two classes", "many classes"]
_MOST_CLASSES = 100  # of a label that is text
_MOST_INTEGER_CLASSES = 10  # a label of more different integers is an amount
_ROWS_PER_CLASS = 5
_MOST_CATEGORIES = 50
# Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which have no spaces between words.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
# 2024-05-31, 31.5.24, 31-May-2024, Fri, 31 May 2024, May 31st, 2024, May 2024; and a time of day.
_DAY = r"\d\d?(st|nd|rd|th)?"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    r"(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.](\d\d){1,2}"
    rf"|([a-z]{{3,9}},? )?({_DAY}[- ])?{_MONTH}[- ]({_DAY},? )?(\d\d){{1,2}})([ T].*)?",
    re.IGNORECASE,
)
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(\s?[AaPp][Mm])?")
# Numbers as people write them: $5, 12.5 %, 1,234.50, 1'000 EUR, (5.00), 5-, 12.5kg and R$ 5; but
# not "Day 1", "1st" and "12a".
_SIGN = "[+\N{MINUS SIGN}-]?"
_BEFORE = r"(?P<before>[A-Z]{0,2}[$€£¥₹₩₽%]|[A-Z]{3}(?=\s))?\s*"
_NUMBER = r"(\d+|\d{1,3}([.,'\N{RIGHT SINGLE QUOTATION MARK}\s]\d{3})+)([.,]\d+)?"
_AFTER = (
    r"(?P<after>\s*[$€£¥₹₩₽%]|\s?(?!st|nd|rd|th)([^\W\d_A-Z][^\W\d_]{1,2}|m[²³])"
    r"|\s[A-Z]{3}|\s[gmlhst]|[kKM]|-)?"
)
_AMOUNT = re.compile(rf"\(?{_SIGN}{_BEFORE}{_SIGN}\(?{_NUMBER}\)?{_AFTER}\)?")
_MOST_UNITS = 5  # of a column: more are letters of codes
_PLAIN = re.compile(r"[+-]?\d+(\.\d+)?")
_CODE = re.compile(r"0\d")
_LONGEST_AMOUNT = 40
_AMOUNTS_PER_WORD = 5  # of a column of numbers with some words in it
_MOST_TOKENS = 10_000  # that the project learns of a column of texts, of those it has often
_OFTEN = 3
_READ_TEXTS = 100_000
_ROWS_OF_TOTAL = 5  # that are not 0
_MANY_EQUAL = 0.1  # of the rows
# Whole numbers that are names tell so much more of the label than ranges of them, beyond chance.
_MORE_BY_NAME, _STANDARD_ERRORS = 0.05, 4
_FEWEST_NAMES, _MOST_NAMES, _ROWS_PER_NAME, _MOST_RANGES = 5, 1000, 5, 10
# Numbers are far from others beyond a gap of so many times the range of at least so many others.
_FAR, _FEWEST_NEAR = 5, 3
# Batches: small ones learn more of few rows, large ones are faster.
_FEW_ROWS = 10_000
_SMALL_BATCH = 32
_LARGE_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Profile:
    """The task and the columns of a table.

    Attributes:
        label: the column to predict.
        task: of the label.
        classes: the label's values, sorted; empty for a regression.
        columns: "numbers", "categories", "dates", "texts" and "characters", which are texts without
            spaces between words → columns of this kind, without empty kinds.
        remarks: sentences for the user.
        batch_size: rows of a batch.
        rows: number of rows.
    """

    label: str
    task: Task
    classes: Sequence[str | int]
    columns: dict[str, list[str]]
    remarks: list[str]
    batch_size: int
    rows: int


def profile_of(table: Table, label: str) -> Profile:
    """Returns the profile of a table.

    Raises:
        DataError: the label does not exist, has empty cells, or cannot be predicted; or no other
            column has more than one value.
    """
    table.require_label(label)
    cells = {name: table.column(name) for name in table.columns}
    task, classes = _task(table, label, cells[label])
    labels = [*map(table.columns[label], cells[label])]
    order = {value: rank for rank, value in enumerate(sorted({*labels}))}
    ranks = np.array([order[value] for value in labels])
    kinds = "numbers", "categories", "dates", "texts", "characters"
    columns: dict[str, list[str]] = {kind: [] for kind in kinds}
    remarks: list[str] = []
    spaced: list[str] = []
    for name, kind in table.columns.items():
        if name == label:
            continue
        filled = [cell for cell in cells[name] if cell]
        distinct = set(filled)
        if len(distinct) + (len(filled) < len(cells[name])) < 2:
            remarks.append(f"Left out: {name!r}, which has the same value in every row.")
        elif kind is not str and _is_row_number(filled, len(cells[name])):
            remarks.append(f"Left out: {name!r}, which numbers the rows.")
        elif kind is not str and all(map(_is_whole, distinct)) and _are_names(cells[name], ranks):
            columns["categories"].append(name)
            remarks.append(
                f"{name!r} has whole numbers that tell more of {label!r} one by one than as "
                "amounts, as numbers of shops do: they are learned as categories."
            )
        elif kind is not str:
            columns["numbers"].append(name)
            if code := next(filter(_CODE.match, filled), None):
                remarks.append(
                    f"{name!r} is read as numbers, though some begin with 0, such as {code!r}: if "
                    "they are codes, let --schema name the column as one of texts (BYTES)."
                )
        elif all(map(_DATE.fullmatch, distinct)):
            columns["dates"].append(name)
            remarks.append(
                f"{name!r} has dates, of which the numbers are learned, but no weekday. Rows of "
                "all dates are evaluated; to forecast, name files with --train and --eval, the "
                "latter of the last dates."
            )
        elif all(map(_TIME.fullmatch, distinct)):
            columns["dates"].append(name)
        elif len(distinct) <= min(_MOST_CATEGORIES, len(filled) // 2):
            columns["categories"].append(name)
        elif 2 * sum(map(bool, map(_UNSPACED.search, distinct))) > len(distinct):
            columns["characters"].append(name)
        elif len(distinct) == len(filled) and not any(" " in cell.strip() for cell in distinct):
            remarks.append(f"Left out: {name!r}, which has another word in every row.")
        else:
            columns["texts"].append(name)
        if kind is str and (odd := _odd_number(filled)):
            remarks.append(
                f"{name!r} has numbers, but is read as text for cells such as {shown(odd)}: if "
                "they are amounts, correct them, or leave them empty."
            )
        if kind is str and filled and all(cell[0] == " " for cell in filled):
            spaced.append(repr(name))
    if spaced:
        remarks.append(
            f"All texts of {listed(spaced)} begin with a space, which is part of them: a "
            "prediction needs it as well. Remove the spaces after the separators."
        )
    numbers = [name for name, kind in table.columns.items() if kind is not str]
    if _are_a_row(named := {name: cells[name] for name in numbers if _PLAIN.fullmatch(name)}):
        remarks.append(
            f"The first line has the numbers {listed([*named])} for names of columns: if it is a "
            "row as the others are, put a line of names above it."
        )
    remarks += _remarks_about_totals(table, cells)
    amounts = [*columns["numbers"], *([label] if task == "regression" else [])]
    far = {name: text for name in amounts if (text := _far_values(name, cells[name]))}
    remarks += [*far.values()][:1]
    if others := [*map(repr, far)][1:]:
        remarks.append(f"Such cells are also in {listed(others)}.")
    for kind_of_text, parts in (("texts", "words"), ("characters", "pairs of characters")):
        for name in columns[kind_of_text]:
            number = _number_of_tokens(cells[name], kind_of_text)
            if number > _MOST_TOKENS:
                remarks.append(
                    f"{name!r} has {number:,} {parts} that are in more rows than two, of which the "
                    f"{_MOST_TOKENS:,} most frequent are learned: see max_tokens in trainer.py."
                )
    columns = {kind: names for kind, names in columns.items() if names}
    if not columns:
        left_out = " ".join(remarks)
        raise DataError(
            f"{table.path}: no column is left to predict {label!r} from. {left_out}",
            path=table.path,
        )
    if table.columns[label] is str and (odd := _odd_number(cells[label])):
        remarks.append(
            f"{label!r} is read as {len(classes)} classes for cells such as {shown(odd)}: if they "
            "are amounts, correct them to predict a number."
        )
    remarks += _remarks_about_classes(label, classes)
    remarks += [
        f"{name!r} has {values} different values, of which float32 tells only {kept} apart: "
        "subtract a constant from all of them, or take another unit."
        for name in amounts
        # The project reads features that are integers as float64.
        if name == label or table.columns[name] is float
        for values, kept in [_values_of_float32(cells[name])]
        if kept <= values / 2
    ]
    remarks += [
        f"{name!r}: TFX's CsvExampleGen, in pipeline.py, cuts names at commas: rename the column "
        "to use it."
        for name in table.columns
        if "," in name
    ]
    remarks += [
        f"{name!r}: TFX's CsvExampleGen, in pipeline.py, never ends with a name of several lines: "
        "rename the column to use it."
        for name in table.columns
        if "\n" in name or "\r" in name
    ]
    rows = len(cells[label])
    different = len({tuple(row) for part in table.rows.values() for row in part})
    if rows - different > rows * _MANY_EQUAL:
        remarks.append(
            f"{rows - different:,} of {rows:,} rows are equal to an earlier one: if they are "
            "copies of it, a row trains and its copy evaluates, which looks better than it is. "
            "TFX's CsvExampleGen, in pipeline.py, puts all equal rows in one split: what it "
            "measures may be far from the truth. Number the rows in a column that the model does "
            "not use."
        )
    batch_size = _SMALL_BATCH if rows <= _FEW_ROWS else _LARGE_BATCH
    return Profile(label, task, classes, columns, remarks, batch_size, rows)


def _task(table: Table, label: str, cells: Sequence[str]) -> tuple[Task, list[str | int]]:
    distinct = set(cells)
    kind = table.columns[label]
    if len(set(map(kind, distinct))) < 2:  # "1" and "01" are one number
        raise DataError(
            f"column {label!r} is the label, but has the value {cells[0]!r} in every row",
            path=table.path,
            feature=label,
        )
    classes: list[str | int] = []
    if kind is str:
        most = min(_MOST_CLASSES, len(cells) // _ROWS_PER_CLASS)
        if len(distinct) > max(most, 2):
            text = next((cell for cell in cells if not _PLAIN.fullmatch(cell)), cells[0])
            remedy = "; correct them to predict a number" if _odd_number(cells) else ""
            raise DataError(
                f"column {label!r} is the label, but has {len(distinct)} different texts in "
                f"{len(cells)} rows, such as {shown(text)}: expected numbers, or at most {most} "
                f"classes{remedy}",
                path=table.path,
                feature=label,
            )
        classes += sorted(distinct)
    elif all(map(_is_whole, distinct)):
        values = sorted({int(float(cell)) for cell in distinct})
        if len(values) <= min(_MOST_INTEGER_CLASSES, len(cells) // _ROWS_PER_CLASS):
            classes += values
    if not classes:
        return "regression", []
    return "two classes" if len(classes) == 2 else "many classes", classes


def _remarks_about_classes(label: str, classes: Sequence[str | int]) -> list[str]:
    """Returns a sentence about classes that are probably one, such as "Yes" and "yes "; or none."""
    spellings: dict[str, list[str]] = {}
    for name in map(str, classes):
        spellings.setdefault(name.strip().casefold(), []).append(name)
    alike = next((names for names in spellings.values() if len(names) > 1), None)
    if not alike:
        return []
    return [
        f"Classes of {label!r} differ in capitals or spaces alone, and are learned as different "
        f"ones: {listed([*map(repr, alike)])}. If they are one, spell them alike in the table."
    ]


def _number_of_tokens(cells: Sequence[str], kind: str) -> int:
    """Returns how many words, or characters and pairs of them, are in so many cells or more."""
    numbers: Counter[str] = Counter()
    for cell in cells[:: 1 + len(cells) // _READ_TEXTS]:
        text = cell.lower()
        pairs = map("".join, itertools.pairwise(text))
        numbers.update({*text.split()} if kind == "texts" else {*text, *pairs})
    return sum(number >= _OFTEN for number in numbers.values())


def _are_a_row(named: Mapping[str, Sequence[str]]) -> bool:
    """Whether names of columns are numbers, each among those of its column, but for one in four.

    So is a row without a line of names above it. Years, pixels and sensors are evenly numbered.
    """
    names = sorted(map(float, named))
    if all(map(float.is_integer, names)) and len({*np.diff(names)}) < 2:
        return False
    columns = [[float(cell) for cell in cells if cell] for cells in named.values()]
    among = [
        min(column) <= float(name) <= max(column)
        for name, column in zip(named, columns, strict=True)
        if column
    ]
    return 4 * sum(among) >= 3 * len(named)


def _remarks_about_totals(table: Table, cells: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a sentence about a last row that has the sums of those above it; or none."""
    for name, kind in table.columns.items():
        if kind is str:
            continue
        *above, last = (float(cell or 0) for cell in cells[name])
        if sum(map(bool, above)) < _ROWS_OF_TOTAL or not all(map(math.isfinite, above)):
            continue
        if abs(last) > max(map(abs, above)) and math.isclose(last, sum(above)):
            return [
                f"The last row has the sum of all others in {name!r}: if it is no row of its own, "
                "but their total, remove it, or the model learns from it."
            ]
    return []


def _far_values(name: str, cells: Sequence[str]) -> str | None:
    """Returns a sentence about numbers that are far from all others; None: there are none.

    They stand for a missing value, such as -99, or are typing errors: scaled with them, the others
    are all alike. They are beyond the widest gap, on the side of fewer different numbers.
    """
    numbers = np.array([float(cell) for cell in cells if cell])
    numbers = numbers[np.isfinite(numbers)]
    distinct = np.unique(numbers)
    if len(distinct) <= _FEWEST_NEAR:
        return None
    with np.errstate(over="ignore"):
        gaps = np.diff(distinct)
    parts = np.split(distinct, [int(gaps.argmax()) + 1])
    far, near = sorted(parts, key=len)
    count = int(np.isin(numbers, far).sum())
    if len(near) < _FEWEST_NEAR or gaps.max() <= _FAR * np.ptp(near) or 2 * count > len(numbers):
        return None
    values = listed([f"{value:.15g}" for value in far])
    return (
        f"{name!r} has {values} in {count:,} of {len(cells):,} cells, and all others are between "
        f"{near[0]:.15g} and {near[-1]:.15g}: if that means a missing value, or is a mistake, "
        "leave these cells empty, and of the label remove the rows."
    )


def _are_names(cells: Sequence[str], ranks: np.ndarray) -> bool:
    """Whether whole numbers are names, as those of shops are, by the ranks of the rows' labels.

    Numbers that are near each other have similar labels if they are amounts, such as ages, so
    ranges of them tell nearly as much of the label as each by itself.
    """
    rows = np.array([row for row, cell in enumerate(cells) if cell])
    distinct, names = np.unique([float(cells[row]) for row in rows], return_inverse=True)
    ranks, count = ranks[rows], len(distinct)
    if not _FEWEST_NAMES <= count <= min(_MOST_NAMES, len(rows) // _ROWS_PER_NAME):
        return False

    def told(groups: np.ndarray) -> float:  # adjusted R²
        means = np.bincount(groups, ranks) / np.bincount(groups)
        unexplained = np.square(ranks - means[groups]).sum() / (len(rows) - len(means))
        return float(1 - unexplained / max(ranks.var(ddof=1), 1e-9))

    more = told(names) - told(names * min(_MOST_RANGES, count // 2) // count)
    return more > _MORE_BY_NAME + _STANDARD_ERRORS * math.sqrt(2 * count) / len(rows)


def _is_whole(cell: str) -> bool:
    return float(cell).is_integer() and abs(float(cell)) < 2**31


def _values_of_float32(cells: Sequence[str]) -> tuple[int, int]:
    """Returns how many different numbers there are, and how many in float32."""
    numbers = np.unique([float(cell) for cell in cells if cell])
    with np.errstate(over="ignore"):
        return len(numbers), len(np.unique(numbers.astype(np.float32)))


def _odd_number(filled: Sequence[str]) -> str | None:
    """Returns a cell because of which a column is text, though most are numbers; None if not."""
    distinct = set(filled)
    short = (cell for cell in distinct if len(cell) <= _LONGEST_AMOUNT)
    amounts = {cell: match for cell in short if (match := _AMOUNT.fullmatch(cell.strip()))}
    if len(amounts) < _AMOUNTS_PER_WORD * max(1, len(distinct) - len(amounts)):
        return None
    if len({match.group("before", "after") for match in amounts.values()}) > _MOST_UNITS:
        return None
    return next((cell for cell in filled if not _PLAIN.fullmatch(cell)), None)


def _is_row_number(filled: Sequence[str], rows: int) -> bool:
    """Whether the values are 0, 1, 2, ... or 1, 2, 3, ..."""
    return any(list(filled) == [str(start + row) for row in range(rows)] for start in (0, 1))
