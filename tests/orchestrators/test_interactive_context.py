"""Runs in InteractiveContext, in a real IPython shell and in a notebook's kernel."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import helpers

pytest.importorskip("IPython", reason="needs the extra notebook")

MODULE = """
import os
import helper

def run_fn(fn_args):
    assert fn_args.extra_inputs["rows"]
    print("helper says", helper.ANSWER)
    os.system("echo so does a child process")
    export(fn_args.serving_model_dir)
"""
SET_UP = """
from pathlib import Path
from tfx.orchestration.experimental.interactive.interactive_context import InteractiveContext
from generic_trainer import GenericTrainer
from tests.orchestrators.small_pipeline import imported_examples

def edit_helper(answer):
    Path({root!r}, "helper.py").write_text(f"ANSWER = {{answer}}")

def new_trainer():
    rows = source.outputs["result"]  # an artifact can be an input once here
    trainer = GenericTrainer(
        examples=rows, module_file={module_file!r}, extra_inputs={{"rows": rows}}
    )
    return trainer.with_id("GenericTrainer")

context = InteractiveContext(pipeline_name="small", pipeline_root={root!r})
source = imported_examples({examples!r})
context.run(source)
"""
CELLS = (
    "edit_helper(1); trainer = new_trainer(); context.run(trainer)",
    "context.run(trainer)",
    "edit_helper(2); context.run(trainer)",
    "edit_helper(3); trainer = new_trainer(); context.run(trainer)",
)


def cells(root: Path, examples: str) -> list[str]:
    module_file = helpers.write_module(root, MODULE)
    return [SET_UP.format(root=str(root), examples=examples, module_file=module_file), *CELLS]


def pages_of(cell: Any) -> list[str]:
    """Returns what a cell shows of runs, as HTML."""
    shown = [output["data"].get("text/html", "") for output in cell.outputs if "data" in output]
    return [page for page in shown if "Published" in page or "<iframe" in page]


def check_run(root: Path, outputs: Sequence[str]) -> None:
    """Checks what each cell has shown, and that each run that was needed has published."""
    shown = [
        [line for line in output.splitlines() if line.startswith("helper says")]
        for output in outputs
    ]
    assert shown == [[], ["helper says 1"], [], ["helper says 2"], ["helper says 3"]]
    assert "".join(outputs).count("so does a child process\n") == 3
    assert len(list(root.glob("GenericTrainer/model/*/Format-Serving/saved_model.pb"))) == 3


@pytest.mark.slow
def test_notebook_shows_output_and_sees_edits(examples: str, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebook")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
    shows = "context.show(trainer.outputs['model_run']); context.show(trainer.outputs['model'])"
    sources = [*cells(tmp_path, examples), shows]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    # With this variable set, the kernel does not show what child processes write.
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    nbclient.NotebookClient(notebook, kernel_name="python3").execute(env=environment)
    streams = [
        [output["text"] for output in cell.outputs if output.output_type == "stream"]
        for cell in notebook.cells
    ]
    *runs, views = notebook.cells
    check_run(tmp_path, ["".join(texts) for texts in streams[:-1]])
    pages = [pages_of(cell) for cell in runs]
    assert [len(each) for each in pages] == [0, 1, 0, 1, 1]  # one each that has moved
    assert "Published" in pages[1][0] and "<iframe sandbox srcdoc=" in pages[1][0]
    assert ["The end of" in page for page in pages_of(views)] == [True, True]
