"""How many files a reader passes from the executor's `Do` to the user's `run_fn`."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

import pytest
from tfx import types

import generic_trainer
from generic_trainer.launchers import Distribution
from tests import helpers

PACKAGE = Path(generic_trainer.__file__).parent
LOOKS = 20

WAITS_TO_BE_LOOKED_AT = """
import json, os, time, traceback

def run_fn(fn_args):
    folder = fn_args.custom_config["folder"]
    files = [frame.filename for frame in traceback.extract_stack()]
    with open(os.path.join(folder, "part"), "w") as file:
        json.dump(files, file)
    os.rename(os.path.join(folder, "part"), os.path.join(folder, "stack"))
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.05)
    export(fn_args.serving_model_dir)
"""


def own_files(filenames: list[str]) -> set[str]:
    """Returns those of this package, relative to it."""
    paths = map(Path, filenames)
    return {str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE)}


def files_of(frame: FrameType | None) -> list[str]:
    return [entry.filename for entry in traceback.extract_stack(frame)]


class Watcher(threading.Thread):
    """Reads where `run_fn` is, looks where the thread of the executor is, and lets both go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.files: set[str] = set()
        self.executor = threading.get_ident()

    def run(self) -> None:
        stack = self.folder / "stack"
        while not stack.exists():
            time.sleep(0.05)
        worker = json.loads(stack.read_text(encoding="utf-8"))
        executor = min(map(self.look, range(LOOKS)), key=len)
        self.files = own_files(worker) | executor
        (self.folder / "go").touch()

    def look(self, number: int) -> set[str]:
        """Looks once, a moment after the last time: the executor may just watch the machine."""
        time.sleep(0.05)
        return own_files(files_of(sys._current_frames()[self.executor]))


@pytest.mark.parametrize(("launcher", "most"), [("in_process", 5), ("local", 8)])
def test_files_from_the_executor_to_run_fn(
    launcher: str,
    most: int,
    examples: types.Artifact,
    outputs: dict[str, list[types.Artifact]],
    tmp_path: Path,
) -> None:
    watcher = Watcher(tmp_path)
    watcher.start()
    helpers.train(
        helpers.write_module(tmp_path, WAITS_TO_BE_LOOKED_AT),
        examples,
        outputs,
        custom_config={"folder": str(tmp_path)},
        distribution=Distribution(launcher=launcher).to_json(),
    )
    assert "executors/_executor.py" in watcher.files
    assert len(watcher.files) <= most, sorted(watcher.files)
