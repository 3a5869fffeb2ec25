"""`generic-trainer predict`: predictions for rows as a person has them."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer import cli
from generic_trainer.training import export_model

SPEC = {
    "area": tf.io.FixedLenFeature([1], tf.float32),
    "rooms": tf.io.VarLenFeature(tf.int64),
    "the place": tf.io.VarLenFeature(tf.string),
}


class Model(tf.Module):
    """The price is the area, and 100 for each room; the place is returned."""

    def __call__(self, features: dict[str, Any]) -> dict[str, tf.Tensor]:
        rooms, place = (
            tf.sparse.to_dense(tf.SparseTensor(x.indices, x.values, [x.dense_shape[0], 1]))[:, 0]
            for x in (features["rooms"], features["the place"])
        )
        price = features["area"][:, 0] + 100.0 * tf.cast(rooms, tf.float32)
        return {"price": price, "place": place, "both": tf.stack([price, price / 2], axis=1)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("model"))
    return export_model(Model(), folder, feature_spec=SPEC, columns_signature="columns")


CSV = "id,rooms,area,the place\n7,2,1.5,Köln\n8,NA,2,\n"
LINES = '{"area": 1.5, "rooms": 2, "the place": "Köln", "id": [1]}\n\n{"area": 2, "rooms": null}\n'
COLUMNS = '{"inputs": {"area": [1.5, 2], "rooms": [2, null], "the place": ["Köln", null]}}'
PREDICTED = [
    {"both": [201.5, 100.75], "place": "Köln", "price": 201.5},
    {"both": [2.0, 1.0], "place": "", "price": 2.0},
]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CSV, []),
        (CSV.replace(",", ";").encode("utf-16"), []),
        (LINES, []),
        (f"[{LINES.strip().replace(chr(10) * 2, ',')}]", []),
        (CSV.replace("the place", "the_place"), ["--signature", "columns"]),
        (CSV.replace(",", ";").replace("1.5", "1,5"), []),
        (f'{{"instances": [{LINES.strip().replace(chr(10) * 2, ",")}]}}', []),
        (COLUMNS, []),
        (f"[{LINES.strip().replace(chr(10) * 2, ',')}]".replace(",", ",\n"), []),
    ],
)
@pytest.mark.parametrize("from_input", [False, True])
def test_rows_are_predicted(
    model: str,
    content: str | bytes,
    words: list[str],
    from_input: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encoded = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "rows").write_bytes(encoded)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(encoded)))
    rows = [] if from_input else [str(tmp_path / "rows")]

    assert cli.main(["predict", model, *rows, "--json", *words]) == 0

    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == PREDICTED


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a signature for each input dtype and shape, which returns its input."""
    module, folder = tf.Module(), str(tmp_path_factory.mktemp("tensors"))
    specs = {
        **{name: tf.TensorSpec([None], name, "x") for name in DTYPES},
        "picture": tf.TensorSpec([None, 2, 3], tf.float32, "x"),
        "series": tf.TensorSpec([None, None], tf.float32, "x"),
    }
    module.functions = {  # type: ignore[attr-defined]
        name: tf.function(lambda x: {"y": tf.identity(x)}, [spec]) for name, spec in specs.items()
    }
    tf.saved_model.save(module, folder, module.functions)  # type: ignore[attr-defined]
    return folder


DTYPES = "bool", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", "string"


@pytest.mark.parametrize(
    ("signature", "values", "expected"),
    [
        ("float64", [1234567890.123, 0.1], [1234567890.123, 0.1]),
        ("int32", [-(2**31), "7"], [-(2**31), 7]),
        ("int32", [1, 2**31], "line 2, column 'x': Value out of range for int32: 2147483648"),
        ("uint8", [256], "Value out of range for uint8"),
        ("uint64", [2**64 - 1], [2**64 - 1]),
        ("int64", [2**53 + 1], [2**53 + 1]),
        ("bool", [True, 0, "True"], [True, False, True]),
        ("bool", [2], "Value out of range for bool"),
        ("float16", [70000], "Value out of range for float16"),
        ("float32", [1e39], "Value out of range for float32"),
        ("string", [{"b64": "S8O2bG4="}, "b64"], ["Köln", "b64"]),
        ("string", [{"b64": "S8O2b"}], "column 'x': "),
        ("picture", [[[1, 2, 3], [4, 5, 6]]], [[[1, 2, 3], [4, 5, 6]]]),
        ("picture", [[1, 2, 3, 4, 5, 6]], [[[1, 2, 3], [4, 5, 6]]]),
        ("picture", [[[1, 2], [3, 4], [5, 6]]], "expected the shape [2, 3], found [3, 2]"),
        ("picture", [[[1, 2, 3], [4]]], "column 'x': "),
        ("series", [[1, 2], [3], [4], [5, 6]], [[1, 2], [3], [4], [5, 6]]),
    ],
)
def test_a_tensor_has_the_values_of_the_row_or_is_refused(
    tensors: str,
    signature: str,
    values: list[Any],
    expected: list[Any] | str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = {"signature_name": signature, "instances": [{"x": value} for value in values]}
    lines = "\n".join(map(json.dumps, request["instances"]))
    for words, content in (([], json.dumps(request)), (["--signature", signature], lines)):
        (tmp_path / "rows").write_text(content)
        status = cli.main(["predict", tensors, str(tmp_path / "rows"), "--json", *words])
        printed = capsys.readouterr()
        if isinstance(expected, str):
            assert status == 2 and (expected.removeprefix("line 2, ") in printed.err)
        else:
            assert [json.loads(line)["y"] for line in printed.out.splitlines()] == expected
    assert not isinstance(expected, str) or expected in printed.err, "with the number of the line"


def test_outputs_may_have_another_shape_in_another_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lengths(tf.Module):
        def __call__(self, features: dict[str, Any]) -> dict[str, tf.Tensor]:
            return {"length": tf.strings.length(tf.sparse.to_dense(features["words"]))}

    spec = {"words": tf.io.VarLenFeature(tf.string)}
    model = export_model(Lengths(), str(tmp_path / "model"), feature_spec=spec)
    rows = [{"words": ["a"] * (1 + row // 256)} for row in range(300)]
    (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["predict", model, str(tmp_path / "rows"), "--json"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [len(line["length"]) for line in lines] == [len(row["words"]) for row in rows]


@pytest.mark.parametrize(
    ("names", "status"), [([None, "serving_default"], 0), (["columns", 7], 2)], ids=str
)
def test_requests_name_one_signature(
    model: str, names: list[Any], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"signature_name": name, "instances": [{"area": 1, "rooms": 2}]} for name in names]
    (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["predict", model, str(tmp_path / "rows")]) == status
    assert (
        status == 0 or "has requests for several signatures: 7, columns" in capsys.readouterr().err
    )


def test_columns_of_a_request_have_one_length(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows").write_text('{"inputs": {"area": [1.5, 2], "rooms": 3}}')
    assert cli.main(["predict", model, str(tmp_path / "rows")]) == 2
    assert "lists of one length in inputs: {'area': 2, 'rooms': None}" in capsys.readouterr().err


def test_columns_that_no_row_has_are_named(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rows.csv").write_text(CSV.replace("rooms", "Rooms"))
    assert cli.main(["predict", model, str(tmp_path / "rows.csv")]) == 0
    assert "columns that no row has: 'rooms' (did you mean 'Rooms'?)" in caplog.text


def test_text_keeps_its_commas(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("area;the place\n1,5;3,4\n")
    assert cli.main(["predict", model, str(tmp_path / "rows.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[1] == '"[1.5, 0.75]","3,4",1.5'


def test_predictions_are_a_table(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text(CSV)
    assert cli.main(["predict", model, str(tmp_path / "rows.csv")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "both,place,price",
        '"[201.5, 100.75]",Köln,201.5',
        '"[2.0, 1.0]",,2.0',
    ]


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("area\n1\n\n", ["--signature", "column"], "(did you mean 'columns'?); it has ['columns',"),
        ("rooms\n1\n", [], "row 2, column 'area': the model needs a value, and there is none"),
        ("area\n1\nx\n", [], "row 3, column 'area': expected a number, found 'x'"),
        ("area,rooms\n1,2.5\n", [], "row 2, column 'rooms': expected an integer, found '2.5'"),
        ('{"area": 1, "the place": 2}', [], "line 1, column 'the place': expected a string"),
        ('{"area": 1}\n7', [], "line 2: expected a JSON object, found 7"),
        (f"area,rooms\n1,{10**20}\n", [], "row 2, column 'rooms': Value out of range"),
        (
            "Area,x\n1,2\n",
            [],
            "'area' (did you mean 'Area'?)",
        ),
        ('{"area": 1', [], "line 1: expected a JSON object: "),
        ("", [], "found an empty file"),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    model: str,
    content: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rows").write_text(content)
    assert cli.main(["predict", model, str(tmp_path / "rows"), *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") <= 6 and not printed.out


def test_a_packed_file_is_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_bytes(gzip.compress(CSV.encode()))
    assert cli.main(["predict", model, str(tmp_path / "rows.csv")]) == 2
    assert "rows.csv cannot be read: it is packed by gzip" in capsys.readouterr().err


def test_a_directory_that_is_not_a_model(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text(CSV)
    assert cli.main(["predict", str(tmp_path), str(tmp_path / "rows.csv")]) == 2
    assert "is not a SavedModel for serving" in capsys.readouterr().err


def test_tensorflow_says_nothing_beside_the_predictions(model: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(CSV)
    words = [sys.executable, "-m", "generic_trainer.cli", "predict", model, "rows.csv"]
    # At the log level of the tests TensorFlow itself says nothing.
    told = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        words, cwd=tmp_path, env=told, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.startswith("both,place,price\n"), done.stderr
    assert not re.search("Unable to register|InitializeLog|FutureWarning", done.stderr)
