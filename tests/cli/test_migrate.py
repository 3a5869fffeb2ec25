"""`generic-trainer migrate`, on TFX's own examples and on what they do not show."""

import ast
import errno
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

from generic_trainer import cli

TFX = importlib.util.find_spec("tfx")
EXAMPLES = sorted(
    path
    for folder in (TFX.submodule_search_locations or () if TFX else ())
    for path in Path(folder, "examples").rglob("*pipeline*.py")
    if re.search(r"(components|platform)\.Trainer\(|import Trainer\b", path.read_text("utf-8"))
)
PATCHED = """\
from tfx.components import (
    Pusher,
    Trainer as Fitting,
)
from tfx import v1 as tfx
# a page ends: \f.
Größe = "ä"; trainer = tfx.components.Trainer(custom_executor_spec=spec)
other: tfx.v1.components.Trainer = tfx.extensions.google_cloud_ai_platform.Trainer()
if Größe:
\tfrom tfx.components import Trainer, A
if other: from tfx import v1 as tfx; tfx.components.Trainer(
)
"""
OURS = "from generic_trainer import GenericTrainer"
VERTEX = "from generic_trainer.vertex import Trainer as VertexTrainer"
MAGICS = ["try:\n", " !pip \\\n", "  tfx\n", "finally:\n", " a = (2\n", "% 3)\n"]


@pytest.fixture(autouse=True)
def keras_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


@pytest.mark.parametrize("is_full", [True, False])
def test_a_file_is_replaced_whole_and_keeps_its_mode(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed command or a full disk leaves the file as it was."""
    file, link = tmp_path / "file.py", tmp_path / "link.py"
    file.write_text(PATCHED)
    file.chmod(0o750)
    link.symlink_to(file.name)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if is_full:
        monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["migrate", str(link), "--write"]) == (2 if is_full else 1)
    assert (file.read_text() == PATCHED) == is_full
    assert file.stat().st_mode & 0o777 == 0o750 and link.is_symlink()
    assert {*tmp_path.iterdir()} == {file, link}


def test_all_names_of_a_file_have_its_new_content(tmp_path: Path) -> None:
    file, other = tmp_path / "file.py", tmp_path / "other.txt"
    file.write_text(PATCHED)
    os.link(file, other)
    assert cli.main(["migrate", str(file), "--write"]) == 1
    assert file.read_text() == other.read_text() != PATCHED
    assert {*tmp_path.iterdir()} == {file, other}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_tfx(example: Path, tmp_path: Path) -> None:
    assert len(EXAMPLES) >= 6
    copy = tmp_path / example.name
    copy.write_bytes(example.read_bytes())

    cli.main(["migrate", str(copy), "--write"])

    before, after = example.read_text("utf-8"), copy.read_text("utf-8")
    ast.parse(after)
    assert "from generic_trainer" in after
    assert not re.search(r"tfx\S*\.Trainer\(|from tfx\S* import Trainer\b", after)
    lines = set(after.splitlines()) - set(before.splitlines())
    assert all(re.search("generic_trainer|GenericTrainer|VertexTrainer", line) for line in lines)
    assert cli.main(["migrate", str(copy)]) == cli.main(["migrate", str(copy), "--write"])
    assert copy.read_text("utf-8") == after


def test_what_stands_beside_a_trainer_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(PATCHED)

    assert cli.main(["migrate", str(file)]) == 1  # the executor is another one

    told = capsys.readouterr()
    assert f"{file}:7: custom_executor_spec runs another executor" in told.err
    assert file.read_text() == PATCHED
    cli.main(["migrate", str(file), "--write"])
    assert file.read_text().split("\n")[:-1] == [
        "from tfx.components import (",
        "    Pusher,",
        ")",
        f"{OURS} as Fitting",
        VERTEX,
        OURS,
        "from tfx import v1 as tfx",
        "# a page ends: \f.",
        'Größe = "ä"; trainer = GenericTrainer(custom_executor_spec=spec)',
        "other: tfx.v1.components.Trainer = VertexTrainer()",
        "if Größe:",
        "\tfrom tfx.components import A",
        f"\t{OURS} as Trainer",
        f"if other: {VERTEX}; {OURS}; from tfx import v1 as tfx; GenericTrainer(",
        ")",
    ]


@pytest.mark.parametrize(
    ("imports", "executor", "status"),
    [
        ("from tfx.components.trainer import executor", "executor.GenericExecutor", 0),
        ("from tfx.components.trainer.executor import Executor as E", "E", 0),
        ("from mine import executor", "executor.GenericExecutor", 1),
    ],
)
def test_only_an_executor_that_is_not_of_tfx_is_named(
    tmp_path: Path, imports: str, executor: str, status: int
) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(
        f"from tfx.components import Trainer\nfrom tfx.dsl.components.base import executor_spec\n"
        f"{imports}\n"
        f"Trainer(custom_executor_spec=executor_spec.ExecutorClassSpec({executor}))\n"
    )
    assert cli.main(["migrate", str(file)]) == status


def test_what_will_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(
        "import tensorflow as tf\nimport tensorflow_model_analysis as tfma\n"
        "def run_fn(fn_args):\n"
        "    tf.saved_model.save(model, fn_args.serving_model_dir)\n"
        "    model.save(fn_args.serving_model_dir, save_format='tf')\n"
        "    tfma.export.export_eval_savedmodel(estimator, path, fn)\n"
    )
    assert cli.main(["migrate", str(file), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["written"] is False
    warnings = told["files"][str(file)]["warnings"]
    assert [each["line"] for each in warnings] == [4, 5, 6]
    assert "session" in warnings[0]["message"] and "export_model" in warnings[0]["remedy"]
    cli.main(["migrate", str(file)])
    assert capsys.readouterr().err.count("TF_USE_LEGACY_KERAS=1") == 1


def test_estimators_get_the_tensorflow_that_has_them(tmp_path: Path) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(
        "import tensorflow as tf\n\ndef trainer_fn(a, s):\n    return tf.estimator.RunConfig()\n"
    )
    assert cli.main(["migrate", str(file), "--write"]) == 0
    assert file.read_text().startswith("from generic_trainer.estimator import tf\n\n")


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("import this_is(", 2, "invalid syntax"),
        ("x = 1\n", 1, "neither TFX's Trainer nor run_fn found"),
        ("from tfx.components import *\nTrainer(run_fn='a.b')", 1, "`import *` is not replaced"),
        ("from tensorflow import estimator as run_fn\nrun_fn.X", 1, "no estimators since 2.16"),
        ("import determined as det\ndef run_fn(a): ...\n", 1, "generic_trainer.trials"),
    ],
)
def test_files_that_cannot_be_moved(
    text: str, status: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(text)
    assert cli.main(["migrate", str(file)]) == status
    assert told in capsys.readouterr().err


def test_cells_of_a_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# tfx.components.Trainer"]},
        {"cell_type": "code", "source": ["#magic try\n", *MAGICS, "from tfx import v1 as tfx"]},
        {"cell_type": "code", "source": ["%%writefile trainer.py\n", "def run_fn(fn_args):"]},
        {"cell_type": "code", "source": ["trainer = tfx.components.Trainer()\n", "trainer"]},
    ]
    file = tmp_path / "pipeline.ipynb"
    file.write_text(json.dumps({"cells": cells, "nbformat": 4}))

    assert cli.main(["migrate", str(file), "--write"]) == 0

    assert "+trainer = GenericTrainer()" in capsys.readouterr().out
    after = json.loads(file.read_text())["cells"]
    assert [after[0], after[2]] == [cells[0], cells[2]]
    edited = ["#magic try\n", *MAGICS, f"{OURS}\n", "from tfx import v1 as tfx"]
    assert after[1]["source"] == edited
    assert after[3]["source"] == ["trainer = GenericTrainer()\n", "trainer"]
    file.write_text("[]")
    assert cli.main(["migrate", str(file)]) == 2


def test_each_file_has_its_own_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {
        "broken.py": b"import this_is(",
        "unknown.py": b"# coding: klingon\n",
        "empty.ipynb": b"",
        "wrong.ipynb": b"[]",
        "good.py": b"from tfx.components import Trainer\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in contents]

    assert cli.main(["migrate", *paths, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["files"]
    errors = {Path(path).name: outcome.get("error") for path, outcome in found.items()}
    assert errors["good.py"] is errors["empty.ipynb"] is None
    assert "invalid syntax" in errors["broken.py"]
    assert "unknown encoding" in errors["unknown.py"]
    assert "cannot be read" in errors["wrong.ipynb"]

    assert cli.main(["migrate", *paths, "--write"]) == 2
    shown = capsys.readouterr()
    assert f"+{OURS} as Trainer" in shown.out
    assert "broken.py:1: invalid syntax" in shown.err
    assert (tmp_path / "good.py").read_text() == f"{OURS} as Trainer\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            b"\xef\xbb\xbffrom tfx.components import Trainer\n",
            f"\ufeff{OURS} as Trainer\n".encode(),
        ),
        (
            "# coding: latin-1\n# Größe\nfrom tfx.components import Trainer\n".encode("latin-1"),
            f"# coding: latin-1\n# Größe\n{OURS} as Trainer\n".encode("latin-1"),
        ),
        (
            b"from tfx.components import (\r\n  Pusher,\r\n  Trainer,\r\n)\r\nx = 1\r\n",
            b"from tfx.components import (\r\n  Pusher,\r\n)\r\n"
            + f"{OURS} as Trainer\r\nx = 1\r\n".encode(),
        ),
        (
            b"from tfx.components import (  # all\n    A,  # first\n    Trainer,  # second\n"
            b"    # third\n    B\n)\n",
            f"from tfx.components import (  # all\n    A,  # first\n    # second\n"
            f"    # third\n    B\n)\n{OURS} as Trainer\n".encode(),
        ),
        (
            b"if True:\n    from tfx.components import (  # noqa\n"
            b"        Trainer as T # ours\n    )\n",
            f"if True:\n    # noqa\n    # ours\n    {OURS} as T\n".encode(),
        ),
        (
            b"from tfx.components import (A # first\n    , Trainer # second\n    , B)\n",
            b"from tfx.components import (A # first\n # second\n    , B)\n"
            + f"{OURS} as Trainer\n".encode(),
        ),
    ],
    ids=["BOM", "Latin-1", "CRLF", "comments", "comments alone", "commas first"],
)
def test_a_file_keeps_its_form(before: bytes, after: bytes, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_bytes(before)
    assert cli.main(["migrate", str(file), "--write"]) == 0
    assert file.read_bytes() == after


@pytest.mark.parametrize("first", ["%%time", "%%capture out", "%%skip_for_export", "%%timeit -n 1"])
def test_a_cell_that_runs_as_python_is_changed(first: str, tmp_path: Path) -> None:
    others = ["x = !ls -l\n", "y, z = %time f()\n", "tfx?\n", "?tfx.v1\n", "if x:\n", "  x??\n"]
    source = [f"{first}\n", *others, "from tfx.components import Trainer\n", "a = 'what?'"]
    file = tmp_path / "pipeline.ipynb"
    cell = {"cell_type": "code", "source": source}
    shell = {"cell_type": "code", "source": ["%%bash\n", "from tfx.components import Trainer"]}
    file.write_text(json.dumps({"cells": [cell, shell], "nbformat": 4}))

    assert cli.main(["migrate", str(file), "--write"]) == 0

    edited, untouched = json.loads(file.read_text())["cells"]
    assert untouched == shell
    assert edited["source"] == [f"{first}\n", *others, f"{OURS} as Trainer\n", "a = 'what?'"]
