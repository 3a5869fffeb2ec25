"""Figures, their history, and the page that is made of it; the benchmarks are run by hand."""

import dataclasses
import os
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import _figures, _history
from benchmarks._history import Entry
from tests.house import ROOT, git

RATE = _figures.compare("rate", [20.0, 30.0, 22.0], "steps/s", "TFX", [10.0, 10.0, 11.0])
TIME = _figures.compare("time", [1.0, 1.2], "s", "TFX", [2.0, 2.0], less_is_better=True)
MACHINE = {"processor": "fast", "cores": 2, "memory_gib": 24, "gpus": []}
ENTRY = Entry("reader", "full", "2026-01-01T00:00:00+00:00", 0.5, MACHINE, {}, (RATE, TIME))


def with_ratio(figure: _figures.Figure, ratio: float) -> Entry:
    return dataclasses.replace(ENTRY, figures=(dataclasses.replace(figure, ratio=ratio),))


def test_a_figure_is_of_medians_and_of_pairs() -> None:
    assert (RATE.value, RATE.reference, RATE.ratio) == (22.0, 10.0, 2.2)
    assert (RATE.low, RATE.high) == (2.0, 3.0)
    with pytest.raises(ValueError, match="zip"):
        _figures.compare("rate", [1.0], "s", "TFX", [])


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert _history.entries(path) == []
    other = dataclasses.replace(ENTRY, machine=_history.machine(), versions=_history.versions())
    for entry in (ENTRY, other):
        _history.append(entry, path)
    assert _history.entries(path) == [ENTRY, other]
    with open(path, "a") as file:
        file.write('{"benchmark": "reader"}\n')
    with pytest.raises(ValueError, match=r"line 3 is no entry"):
        _history.entries(path)


@pytest.mark.parametrize(
    ("figure", "ratio", "is_named"),
    [
        (RATE, 1.3, False),  # within what the runs differ by
        (RATE, 1.1, True),
        (RATE, 9.0, False),
        (TIME, 0.64, False),
        (TIME, 0.66, True),
        (TIME, 0.1, False),
    ],
)
def test_what_became_worse_by_more_than_its_spread_is_named(
    figure: _figures.Figure, ratio: float, is_named: bool
) -> None:
    before = with_ratio(figure, 2.2 if figure is RATE else 0.55)
    found = list(_history.fallen(with_ratio(figure, ratio), before))
    assert [new.ratio for new, _ in found] == [ratio] * is_named
    assert not list(_history.fallen(with_ratio(figure, ratio), None))


def test_only_runs_on_such_a_machine_at_that_size_are_compared() -> None:
    others = [
        dataclasses.replace(ENTRY, size="small"),
        dataclasses.replace(ENTRY, benchmark="trials"),
        dataclasses.replace(ENTRY, machine={**MACHINE, "gpus": ["a large one"]}),
    ]
    assert _history.last_like(ENTRY, others) is None
    newer = dataclasses.replace(ENTRY, when="2026-02-01T00:00:00+00:00")
    assert _history.last_like(ENTRY, [*others, ENTRY, newer, *others]) is newer


def test_changed_lines_are_counted_since_the_commit_of_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, other = tmp_path / "room", tmp_path / "other"
    room.mkdir()
    git(tmp_path, "init", "--quiet")
    for day, lines in ((1, range(10)), (3, [*range(7), 70, 80, 90])):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-01-0{day}T00:00:00+00:00")
        (room / "code.py").write_text("".join(f"{line}\n" for line in lines))
        other.write_text(f"{day}\n" * 50)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "--message", f"day {day}")
    then, now = (
        dataclasses.replace(ENTRY, when=f"2026-01-0{day}T12:00:00+00:00") for day in (2, 4)
    )
    assert _history.changed_share(then, ["room"], tmp_path) == 0.3
    assert _history.changed_share(now, ["room"], tmp_path) == 0.0
    named = dataclasses.replace(now, commit="HEAD~1")
    assert _history.changed_share(named, ["room"], tmp_path) == 0.3


def test_the_rooms_of_each_benchmark_exist() -> None:
    for name in benchmarks.BENCHMARKS:
        for room in benchmarks.ROOMS[name.partition("/")[0]]:
            assert (ROOT / "generic_trainer" / room).exists()


def test_each_benchmark_is_there_and_takes_its_arguments() -> None:
    folder = Path(benchmarks.__file__).parent
    for name, sizes in benchmarks.BENCHMARKS.items():
        source = (folder / f"bench_{name.partition('/')[0]}.py").read_text()
        assert "_figures.add_json_option(" in source and "_figures.write(" in source
        options = {each for size in sizes.values() for each in size if each.startswith("--")}
        assert not {option for option in options if f'"{option}"' not in source}
    files = {path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py")}
    assert files == {name.partition("/")[0] for name in benchmarks.BENCHMARKS}


def test_benchmarks_side_by_side_share_no_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    groups = benchmarks._groups_of_cores(1)
    taken = [groups.get() for _ in range(groups.qsize())]
    assert sorted(core for group in taken for core in group) == cores
    assert benchmarks._groups_of_cores(None).get() == cores
    assert benchmarks._groups_of_cores(len(cores) + 1).qsize() == 1


def test_the_page_shows_the_newest_figures() -> None:
    """`python -m benchmarks --write` makes it."""
    text = benchmarks.PAGE.read_text(encoding="utf-8")
    assert benchmarks.rendered() in text
