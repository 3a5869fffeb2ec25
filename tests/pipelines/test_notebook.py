"""The notebook runs from top to bottom, the way Jupyter runs it, and shows its pictures."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="GenericTrainer's extra `notebook`")
nbclient = pytest.importorskip("nbclient", reason="GenericTrainer's extra `notebook`")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "penguin.ipynb"


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


def test_it_is_committed_without_outputs() -> None:
    assert outputs_of(nbformat.read(NOTEBOOK, as_version=4)) == []


@pytest.mark.slow
def test_it_runs_and_shows_curve_and_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        kernel_name=install_kernel(tmp_path),
        resources={"metadata": {"path": str(tmp_path)}},
        timeout=None,
    )

    client.execute()

    outputs = outputs_of(notebook)
    assert [output for output in outputs if output.output_type == "error"] == []
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 4
    text = "".join(output.get("text", "") for output in outputs)
    assert "Blessed: True" in text
    assert "Setting to DenseTensor" not in text
    assert list((tmp_path / "runs" / "notebook" / "serving").glob("*/saved_model.pb"))
