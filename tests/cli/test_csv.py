"""CSV files as people have them: markers for empty cells, separators, encodings, an index."""

import csv
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer import cli
from generic_trainer._core.records import read_records
from generic_trainer._core.texts import load_schema
from generic_trainer.cli._csv import read_csv, write_examples, write_schema
from generic_trainer.cli._csv_text import as_csv, sheet_of_text
from generic_trainer.cli._profile import profile_of
from generic_trainer.data import parse_spec
from generic_trainer.errors import DataError
from tests import helpers

ROWS = [(str(area), f"{area}.5", ["north", "west"][area % 2]) for area in range(120)]


def table(
    cells: dict[tuple[int, int], str] | None = None,
    separator: str = ",",
    change: Callable[[str], str] = str,
    head: str = "area,price,place",
) -> str:
    rows = [list(row) for row in ROWS]
    for (row, column), cell in (cells or {}).items():
        rows[row - 2][column] = cell
    lines = [head.split(",", 2), *rows]
    return "".join(change(separator.join(line)) + "\n" for line in lines)


COLUMNS = ["area INT", "price FLOAT", "place BYTES"]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        pytest.param(table(), COLUMNS, id="clean"),
        pytest.param(
            table({(5, 0): "NA", (6, 0): "\\N", (7, 1): "#N/A", (8, 1): " ", (9, 2): "NA"}),
            ["area INT, may be missing", "price FLOAT, may be missing", "place BYTES"],
            id="markers",
        ),
        pytest.param(table(separator=";", change=lambda s: s.replace(".", ",")), COLUMNS, id=";"),
        *(
            pytest.param(
                table({(3, 1): "1,234"}, separator, lambda s: s.replace(".", ",")),
                COLUMNS,
                id=f"decimal commas and {name}",
            )
            for separator, name in (("\t", "tabs"), ("|", "bars"))
        ),
        pytest.param(
            table({(row, 1): f"{row},234" for row in range(2, 102)}, "\t"),
            ["area INT", "price BYTES", "place BYTES"],
            id="tabs and commas that may divide thousands",
        ),
        pytest.param(
            table(
                {(3, 1): "NA", (4, 1): "1.5e-05", (5, 1): "-.5"}, ";", lambda s: s.replace(".", ",")
            ),
            ["area INT", "price FLOAT, may be missing", "place BYTES"],
            id="decimal commas and a marker",
        ),
        pytest.param(
            table(
                separator=";", change=lambda s: s.replace(".", ","), head="area,price,place, town"
            ),
            ["area INT", "price FLOAT", "place, town BYTES"],
            id="a comma in a name",
        ),
        pytest.param(table(separator="\t"), COLUMNS, id="tab"),
        pytest.param(table(separator="|"), COLUMNS, id="|"),
        pytest.param("sep=;\r\n" + table(separator=";"), COLUMNS, id="line that tells Excel"),
        pytest.param(table().encode("utf-16"), COLUMNS, id="utf-16"),
        pytest.param(table().encode("utf-16-le"), COLUMNS, id="utf-16 without a mark"),
        pytest.param(table().encode("utf-8-sig"), COLUMNS, id="utf-8 with a mark"),
        pytest.param(table({(9, 2): "Köln"}).encode("cp1252"), COLUMNS, id="cp1252"),
        pytest.param(table(change=lambda line: f",{line}"), COLUMNS, id="index of pandas"),
        pytest.param(table(change=lambda s: s if "place" in s else f"7,{s}"), COLUMNS, id="R"),
        pytest.param(table(change=lambda line: f"{line},"), COLUMNS, id="separator at the end"),
        pytest.param(table(change=lambda line: f"{line},,,"), COLUMNS, id="three at the end"),
        pytest.param(
            table(change=lambda s: s if "place" in s else f"{s},,"),
            COLUMNS,
            id="separators at the end of all lines but the first",
        ),
        pytest.param(table().replace("\n", "\r"), COLUMNS, id="lines of an old Mac"),
        pytest.param(
            table({(row, 1): "on request" for row in range(2, 20)}),
            ["area INT", "price BYTES", "place BYTES"],
            id="text among numbers",
        ),
        pytest.param(
            table({(3, 0): "1a"}), ["area BYTES", "price FLOAT", "place BYTES"], id="a code"
        ),
        pytest.param(
            table({(row, 0): f"1_{row}" for row in range(2, 122)}),
            ["area BYTES", "price FLOAT", "place BYTES"],
            id="codes with an underscore",
        ),
        pytest.param(
            table({(3, 0): f"1{0:020}"}),
            ["area BYTES", "price FLOAT", "place BYTES"],
            id="beyond 64 bits",
        ),
    ],
)
def test_a_table_is_read(tmp_path: Path, content: str | bytes, columns: list[str]) -> None:
    path = tmp_path / "houses.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = read_csv({"": str(path)})

    schema = load_schema(write_schema(found, str(tmp_path / "schema.pbtxt")))
    names = {schema_pb2.INT: "INT", schema_pb2.FLOAT: "FLOAT", schema_pb2.BYTES: "BYTES"}
    assert columns == [
        f"{each.name} {names[each.type]}" + ("" if each.HasField("shape") else ", may be missing")
        for each in schema.feature
    ]
    written = write_examples(found, str(tmp_path / "examples"))
    records = {split: read_records(*patterns, 1000) for split, patterns in written.items()}
    assert sum(map(len, records.values())) == len(ROWS)
    for split, rows in records.items():  # as CsvExampleGen does
        buckets = {int(hashlib.sha256(row).hexdigest(), 16) % 3 for row in rows}
        assert buckets == ({2} if split == "eval" else {0, 1})
    parsed = parse_spec(schema)
    tf.io.parse_example([*records["train"], *records["eval"]], parsed)


def test_equal_rows_are_divided_as_others_are(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").write_text("x,label\n" + "1,yes\n1,no\n2,yes\n" * 300)
    table = read_csv({"": str(tmp_path / "answers.csv")})
    written = write_examples(table, str(tmp_path / "rows"))
    counts = Counter(read_records(*written["eval"], 1000))
    assert len(counts) == 3 and all(70 < count < 130 for count in counts.values())
    first = Counter(read_records(*written["eval"], 60))
    assert all(8 < first[record] < 32 for record in counts), "the first ones stand for all"
    assert any(text.startswith("897 of 900") for text in profile_of(table, "label").remarks)


def test_whole_numbers_of_pandas_are_integers_if_the_schema_has_them(tmp_path: Path) -> None:
    (tmp_path / "rooms.csv").write_text("rooms,x\n4.0,1\n,2\n9007199254740993.0,3\n5,4\n")
    found = read_csv({"": str(tmp_path / "rooms.csv")}, {"rooms": int})
    assert found.columns["rooms"] is int
    assert [row[0] for row in found.rows[""]] == ["4", "", "9007199254740993", "5"]


def test_separators_at_the_end_of_lines_do_not_make_a_comma_one(tmp_path: Path) -> None:
    (tmp_path / "houses.csv").write_text("area;price, EUR\n1;2;;\n3;4;;\n")
    assert [*read_csv({"": str(tmp_path / "houses.csv")}).columns] == ["area", "price, EUR"]


@pytest.mark.parametrize(
    ("area", "price", "is_named"),
    [("1.234", "0,5", True), ("1,234", "0.5", True), ("1,234", "0,5", False), ("7", "0,5", False)],
)
def test_commas_and_points_in_one_table_are_named(
    area: str, price: str, is_named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "houses.csv").write_text(f"area;price\n{area};{price}\n12;3\n")
    read_csv({"": str(tmp_path / "houses.csv")})
    messages = [record.getMessage() for record in caplog.records]
    assert any("(area)" in text and "(price)" in text for text in messages) is is_named


@pytest.mark.parametrize(
    ("cells", "separator", "is_named"),
    [
        (["1,234", "12,500", "5,678", "7,000", "1,001", "950"], ";", True),
        (["1.234", "12.500", "5.678", "7.000", "1.001", "950"], ";", True),
        (["1.234", "12.500", "5.678", "7.000", "1.001", "950"], ",", True),
        (["1.234", "12.500", "5.678", "7.000", "1.001", "9.5"], ",", False),
        (["1.234", "12.500", "5.678", "7.000", "1.001", "0.950"], ",", False),
        (["1.234", "12.500", "5.678", "7.000", "1.001", "2000"], ",", False),
        (["1.234", "12.500", "5.678", "7.000", "1.001"], ";", False),
    ],
)
def test_marks_that_may_divide_thousands_are_named(
    cells: list[str],
    separator: str,
    is_named: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = [f"{cell}{separator}north" for cell in cells]
    (tmp_path / "towns.csv").write_text("\n".join([f"people{separator}place", *lines]))
    read_csv({"": str(tmp_path / "towns.csv")})
    messages = [record.getMessage() for record in caplog.records]
    assert any("in people, all numbers with a mark" in text for text in messages) is is_named


def test_the_first_eval_rows_of_a_sorted_table_stand_for_all(tmp_path: Path) -> None:
    (tmp_path / "sorted.csv").write_text("\n".join(["price", *map(str, range(9000))]))
    written = write_examples(read_csv({"": str(tmp_path / "sorted.csv")}), str(tmp_path / "rows"))
    first = map(tf.train.Example.FromString, read_records(written["eval"][0], 1000))
    prices = [row.features.feature["price"].int64_list.value[0] for row in first]
    assert len(set(prices)) == 1000
    assert abs(sum(prices) / 1000 - 4500) < 500, "of the first rows of the file, the mean is 1500"


READS = """
from generic_trainer.data import TensorFlowDatasetOptions, load_schema

def run_fn(fn_args):
    options = TensorFlowDatasetOptions(batch_size=8, label_key="price")
    schema = load_schema(fn_args.schema_path)
    dataset = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, schema)
    dataset.map(lambda features, label: tf.expand_dims(features["area"], -1))
"""


def run(tmp_path: Path, content: str | bytes, *words: str, module: str = READS) -> int:
    path = tmp_path / "houses.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    module_file = helpers.write_module(tmp_path, module)
    output = str(tmp_path / "runs")
    return cli.main(["run", module_file, "--examples", str(path), "--output", output, *words])


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        pytest.param(
            table({(9, 1): "?", (12, 1): "?"}),
            [],
            "houses.csv, row 9, column 'price': expected a number, found '?', as in 1 more of its "
            "cells. Correct it, or leave it empty;",
            id="not a number",
        ),
        pytest.param(
            "sep=;\n" + table({(9, 1): "?"}, ";").replace("3;3.5", "\n\n3;3.5"),
            [],
            "houses.csv, row 12, column 'price'",
            id="not a number, below blank lines and that of the separator",
        ),
        pytest.param(
            table(separator=";").replace("7;7.5;", "7;").replace("5;5.5", "\n5;5.5"),
            [],
            "houses.csv, row 10: expected 3 cells",
            id="a row that is too short, below a blank line",
        ),
        pytest.param(
            table(),
            ["--schema", "schema.pbtxt"],
            "expected an integer, found '0.5', as in 119 more of its cells. Correct it, or leave "
            "it empty; for a column of numbers, pass a --schema in which 'price' is of type FLOAT",
            id="not the number of the schema",
        ),
        pytest.param(
            table({(4, 1): "NA"}),
            ["--contract", "contract.yaml"],
            "column 'price' is the label, but 1 of 120 cells are empty, the first in",
            id="label of the contract",
        ),
        pytest.param(
            table(separator=";").replace("7;7.5;", "7;"),
            [],
            "houses.csv, row 9: expected 3 cells, found 2, separated by semicolons",
            id="a row that is too short",
        ),
        pytest.param(b"a,b\n1,\x81\n", [], "encoding: convert it to UTF-8", id="encoding"),
        pytest.param(b"PAR1\x15\x04,\x81\nPAR1", [], "it is a Parquet file", id="Parquet"),
        pytest.param('[\n  {"a": 1, "b": 2}\n]\n', [], "is JSON, and no table", id="JSON"),
        pytest.param(b"PK\x03\x04a,b\n1,2\n", [], "it is an Excel file", id="Excel"),
        pytest.param("a,b\n1,2\n1,2\n", [], "by a hash of each row none", id="no rows for a split"),
        pytest.param(table(head="area,,place"), [], "no name for column 2 of 3", id="no name"),
        pytest.param(table(head="area,x,x"), [], "columns with the name 'x'", id="a name twice"),
    ],
)
def test_a_mistake_is_named(
    tmp_path: Path,
    content: str | bytes,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.pbtxt").write_text('feature { name: "price" type: INT }')
    (tmp_path / "contract.yaml").write_text("label_keys: [price]")
    assert run(tmp_path, content, *words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") <= 6
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("cells", "messages"),
    [
        ({(5, 0): "NA"}, ["'area', in which 1 of 120 cells are empty", "tf.sparse.to_dense(x, "]),
        ({(5, 1): ""}, ["column 'price' is the label, but 1 of 120 cells are empty", "row 5"]),
    ],
)
def test_a_module_learns_which_column_has_empty_cells(
    tmp_path: Path,
    cells: dict[tuple[int, int], str],
    messages: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, table(cells), module=READS) in (1, 2)
    error = capsys.readouterr().err
    assert [text for text in messages if text not in error] == []


@pytest.mark.parametrize("required", ["area", "place"])
def test_empty_cells_of_a_required_column_name_the_schema(
    tmp_path: Path, required: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"": str(tmp_path / "whole.csv")}
    (tmp_path / "whole.csv").write_text(table())
    schema = write_schema(read_csv(paths), str(tmp_path / "schema.pbtxt"))
    cells = {(5, ["area", "price", "place"].index(required)): ""}
    assert run(tmp_path, table(cells), "--schema", schema) == 2
    error = capsys.readouterr().err
    assert f"Column {required!r}: 1 of 120 cells are empty, the first in " in error
    assert "row 5. Fill them in, or make the column optional: delete `presence`" in error
    assert "SparseTensor" not in error


@pytest.mark.parametrize("is_required", [True, False])
def test_a_feature_of_the_schema_without_a_column_is_named(
    is_required: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = table({} if is_required else {(5, 2): ""})
    (tmp_path / "whole.csv").write_text(whole)
    schema = write_schema(read_csv({"": str(tmp_path / "whole.csv")}), str(tmp_path / "s.pbtxt"))

    renamed = whole.replace("place", "places")
    assert run(tmp_path, renamed, "--schema", schema) == (2 if is_required else 126)

    (warning,) = (each.getMessage() for each in caplog.records if "'place'" in each.getMessage())
    assert "did you mean 'places'?" in warning
    assert ("houses.csv, which has no such column" in capsys.readouterr().err) is is_required


def test_what_is_written_is_read_as_the_same_cells() -> None:
    breaks = ["a\rb", "a\nb", "a\r\nb", "\r", "\n", 'say "so"', "a,b", " a ", "", "é"]
    rows = [["name", "other\rname"], *([cell, "1"] for cell in breaks)]
    sheet = sheet_of_text("written.csv", as_csv(rows))
    assert [sheet.names, *sheet.rows] == rows


def test_files_of_splits_have_decimal_commas_in_all_or_in_none(tmp_path: Path) -> None:
    cells = [f"{row},5" for row in range(9)]
    paths = {}
    for split, more in (("train", []), ("eval", ["k.A.", "n. v.", "offen", "?"])):
        paths[split] = str(tmp_path / f"{split}.csv")
        Path(paths[split]).write_text("\n".join(["price;n", *(f"{x};1" for x in [*cells, *more])]))
    found = read_csv(paths)
    assert found.columns["price"] is str
    assert {row[0] for row in found.rows["train"]} == {*cells}
    del paths["eval"]
    assert read_csv(paths).rows["train"][0][0] == "0.5"


def test_a_cell_may_have_any_length() -> None:
    limit = csv.field_size_limit()
    sheet = sheet_of_text("table.csv", f"area,text\n1,{'x' * 200_000}\n2,y\n")
    assert [len(row[1]) for row in sheet.rows] == [200_000, 1]
    assert csv.field_size_limit() == limit


def test_files_of_splits_may_order_their_columns_differently(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("area,price,place\n1,2.5,north\n")
    (tmp_path / "eval.csv").write_text("place;price;area\nwest;4,5;3\n")

    read = read_csv({split: str(tmp_path / f"{split}.csv") for split in ("train", "eval")})

    assert read.columns == {"area": int, "price": float, "place": str}
    assert read.rows == {"train": [["1", "2.5", "north"]], "eval": [["3", "4.5", "west"]]}


def test_files_of_splits_with_other_columns_name_the_difference(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("area,price,place\n1,2.5,north\n")
    (tmp_path / "eval.csv").write_text("area,price,town\n1,2.5,north\n")

    with pytest.raises(DataError, match=r"it lacks place, and has besides town$"):
        read_csv({split: str(tmp_path / f"{split}.csv") for split in ("train", "eval")})


def test_records_are_no_table(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(tf.train.Example().SerializeToString())

    with pytest.raises(DataError, match="it is a file of TFRecords, and no text"):
        read_csv({"": path})
