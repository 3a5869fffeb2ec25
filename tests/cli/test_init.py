"""`generic-trainer init`, and the project that it writes."""

import ast
import contextlib
import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import cli
from generic_trainer.cli import _init
from tests.house import ROOT, run_python


def test_a_project_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(tmp_path / "new" / "houses"), "--json"]) == 0
    for name in json.loads(capsys.readouterr().out):
        if name.endswith(".py"):
            ast.parse(Path(name).read_text(encoding="utf-8"))
    (tmp_path / "new" / "houses" / "pipeline.py").write_text("mine")

    assert cli.main(["init", str(tmp_path / "new" / "houses")]) == 2

    assert "pipeline.py" in capsys.readouterr().err
    assert (tmp_path / "new" / "houses" / "pipeline.py").read_text() == "mine"


@pytest.mark.parametrize("ending", ["SIGKILL", "Ctrl-C", "full disk"])
@pytest.mark.parametrize("whole", range(6))
def test_a_project_that_was_cut_short_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, ending: str
) -> None:
    write_whole = _init.write_whole
    written: list[tuple[Path, bytes]] = []
    errors = {"Ctrl-C": KeyboardInterrupt(), "full disk": OSError(errno.ENOSPC, "no space")}

    def end_early(path: str, content: bytes) -> None:
        if len(written) == whole:
            raise errors.get(ending, SystemExit)
        write_whole(path, content)
        written.append((Path(path), content))

    monkeypatch.setattr(_init, "write_whole", end_early)
    (tmp_path / "mine.csv").write_text("a,y\n")
    with contextlib.suppress(SystemExit):
        assert cli.main(["init", str(tmp_path)]) == {"Ctrl-C": 130, "full disk": 74}[ending]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.csv"]
    if ending == "SIGKILL":  # nothing is cleared away
        for path, content in written:
            path.write_bytes(content)
    monkeypatch.setattr(_init, "write_whole", write_whole)
    assert cli.main(["init", str(tmp_path)]) == 0
    assert all(path.read_bytes() == content for path, content in written)


def test_a_table_that_is_in_its_place_already_survives_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "data" / "mine.csv"
    mine.parent.mkdir()
    mine.write_text("a,y\n" + "".join(f"{row % 7},{row % 83 * 1.5}\n" for row in range(200)))
    content = mine.read_bytes()

    def fail(path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    command = ["init", str(tmp_path), "--from", str(mine), "--label", "y"]
    with monkeypatch.context() as patch:
        patch.setattr(_init, "write_whole", fail)
        assert cli.main(command) == 74
    assert mine.read_bytes() == content
    mine.write_bytes(content.replace(b"\n", b"\r\n"))
    assert cli.main(command) == 2  # it would be another file, with other line ends
    assert b"\r\n" in mine.read_bytes()


def rows(label: Callable[[int], object], count: int = 200) -> str:
    """A table with a column of each kind, and empty cells in most of them."""
    lines = ["id,size,rooms,place,day,notes,same,a name,y"]
    for row in range(count):
        size, rooms = row % 83 / 2, "NA" if row % 7 == 0 else row % 5
        place = ["", "north", "Köln"][row % 3]
        notes = f"{'new' if row % 2 else 'old'} house number {row}"
        cells = row, size, rooms, place, f"2024-01-{row % 28 + 1:02}", notes, 1, f"n{row}"
        lines.append(",".join(map(str, (*cells, label(row)))))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("label", "words", "classes"),
    [
        pytest.param(lambda row: row % 83 * 1.5, "mse", None, id="regression"),
        pytest.param(lambda row: row % 83 + 1, "mse", None, id="many integers"),
        pytest.param(lambda row: row % 83 // 42, "binary", [0, 1], id="0 and 1"),
        pytest.param(lambda row: float(row % 83 // 42), "binary", [0, 1], id="0.0 and 1.0"),
        pytest.param(
            lambda row: ["no", "yes"][row % 83 // 42], "binary", ["no", "yes"], id="words"
        ),
        pytest.param(
            lambda row: "abc"[row % 83 // 28], "sparse", ["a", "b", "c"], id="three words"
        ),
        pytest.param(lambda row: row % 83 // 28, "sparse", [0, 1, 2], id="three integers"),
    ],
)
def test_a_project_fits_the_table(
    label: Callable[[int], object],
    words: str,
    classes: list[object] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "my table.csv").write_text(rows(label), encoding="utf-8")
    folder = tmp_path / "project"
    words_of_call = ["init", str(folder), "--from", str(tmp_path / "my table.csv"), "--label", "y"]
    assert cli.main(words_of_call) == 0

    module = (folder / "trainer.py").read_text(encoding="utf-8")
    assert len(module.splitlines()) <= 200
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(module).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert constants["LABEL"] == "y" and constants.get("CLASSES") == classes
    assert constants["COLUMNS"] == {
        "numbers": ["size", "rooms"],
        "categories": ["place"],
        "dates": ["day"],
        "texts": ["notes"],
    }
    assert ("crossentropy" in module) == (classes is not None)
    assert ("binary_crossentropy" in module) == (words == "binary")
    printed = capsys.readouterr().out
    for remark in ("'id', which numbers", "'day' has dates", "'same', which", "'a name', which"):
        assert remark in printed and remark in module
    assert "1.0,,Köln" not in (folder / "data" / "my_table.csv").read_text(encoding="utf-8")
    assert "NA" not in (folder / "data" / "my_table.csv").read_text(encoding="utf-8")
    schema = (folder / "schema.pbtxt").read_text(encoding="utf-8")
    assert 'name: "rooms"\n  type: INT\n}' in schema, "without a shape"


def test_no_name_of_a_column_breaks_the_project(tmp_path: Path) -> None:
    for number, label in enumerate(["probability", "probabilities", 'a "b" \\U """', "self"]):
        classes = ["no", "yes", "so"][: 3 if label == "probabilities" else 2]
        lines = [f"{row % 7},{classes[row % len(classes)]}" for row in range(60)]
        file = io.StringIO()
        csv.writer(file).writerow(["self_" if label == "self" else "self", label])
        (tmp_path / "table.csv").write_text(file.getvalue() + "\n".join(lines))
        folder = tmp_path / str(number)
        words = ["init", str(folder), "--from", str(tmp_path / "table.csv"), "--label", label]
        assert cli.main(words) == 0
        module: dict[str, Any] = {}
        exec((folder / "trainer.py").read_text(encoding="utf-8"), module)
        served = module["predictions"](tf.constant([[0.25] * len(classes)]))
        assert len(served) == 2 and served[label].numpy() == [b"no"]
        assert module["LABEL"] == label


def test_a_long_row_is_a_file_and_no_argument(tmp_path: Path) -> None:
    """Linux takes no argument of more than 128 KiB."""
    names = [f"measurement_{number}" for number in range(300)]
    lines = [",".join([*names, "y"]), *(",".join([f"{row}.5"] * 301) for row in range(40))]
    (tmp_path / "wide.csv").write_text("\n".join(lines) + "\n")
    project = tmp_path / "project"

    assert (
        cli.main(["init", str(project), "--from", str(tmp_path / "wide.csv"), "--label", "y"]) == 0
    )

    readme = (project / "README.md").read_text()
    assert max(map(len, readme.splitlines())) < 500
    assert "curl -d @request.json " in readme
    (instance,) = json.loads((project / "request.json").read_text())["instances"]
    code = re.findall("^(import json|row = .*)$", readme, re.MULTILINE)
    printed = run_python("-c", "\n".join([*code, "print(json.dumps(row))"]), cwd=project).stdout
    assert json.loads(printed) == instance == dict.fromkeys(names, 0.5)


def module_of(tmp_path: Path, table: str) -> dict[str, Any]:
    """Returns the names of the module file of a project for a table, whose label is `y`."""
    (tmp_path / "table.csv").write_text(table, encoding="utf-8")
    words = ["--from", str(tmp_path / "table.csv"), "--label", "y"]
    assert cli.main(["init", str(tmp_path / "new"), *words]) == 0
    module: dict[str, Any] = {}
    exec((tmp_path / "new" / "trainer.py").read_text(encoding="utf-8"), module)
    return module


def test_numbers_of_any_unit_are_scaled_by_the_training_rows(tmp_path: Path) -> None:
    lines = [f"{row % 83},{row % 31},{'?!'[row % 2]} {'.' * (row % 79)},{row}" for row in range(99)]
    module = module_of(tmp_path, "\n".join(["time,rooms,marks,y", *lines]))
    assert module["COLUMNS"] == {"numbers": ["time", "rooms"], "texts": ["marks"]}
    seconds = np.arange(60_000) % 600
    units = [1.7e9 + seconds, 47e-12 + 1e-15 * seconds, 1e30 * seconds, 0.1 + 0.0 * seconds]
    numbers = np.stack(units, axis=1)
    texts = np.array([["? !"]] * len(numbers), object)
    module["COLUMNS"]["numbers"] = [*"abcd"]

    model = module["build_model"]({"numbers": numbers, "texts": texts}, seconds, 0.01)

    scaled = tf.keras.Model(model.inputs, model.get_layer("scaled_numbers").output)
    lacking = np.append(numbers[:600], [[np.nan, np.nan, np.nan, 5.1]], axis=0)
    found = scaled({"numbers": tf.constant(lacking), "texts": tf.constant(texts[:601])}).numpy()
    expected = (seconds[:600] - seconds.mean()) / seconds.std()
    assert found.dtype == np.float32
    assert np.allclose(found[:600, :3], expected[:, None], atol=1e-4)
    assert np.allclose(found[:600, 3], 0.0, atol=1e-9)
    assert found[600].tolist() == pytest.approx([0, 0, 0, 5, 1, 1, 1, 0])
    predicted = model({"numbers": tf.constant(numbers[:2]), "texts": tf.constant(texts[:2])})
    assert np.isfinite(predicted).all(), "also of a column without words"


def test_words_keep_signs_that_tell_them_apart(tmp_path: Path) -> None:
    lines = [f"{'yes' if row % 2 else 'no'} this is row {row},{row}.5" for row in range(99)]
    words_of = module_of(tmp_path, "\n".join(["notes,y", *lines]))["words_of"]
    said = words_of(tf.constant(['He said: "ÜBER 5%, (really)!" "C++", or C#? -18% a-b. End.']))
    left = re.sub(" +", " ", said.numpy()[0].decode()).strip()
    assert left == "he said über 5% really c++ or c# -18% a-b end"


def test_numbers_that_float32_cannot_tell_apart_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{1e9 + row / 8},{row / 8},{1_700_000_000 + row % 97},{row}" for row in range(99)]
    module = module_of(tmp_path, "\n".join(['near,apart,y,"with, comma"', *lines]))
    assert module["LABEL"] == "y"
    printed = capsys.readouterr().out
    for name, values, kept in (("near", 99, 1), ("y", 97, 2)):
        assert f"{name!r} has {values} different values, of which float32 tells only {kept}" in (
            printed
        )
    assert "'apart' has" not in printed
    assert "'with, comma': TFX's CsvExampleGen" in printed


def test_texts_without_spaces_are_read_by_characters(tmp_path: Path) -> None:
    notes = [f"这个产品{'很好' if row % 2 else '很差'}第{row}次" for row in range(99)]
    lines = [f"{note},{row}.5" for row, note in enumerate(notes)]
    (tmp_path / "table.csv").write_text("\n".join(["评论,y", *lines]), encoding="utf-8")
    words = ["--from", str(tmp_path / "table.csv"), "--label", "y"]
    assert cli.main(["init", str(tmp_path / "new"), *words]) == 0
    module: dict[str, Any] = {}
    exec((tmp_path / "new" / "trainer.py").read_text(encoding="utf-8"), module)
    assert module["COLUMNS"] == {"characters": ["评论"]}

    texts = np.array([[note.encode()] for note in notes], object)
    model = module["build_model"]({"characters": texts}, np.arange(99.0), 0.01)

    (words_of,) = (layer for layer in model.layers if hasattr(layer, "get_vocabulary"))
    assert {"很 好", "很 差"} <= {*words_of.get_vocabulary()}


@pytest.mark.parametrize(
    ("cell", "odd"),
    [
        (lambda row: f"{row} %", "0 %"),
        (lambda row: f"${row}.50", "$0.50"),
        (lambda row: f"{row + 1},{row:03}", "1,000"),
        (lambda row: "?" if row % 9 == 3 else row, "?"),
        (lambda row: f"1 {row:03} EUR", "1 000 EUR"),
        (lambda row: f"({row}.50)", "(0.50)"),
        (lambda row: f"{row}.5-", "0.5-"),
        (lambda row: f"\N{MINUS SIGN}{row}", "\N{MINUS SIGN}0"),
        (
            lambda row: f"1\N{RIGHT SINGLE QUOTATION MARK}{row:03}.5",
            "1\N{RIGHT SINGLE QUOTATION MARK}000.5",
        ),
        (lambda row: f"{row}.5 {['kg', 'g'][row % 2]}", "0.5 kg"),
        (lambda row: f"{row} m²", "0 m²"),
        (lambda row: f"{row}.3k", "0.3k"),
        (lambda row: f"R$ {row}", "R$ 0"),
        (lambda row: f"{row} zł", "0 zł"),
        (lambda row: f"Day {row}", None),
        (lambda row: f"{row}a", None),
        (lambda row: f"{row}th", None),
        (lambda row: f"{row}{'abcdefg'[row % 7]}", None),
        (lambda row: f"1{row % 3}:{row:02}", None),
        (lambda row: f"B {row}", None),
        (lambda row: ["north", "south", "east"][row % 3], None),
        (lambda row: f"1{row:03}-a", None),
        (lambda row: f"2024-01-{row % 28 + 1:02}", None),
        (lambda row: f"SKU{row:03}", None),
        (lambda row: f"{' ' * 2000}{['north', 'south'][row % 2]}", None),
    ],
)
def test_numbers_that_are_read_as_text_are_named(
    cell: Callable[[int], object],
    odd: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [f'"{cell(row % 40)}",{row % 7},{row}' for row in range(80)]
    (tmp_path / "table.csv").write_text("\n".join(["x,z,y", *lines]))
    words = ["--from", str(tmp_path / "table.csv"), "--label", "y"]
    assert cli.main(["init", str(tmp_path / "new"), *words]) == 0
    expected = f"'x' has numbers, but is read as text for cells such as {odd!r}"
    printed = capsys.readouterr().out
    assert expected in printed if odd else "is read as text for cells" not in printed


def test_numbers_that_begin_with_zero_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{row * 997 % 9000:05},{row / 100},{row % 7}" for row in range(80)]
    (tmp_path / "table.csv").write_text("\n".join(["zip,share,y", *lines]))
    words = ["--from", str(tmp_path / "table.csv"), "--label", "y"]
    assert cli.main(["init", str(tmp_path / "new"), *words]) == 0
    printed = capsys.readouterr().out
    assert "'zip' is read as numbers, though some begin with 0, such as '00000'" in printed
    assert "'share'" not in printed


@pytest.mark.parametrize(
    ("cells", "remark"),
    [
        (
            [[" north", " south"][row % 2] for row in range(80)],
            "All texts of 'x' begin with a space",
        ),
        ([*range(79), sum(range(79))], "The last row has the sum of all others in 'x'"),
        ([*[0, 1, 0] * 26, 0, 26], "The last row has the sum of all others in 'x'"),
        ([[1, 2, 3, 5, -99, -98][row % 6] for row in range(80)], "'x' has -99, -98 in 26 of 80"),
        ([*range(40), *range(39), 99999999], "'x' has 99999999 in 1 of 80 cells, and all others"),
        ([["750-67-8428", "631-41-3108"][row % 2] for row in range(80)], None),
        ([["2024-1-31", "1/31/24", "31.1.2024 5:00"][row % 3] for row in range(80)], "has dates"),
        ([1000 * 1.2**row for row in range(80)], None),
        ([row % 5 + 1000 * (row % 5 // 2) for row in range(80)], None),
        ([*[0] * 76, 1, 2, 1, 4], None),
        ([*["inf", "-inf"], *["1e308"] * 77, 1], None),
        ([0] * 78 + [1, 1], None),
        ([[" north", "south"][row % 2] for row in range(80)], None),
    ],
)
def test_tables_made_for_people_are_named(
    cells: list[object], remark: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{cell},{row % 7}.5" for row, cell in enumerate(cells)]
    module_of(tmp_path, "\n".join(["x,y", *lines]))
    printed = capsys.readouterr().out
    assert remark in printed if remark else "'x' has" not in printed and "'x' beg" not in printed
    assert remark or "The last row" not in printed


@pytest.mark.parametrize(
    ("names", "remark"),
    [
        ("5.5,3.25,-0.5", True),
        ("1,4,2", True),
        ("a,b,1.5", True),
        ("1990,1991,2000", False),
        ("400.5,401,403.25", False),
        ("1,3,2", False),
        ("a,b,1", False),
    ],
)
def test_a_first_line_of_numbers_is_no_line_of_names(
    names: str, remark: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f" a,{row % 9 + 0.5},{row % 7}.25,{row % 5 - 1.5}, b{row % 2}" for row in range(80)]
    (tmp_path / "table.csv").write_text("\n".join([f"v,{names},w", *lines]))
    label = names.split(",")[-1]
    words = ["--from", str(tmp_path / "table.csv"), "--label", label]
    assert cli.main(["init", str(tmp_path / "new"), *words]) == 0
    printed = capsys.readouterr().out
    assert ("The first line has the numbers" in printed) == remark
    # A sentence for all columns.
    assert printed.count("begin with a space") == 1


def test_names_are_learned_whatever_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (300, 12_000):
        lines = [f"SKU{row % number},row {row},{row % 7}.5" for row in range(3 * number)]
        (tmp_path / "table.csv").write_text("\n".join(["sku,once,y", *lines]))
        words = ["--from", str(tmp_path / "table.csv"), "--label", "y"]
        assert cli.main(["init", str(tmp_path / str(number)), *words]) == 0
        printed = capsys.readouterr().out
        assert ("'sku' has 12,000 words that are in more rows" in printed) == (number == 12_000)
        assert "Predicts 'y' (regression) from texts: sku, once." in printed


def test_words_and_pairs_of_one_or_two_rows_are_not_learned(tmp_path: Path) -> None:
    lines = [f"sold on {row}:{row}:{row // 2} in week {row // 3},{row}.5" for row in range(90)]
    module = module_of(tmp_path, "\n".join(["x,y", *lines]))
    texts = np.array([line.partition(",")[0].encode() for line in lines], object)
    layer = module["encoder"]("texts", texts)
    layer.adapt(texts)
    known = {"[UNK]", "sold", "on", "in", "week", *map(str, range(30))}
    assert {*layer.get_vocabulary()} == known

    texts = np.array([f"很{'好差'[row % 2]}{chr(0x4E00 + row)}" for row in range(90)], object)
    layer = module["encoder"]("characters", texts)
    layer.adapt(texts)
    assert {*layer.get_vocabulary()} == {"[UNK]", *"很好差", "很 好", "很 差"}


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["2024-05-31", "2023-12-01", ""], [[0, 2024, 5, 31], [0, 2023, 12, 1], [0]]),
        (["31.5.2024 17:30", "1.12.2023", ""], [[0, 31, 5, 2024, 17, 30], [0, 1, 12, 2023], [0]]),
        (
            ["31-May-2024", "Fri, 1 March 2024 17:30", "Sept 30th, 2024"],
            [[0, 31, 5, 2024], [0, 1, 3, 2024, 17, 30], [0, 9, 30, 2024]],
        ),
        (["5:30 PM", "5:30am", ""], [[12, 5, 30], [0, 5, 30], [0]]),
        (
            ["05/03/24 5:30:15 pm", "5/3/2024 5:30:15 AM PST", ""],
            [[12, 5, 3, 24, 5, 30, 15], [0, 5, 3, 2024, 5, 30, 15], [0]],
        ),
        (
            ["2024-05-31T17:30:15.25Z", "2024-05-31T17:30:15+02:00", ""],
            [[0, 2024, 5, 31, 17, 30, 15]] * 2 + [[0]],
        ),
    ],
)  # fmt: skip
def test_the_numbers_of_dates_and_times_are_learned(
    cells: list[str], numbers: list[list[int]], tmp_path: Path
) -> None:
    lines = [f'"{cells[row % 3]}",{row % 9},{row % 7}.5' for row in range(90)]
    module = module_of(tmp_path, "\n".join(["day,size,y", *lines]))
    assert module["COLUMNS"] == {"numbers": ["size"], "dates": ["day"]}
    day = tf.sparse.from_dense(tf.constant(cells)[:, None])
    found = tf.function(module["inputs_of"])({"day": day, "size": tf.ones([3, 1])})["dates"]
    expected = [[*row, *[np.nan] * (7 - len(row))] for row in numbers]
    assert np.array_equal(found.numpy(), expected, equal_nan=True)
    assert np.isnan(module["numbers_in"](tf.constant([[b"\xff\xe4"]]))).sum() == 6


def test_columns_that_say_nothing_do_not_hide_those_that_do(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    columns = random.normal(size=(900, 200))
    label = 2 * columns[:, 0] - columns[:, 1]
    cells = np.column_stack([columns, label])[:60].astype(str)
    lines = [[*(f"c{number}" for number in range(200)), "y"], *cells]
    module = module_of(tmp_path, "\n".join(map(",".join, lines)))
    tf.keras.utils.set_random_seed(1)
    inputs = {"numbers": columns[:600]}
    model = module["build_model"](inputs, label[:600], 0.003)
    model.fit(inputs, label[:600], batch_size=32, epochs=30, verbose=0)
    predicted = model.predict({"numbers": columns[600:]}, verbose=0)[:, 0]
    error = np.abs(predicted - label[600:]).mean()
    assert error < 0.7, "the error of the mean is 1.8"


def test_many_columns_of_few_rows_are_not_learned_by_heart(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    columns = random.normal(size=(1500, 300))
    chances = 1 / (1 + np.exp(2 * columns[:, 1] - 2.5 * columns[:, 0] - 1.5 * columns[:, 2]))
    labels = (random.random((1500, 1)) < chances[:, None]).astype(int)
    lines = [",".join([*(f"c{number}" for number in range(300)), "y"])]
    lines += [f"{','.join(map(str, columns[row]))},{labels[row, 0]}" for row in range(60)]
    module = module_of(tmp_path, "\n".join(lines))
    stop = tf.keras.callbacks.EarlyStopping(
        "val_binary_crossentropy", mode="min", patience=15, restore_best_weights=True
    )
    inputs = [{"numbers": part} for part in np.split(columns, [300, 400])]
    tf.keras.utils.set_random_seed(1)
    model = module["build_model"](inputs[0], labels[:300])
    rows = inputs[1], labels[300:400]
    model.fit(inputs[0], labels[:300], 32, 30, 0, [stop], validation_data=rows)
    predicted, labels = model.predict(inputs[2], verbose=0)[:, 0], labels[400:, 0]
    right_pairs = predicted[labels == 1][:, None] > predicted[labels == 0]
    assert right_pairs.mean() > 0.7, "0.64 without a penalty"


@pytest.mark.parametrize("task", ["numbers", "classes"])
def test_whole_numbers_that_are_names_are_told_from_amounts(task: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    shops, ages, ratings = random.integers([100, 18, 1], [140, 90, 6], (2000, 3)).T
    effects = random.normal(size=140)[shops] + (ages - 50) ** 2 / 500 + ratings / 5
    labels = effects.round(2) if task == "numbers" else np.where(effects > 2, "yes", "no")
    whole = np.column_stack([shops, ages, ratings]).astype(str)
    cells = np.column_stack([whole, labels.astype(str)])
    cells[::9, 0] = ""
    lines = map(",".join, cells)
    module = module_of(tmp_path, "\n".join(["shop,age,rating,y", *lines]))
    assert module["COLUMNS"] == {"numbers": ["age", "rating"], "categories": ["shop"]}
    readme = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    request = json.loads(re.findall(r'"instances": \[(.*?)\]', readme)[0])
    assert {*map(type, request.values())} == {int}, "as in the schema"


def test_whole_numbers_may_be_categories(tmp_path: Path) -> None:
    """As the page says: a column moves in COLUMNS."""
    lines = [f"{row % 40},{row % 3 or ''},{row % 7}.5" for row in range(200)]
    module = module_of(tmp_path, "\n".join(["store,day,y", *lines]))
    assert module["COLUMNS"] == {"numbers": ["store", "day"]}
    stores = module["filled"](tf.constant([[5], [12]], tf.int64), "categories")
    assert stores.numpy().tolist() == [[b"5"], [b"12"]]
    texts = tf.constant([["5"], ["1.5"]])
    assert module["filled"](texts, "numbers").numpy().tolist() == [[5.0], [1.5]]
    days = tf.SparseTensor([[1, 0]], tf.constant([2], tf.int64), [2, 1])
    assert module["filled"](days, "categories").numpy().tolist() == [[b""], [b"2"]]


@pytest.mark.parametrize(
    "columns",
    [
        {"categories": ["store", "kind"], "numbers": []},
        {"texts": ["kind", "store"]},
        {"characters": ["kind"], "texts": ["store"], "categories": ["store"]},
        {"numbers": ["store"]},
        {"dates": ["store", "kind"]},
    ],
)
def test_a_column_may_move_to_any_kind(columns: dict[str, list[str]], tmp_path: Path) -> None:
    lines = [f"{row % 5},{'abc'[row % 3]},{row % 7}.5" for row in range(60)]
    module = module_of(tmp_path, "\n".join(["store,kind,y", *lines]))
    assert module["COLUMNS"] == {"numbers": ["store"], "categories": ["kind"]}
    module["COLUMNS"] = columns
    stores = tf.range(60, dtype=tf.int64)[:, None] % 5
    inputs = module["inputs_of"]({"store": stores, "kind": tf.constant([["a"], ["b"]] * 30)})
    rows = {kind: values.numpy() for kind, values in inputs.items()}
    model = module["build_model"](rows, np.arange(60.0), 0.1)
    model.fit(inputs, np.arange(60.0) % 5, verbose=0, epochs=2)
    assert len({*model.predict(inputs, verbose=0)[:, 0]}) >= 4, "it uses the columns"


def test_a_misspelt_hyperparameter_is_an_error(tmp_path: Path) -> None:
    module = module_of(tmp_path, rows(lambda row: row % 83 * 1.5))
    module["training_rows"] = lambda _: ({"numbers": np.ones([9, 1])}, np.arange(9.0))

    def run(**values: float) -> None:
        module["run_fn"](SimpleNamespace(hyperparameters={"values": values}))

    with pytest.raises(TypeError, match="'lerning_rate'"):
        run(lerning_rate=0.1)
    with pytest.raises(AttributeError, match="model_run_dir"):  # what follows the model
        run(**{"learning_rate": 0.1, "tuner/epochs": 3})
    with pytest.raises(TypeError, match="'lerning_rate'"):  # of a plain file
        module["run_fn"](SimpleNamespace(hyperparameters={"lerning_rate": 0.1}))


def test_a_misspelt_kind_of_columns_is_named(tmp_path: Path) -> None:
    module = module_of(tmp_path, rows(lambda row: row % 83 * 1.5))
    with pytest.raises(ValueError, match="unknown kind 'category': write numbers, categories,"):
        module["encoder"]("category", np.array([b"a"]))


@pytest.mark.parametrize(
    ("label", "words", "message"),
    [
        (lambda row: row, ["--label", "z"], "no column 'z'"),
        (lambda row: "" if row == 4 else row, ["--label", "y"], "row 6: a row without a label"),
        (lambda row: "inf" if row == 4 else row, ["--label", "y"], "'inf' in a cell, which is not"),
        (lambda row: "NAN" if row == 4 else row, ["--label", "y"], "'NAN' in a cell"),
        (lambda row: "-1e300" if row == 4 else row, ["--label", "y"], "'-1e300' in a cell"),
        (lambda row: 1, ["--label", "y"], "has the value '1' in every row"),
        (lambda row: ["1", "01"][row % 2], ["--label", "y"], "has the value '1' in every row"),
        (lambda row: ["1.5", "1.50"][row % 2], ["--label", "y"], "has the value '1.5"),
        (lambda row: f"t{row}", ["--label", "y"], "200 different texts in 200 rows, such as 't0'"),
        (lambda row: f"{row} %", ["--label", "y"], "classes; correct them to predict a number"),
        (lambda row: row, [], "--from and --label go together"),
    ],
)
def test_a_table_without_a_task_is_refused(
    label: Callable[[int], object],
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(rows(label), encoding="utf-8")
    assert cli.main(["init", str(tmp_path / "new"), "--from", str(table), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("classes", "remark"),
    [
        (["yes", "Yes", "no"], "Classes of 'y' differ"),
        (["yes", "no", " no"], "Classes of 'y' differ"),
        (["yes", "no", "not"], None),
        ([f"{row} %" for row in range(20)], "is read as 20 classes for cells"),
        ([f'"1,{row}"' for row in range(20)], "is read as 20 classes for cells"),
        (["18-24", "25-34", "35+"], None),
    ],
)
def test_odd_classes_are_named(
    classes: list[str], remark: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = rows(lambda row: classes[row % len(classes)])
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    words = ["--from", str(tmp_path / "table.csv"), "--label", "y"]
    assert cli.main(["init", str(tmp_path / "new"), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    about_label = [line for line in lines if "'y'" in line and not line.startswith("Predicts")]
    assert [remark in line for line in about_label] == [True] if remark else not about_label


def test_a_table_of_an_encoding_that_is_guessed_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "table.csv"
    table.write_bytes(rows(lambda row: ["oui", "peut-être"][row % 2]).encode("cp1252"))
    assert cli.main(["init", str(tmp_path / "new"), "--from", str(table), "--label", "y"]) == 0
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert "cp1252" in warning.getMessage(), "a level that each command shows"


@pytest.mark.parametrize("taken", ["new", "new/data"])
def test_a_file_where_the_project_needs_a_directory_is_named(
    taken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("mine")
    assert cli.main(["init", str(tmp_path / "new")]) == 2
    assert f"{tmp_path / 'new' / 'data'} cannot be written" in capsys.readouterr().err
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    "label",
    [lambda row: row % 83 * 1.5, lambda row: "abc"[row % 83 // 28]],
    ids=["numbers", "classes"],
)
def test_the_model_of_the_project_learns_and_predicts(
    label: Callable[[int], object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, new = tmp_path / "table.csv", tmp_path / "new.csv"
    table.write_text(rows(label).replace("size", "floor.size"), encoding="utf-8")
    new.write_text(table.read_text(encoding="utf-8").replace(",a name,y", ",x,z"))
    project = tmp_path / "project"
    assert cli.main(["init", str(project), "--from", str(table), "--label", "y"]) == 0
    words = ["run", project / "trainer.py", "--examples", project / "data" / "table.csv"]
    words += ["--schema", project / "schema.pbtxt", "--output", tmp_path / "runs"]
    assert cli.main(list(map(str, words))) == 0
    model = tmp_path / "runs" / "model" / "1" / "Format-Serving"
    contract = tmp_path / "contract.yaml"
    contract.write_text("consumers: [BulkInferrer, Evaluator, Pusher]\n")
    assert cli.main(["validate", str(model), "--contract", str(contract)]) == 0
    capsys.readouterr()

    assert cli.main(["predict", str(model), str(new), "--json"]) == 0

    predicted = [json.loads(line)["y"] for line in capsys.readouterr().out.splitlines()]
    if isinstance(predicted[0], str):
        assert sum(predicted[row] == label(row) for row in range(200)) > 160
    else:
        errors = [abs(predicted[row] - float(str(label(row)))) for row in range(200)]
        assert sum(errors) / 200 < 15, "the error of the mean is 31"

    readme = (project / "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(re.findall("(?s)```python\n(.*?)```", readme)[0], {})
    assert "'y': array(" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tests_of_the_project_pass(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    run_python("-m", "pytest", "-q", cwd=tmp_path)


@pytest.mark.campaign("_run", "cli", "components", "executors", "validation")
def test_the_commands_of_quick_start_run_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    sections = page[page.index("## A project of your own") : page.index("## Notebooks")]
    blocks = "".join(re.findall(r"(?ms)^```\n(.*?)^```$", sections))
    printed = [re.sub(r"\s+#.*", "", line) for line in blocks.splitlines()]
    printed = [line for line in printed if "my.csv" not in line and "rows.csv" not in line]
    assert len(printed) == 7
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    folder, said = tmp_path, []
    for command in printed:
        if command.startswith("cd "):
            folder = folder / command.removeprefix("cd ")
            old = folder / "runs" / "GenericTrainer" / "model_run" / "9" / "report.html"
            old.parent.mkdir(parents=True)
            old.touch()
            continue
        if "DIR" in command:
            [found] = folder.glob("**/CsvExampleGen/examples/*")
            command = command.replace("DIR", str(found))
        command = command.removeprefix("pip install pytest && ")
        done = subprocess.run(
            command, shell=True, cwd=folder, env=env, timeout=300, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command.startswith("generic-trainer run"):  # TensorFlow's libraries at their import
            assert not re.search("Unable to register|InitializeLog", done.stderr)
        said.append(done.stdout)
    assert list(folder.glob("serving/*/saved_model.pb"))
    assert said[1].strip().endswith("report.html") and str(old) not in said[1]  # of pipeline.py
    assert "ublished" not in said[3], "by a dry run"
    assert len(list(folder.glob("runs/model/*/Format-Serving/saved_model.pb"))) == 2
