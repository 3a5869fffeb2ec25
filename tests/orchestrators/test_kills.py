"""Runs that end too early: no half model stays, and the next run publishes and cleans up."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from generic_trainer.errors import TrainingError
from tests import helpers, operations
from tests.orchestrators import processes
from tests.orchestrators.small_pipeline import Store, run_local

CAMPAIGN = pytest.mark.campaign("_run", "components", "executors")
WAITS_IN_TRAINING = helpers.run_fn('print("training goes on")\nwait_at_gate()')
WAITS_IN_EXPORT = """
def run_fn(fn_args):
    export(fn_args.eval_model_dir)
    export(fn_args.serving_model_dir)
    path = fn_args.serving_model_dir + "/saved_model.pb"
    with open(path, "rb") as file:
        whole = file.read()
    os.truncate(path, len(whole) // 2)
    wait_at_gate()
    with open(path, "wb") as file:
        file.write(whole)
"""
WAITS_IN_PUBLISHING = """
rename = os.rename

def wait_and_rename(source, target):
    if str(target).endswith("/Format-Serving"):
        wait_at_gate()
        os.rename = rename
    rename(source, target)

def run_fn(fn_args):
    os.rename = wait_and_rename
    export(fn_args.eval_model_dir)
    export(fn_args.serving_model_dir)
"""
EXPORTS_4_MIB = """
def run_fn(fn_args):
    model = Doubler()
    model.large = tf.Variable(tf.random.uniform([2**20]))
    tf.saved_model.save(
        model, fn_args.serving_model_dir, signatures={"serving_default": model.serve}
    )
"""


def published(root: Path) -> list[Path]:
    return list(root.glob("small/GenericTrainer/model/*/Format-Serving"))


def run_and_report_interrupt(root: Path, examples: str, module_file: str) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        run_local(root, examples, module_file=module_file)
    os.write(1, b"standard output is back\n")
    os.write(2, b"standard error is back\n")
    print("and so is sys.stdout")


def left_below(root: Path) -> set[str]:
    """Returns what runs have left that the next one is to delete."""
    found = [*root.glob("tmp/generic-*/*"), *root.glob("small/GenericTrainer/model/*/.staging*")]
    return {path.name for path in found}


def not_on_the_operators_page(root: Path) -> list[str]:
    """Returns what lies below the pipeline root and among temporary files without being named."""
    roots = {"<root>": f"{root}/small", "<tmp>": f"{root}/tmp"}
    directories = (root / "small", root / "tmp")
    return [path for each in directories for path in operations.not_named(each, roots)]


def start_and_wait(root: Path, examples: str, source: str, gate: processes.Gate) -> processes.Run:
    """Starts a run and returns when its user code waits at the gate."""
    arguments = (root, examples, helpers.write_module(root, processes.GATE + source))
    (root / "tmp").mkdir()
    run = processes.start(
        run_and_report_interrupt,
        *arguments,
        output_file=root / "output",
        gate=gate,
        temp_dir=root / "tmp",
    )
    gate.wait_for(run)
    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The pipeline root of `tmp_path`, on a disk of 1 MiB."""
    root = tmp_path / "small"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield root
    subprocess.run(["umount", str(root)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(WAITS_IN_TRAINING, id="training", marks=CAMPAIGN),
        pytest.param(WAITS_IN_EXPORT, id="export"),
        pytest.param(WAITS_IN_PUBLISHING, id="publishing", marks=CAMPAIGN),
    ],
)
def test_killed_run_leaves_no_model_and_the_next_one_publishes_and_cleans_up(
    source: str, examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with processes.Gate() as gate:
        run = start_and_wait(tmp_path, examples, source, gate)
        assert run.kill() == -signal.SIGKILL
    assert published(tmp_path) == []
    assert Store(tmp_path).models() == []
    assert left_below(tmp_path) >= {".staging", ".staging.lock"}
    assert len(list(tmp_path.glob("tmp/generic-*/checks-*"))) == 2  # and its lock
    assert not_on_the_operators_page(tmp_path) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    run_local(tmp_path, examples, module_file=str(tmp_path / "trainer.py"))
    store = Store(tmp_path)
    assert [str(path.parent) for path in published(tmp_path)] == [m.uri for m in store.models()]
    assert store.trainer_runs()[-1] == "COMPLETE"
    assert left_below(tmp_path) == set()
    assert not_on_the_operators_page(tmp_path) == []


def test_interrupt_leaves_no_model_and_gives_the_terminal_back(
    examples: str, tmp_path: Path
) -> None:
    with processes.Gate() as gate:
        run = start_and_wait(tmp_path, examples, WAITS_IN_TRAINING, gate)
        assert run.kill(signal.SIGINT) == 0
    assert published(tmp_path) == []
    assert Store(tmp_path).models() == []
    (log,) = tmp_path.glob("small/GenericTrainer/model_run/**/training.log")
    assert "training goes on" in log.read_text()
    for line in ("standard output is back", "standard error is back", "and so is sys.stdout"):
        run.wait_for_output(line)
        assert line not in log.read_text()


def test_full_disk_leaves_no_model(examples: str, tmp_path: Path, small_disk: Path) -> None:
    module_file = helpers.write_module(tmp_path, EXPORTS_4_MIB)
    with pytest.raises(TrainingError, match="No space left on device"):
        run_local(tmp_path, examples, module_file=module_file)
    assert published(tmp_path) == []
    assert Store(tmp_path).models() == []
    (log,) = small_disk.glob("GenericTrainer/model_run/*.failed/training.log")
    assert "Training with run_fn" in log.read_text()
    assert left_below(tmp_path) == set()
    assert operations.not_named(small_disk, {"<root>": str(small_disk)}) == []
