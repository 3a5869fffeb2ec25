"""Sizes: data larger than expected, larger than a graph may be, and what a first pass says."""

import ctypes
import gc
import logging
import re
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from generic_trainer.data import _loading, count_examples, make_dataset_factory
from generic_trainer.data._parser import Parser
from tests.data.reading import dataset_of, ids, numbered, options, schema_of, write, write_files
from tests.examples import example


def growing(directory: Path) -> str:
    """Files that look small: the long lists come after what the estimate looks at."""
    long = [
        example(id=number, price=[1.0, 2.0], city="x", tags=[f"{number}" * 50] * 20)
        for number in range(1100, 3000)
    ]
    return write_files(directory, [[*numbered(0, 1100), *long]])


@pytest.mark.parametrize(
    ("num_epochs", "logged"),
    [(None, "outgrow the memory budget: moved to"), (1, "Streaming 1 file(s)")],
)
def test_columns_that_outgrow_the_budget(
    num_epochs: int | None, logged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    cache_dir = str(tmp_path / "cache")
    factory = make_dataset_factory(path="memory", memory_budget_bytes=500_000, cache_dir=cache_dir)
    dataset = factory(growing(tmp_path), options(num_epochs=num_epochs, batch_size=30), schema_of())
    assert logged in caplog.text
    assert ("Reading 3,000 examples (1 file(s)" in caplog.text) == (num_epochs is None)
    assert sorted(ids(dataset.take(100))) == list(range(3000))


def test_a_position_is_the_same_where_less_memory_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The vocabulary of one machine has no room on the other, so that rows are larger there."""
    caplog.set_level(logging.INFO, "generic_trainer")
    words = [f"{number:03}" * 70 for number in range(300)]
    records = [
        example(id=number, price=[1.0, 2.0], city="x", tags=words[number % 280 :][:20])
        for number in range(3000)
    ]
    pattern, asked = write(tmp_path / "data", records), options(num_epochs=None, batch_size=30)
    cut, end = 60, 2500  # far behind the rows that the iterator has gathered, and saves
    plenty, scarce = (
        iter(factory(pattern, asked, schema_of()).map(lambda features: features["id"]))
        for factory in (
            make_dataset_factory(memory_budget_bytes=room, seed=1) for room in (10**9, 450_000)
        )
    )
    assert "Reading again from the start: strings repeat less" in caplog.text
    for _ in range(cut):
        next(plenty)
    saved = tf.train.Checkpoint(iterator=plenty).write(str(tmp_path / "position"))
    expected = [next(plenty).numpy().tolist() for _ in range(cut, end)]
    tf.train.Checkpoint(iterator=scarce).read(saved)
    assert [next(scarce).numpy().tolist() for _ in range(cut, end)] == expected


@pytest.mark.parametrize("path", ["memory", "stream"])
def test_strings_that_hold_the_separator(path: str, tmp_path: Path) -> None:
    cities = [b"\xff", b"\xff\xff", b"a\xffb", b"", "Zürich".encode()]
    records = [
        example(id=number, price=[0.0, 0.0], city=city, tags=[city, b"", city])
        for number, city in enumerate(cities)
    ]
    pattern = write(tmp_path / "data.gz", records)
    (batch,) = dataset_of(pattern, path, num_epochs=None, batch_size=5, shuffle=False).take(1)
    assert batch["city"].numpy().tolist() == cities
    expected = [tag for city in cities for tag in (city, b"", city)]
    assert batch["tags"].values.numpy().tolist() == expected


def test_strings_that_repeat_less_than_the_first_ones_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    records = [
        example(id=number, price=[0.0, 0.0], city=f"city {max(number, 1000)}")
        for number in range(3000)
    ]
    pattern = write(tmp_path / "data.gz", records)
    # An eighth of the budget holds the vocabulary of a hundred of these strings.
    factory = make_dataset_factory(memory_budget_bytes=150_000)
    dataset = factory(
        pattern, options(num_epochs=None, batch_size=3000, shuffle=False), schema_of()
    )
    assert "Reading again from the start: strings repeat less" in caplog.text
    (batch,) = dataset.take(1)
    assert batch["city"].numpy().tolist() == [
        f"city {max(number, 1000)}".encode() for number in range(3000)
    ]


def own_bytes() -> int:
    """Returns the memory of this process that shows no file, without what is free for reuse."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_columns_are_not_copied_to_be_iterated(tmp_path: Path) -> None:
    width, rows = 50_000, 500  # 100 MB
    pattern = write(tmp_path / "data", [example(x=[0.5] * width)] * rows)
    schema = schema_of(
        f'feature {{ name: "x" type: FLOAT presence {{ min_fraction: 1.0 }} '
        f"shape {{ dim {{ size: {width} }} }} }}"
    )
    dataset = make_dataset_factory(path="disk")(
        pattern, options(num_epochs=None, batch_size=1), schema
    )
    before = own_bytes()
    iterator = iter(dataset)
    next(iterator)
    assert own_bytes() - before < width * rows * 4 / 2


def test_a_first_pass_logs_how_far_it_is_and_the_time_left_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "generic_trainer")
    monkeypatch.setattr(_loading, "_PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.delattr(_loading, "_count")
    pattern = write_files(tmp_path, [numbered(0, 40), numbered(40, 45)])
    dataset_of(pattern, num_epochs=None)
    logged = r"Reading examples: 45 of about \d+, about \d+:\d\d:\d\d left$"
    assert re.search(logged, caplog.text, re.MULTILINE)
    assert count_examples(pattern) == 45


def test_fewer_batches_are_parsed_at_once_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = schema_of(
        'feature { name: "x" type: FLOAT presence { min_fraction: 1.0 } '
        "shape { dim { size: 250000 } } }"  # 1 MB
    )
    parser = Parser.from_schema(schema, None)
    free = {"bytes": 2**40}
    monkeypatch.setattr("generic_trainer.data._parser.free_memory_bytes", lambda: free["bytes"])
    assert [parser.threads(4, wanted) for wanted in (16, 2, -1)] == [16, 2, -1]
    free["bytes"] = 100_000_000
    assert [parser.threads(4, wanted) for wanted in (16, 2)] == [8, 2]
    free["bytes"] = 5_000_000
    assert [parser.threads(4, wanted) for wanted in (16, -1)] == [1, 1]
