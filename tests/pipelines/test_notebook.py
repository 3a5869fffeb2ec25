"""The notebooks run from top to bottom, the way Jupyter runs them, and show their results."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="GenericTrainer's extra `notebook`")
nbclient = pytest.importorskip("nbclient", reason="GenericTrainer's extra `notebook`")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def install_kernel(folder: Path) -> str:
    """Installs a kernel that is this very interpreter, and returns its name."""
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "This interpreter",
        "language": "python",
        "env": {"PYTHONPATH": str(ROOT)},
    }
    kernel = folder / "kernels" / "this-interpreter"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps(spec))
    return kernel.name


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs a notebook in a folder, and returns the outputs of its cells."""
    monkeypatch.setenv("JUPYTER_PATH", str(folder))
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        kernel_name=install_kernel(folder),
        resources={"metadata": {"path": str(folder)}},
        timeout=None,
    )
    client.execute()
    outputs = outputs_of(notebook)
    assert [output for output in outputs if output.output_type == "error"] == []
    return outputs


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_they_are_committed_without_outputs(notebook: Path) -> None:
    assert outputs_of(nbformat.read(notebook, as_version=4)) == []


@pytest.mark.slow
def test_the_pipeline_runs_and_shows_curve_and_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = executed("penguin.ipynb", tmp_path, monkeypatch)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 4
    text = "".join(output.get("text", "") for output in outputs)
    assert "Blessed: True" in text
    assert "Setting to DenseTensor" not in text
    assert list((tmp_path / "runs" / "notebook" / "serving").glob("*/saved_model.pb"))


@pytest.mark.slow
def test_a_table_becomes_a_model_that_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = executed("own_table.ipynb", tmp_path, monkeypatch)
    text = "".join(output.get("text", "") for output in outputs)
    found = re.search(r"(\d+)% of 40 new penguins", text)
    assert found and int(found[1]) > 90
    assert "required_signatures: " in text
    shown = "".join(str(output.get("data", "")) for output in outputs)
    assert "val_accuracy" in shown and "own_table/runs/model_run/1/report.html" in shown
    assert list((tmp_path / "own_table" / "runs" / "model").glob("*/Format-Serving/saved_model.pb"))
