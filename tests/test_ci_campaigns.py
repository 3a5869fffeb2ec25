"""The stage `campaigns` of CI: what it compares with, and that it ends whatever a campaign does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house import ROOT, git
from tests.processes import wait_until

VERSION = "generic_trainer/__init__.py"
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

CUT_OFF = "sleep 1000"
HANGS = "trap '' INT; while :; do sleep 1; done"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository with the stage, a version that changed in its second of three commits."""
    root = tmp_path / "house"
    (root / "generic_trainer").mkdir(parents=True)
    shutil.copytree(ROOT / ".ci", root / ".ci")
    git(root, "init", "--quiet")
    for version, others in (("0.1", "a"), ("0.2", "b"), ("0.2", "c")):
        (root / VERSION).write_text(f'__version__ = "{version}"\nothers = "{others}"\n')
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", others)
    return root


def stage(root: Path, campaigns: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the stage with a `make` that does this in place of campaigns."""
    folder = root / "bin"
    folder.mkdir()
    make = folder / "make"
    make.write_text(f'#!/bin/bash\n[[ $1 == campaigns ]] || exit 0\necho "$2"\n{campaigns}\n')
    make.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [root / ".ci" / "run", "--stage", "campaigns"],
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_compares_with_the_last_change_of_the_version(house: Path) -> None:
    done = stage(house, "exit 0")
    assert done.returncode == 0, done.stderr
    assert f"--changed-since {git(house, 'rev-parse', 'HEAD~1')}" in done.stdout


def test_a_shallow_clone_compares_with_its_oldest_commit(house: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{house}", "shallow")
    done = stage(tmp_path / "shallow", "exit 0")
    assert done.returncode == 0, done.stderr
    assert f"--changed-since {git(house, 'rev-parse', 'HEAD')}" in done.stdout


def test_without_history_every_campaign_may_run(house: Path) -> None:
    shutil.rmtree(house / ".git")
    done = stage(house, "exit 0", GIT_CEILING_DIRECTORIES=str(house.parent))
    assert done.returncode == 0, done.stderr
    assert "--rotate" in done.stdout and "--changed-since" not in done.stdout


def test_the_seed_is_that_of_the_day_of_the_commit(house: Path) -> None:
    seed = int(git(house, "log", "-1", "--format=%ct")) // 86400
    assert f"--rotate {seed} " in stage(house, "exit 0").stdout


@pytest.mark.parametrize(
    ("campaigns", "passes"),
    [
        ("exit 2", False),
        ("exit 5", True),  # of pytest: no campaign of a room that changed
        (f"echo '[gw0] PASSED tests/a.py'; {CUT_OFF}", True),
        (f"echo '[gw0] PASSED tests/a.py'; echo '[gw1] FAILED tests/b.py'; {CUT_OFF}", False),
        (HANGS, True),  # or the machine is slow: the output says that none has ended
    ],
    ids=["failed", "none", "cut off", "failed and cut off", "hangs"],
)
def test_ends_in_time(house: Path, campaigns: str, passes: bool) -> None:
    done = stage(house, campaigns, CAMPAIGNS_S="2")
    assert (done.returncode == 0) == passes, done.stdout + done.stderr
    assert campaigns != HANGS or "0 campaigns ended" in done.stdout


def test_what_a_campaign_has_started_ends_with_the_time(house: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    stage(house, f"setsid sleep 1000 & echo $! >{started}; {CUT_OFF}", CAMPAIGNS_S="2")
    assert wait_until(lambda: not Path("/proc", started.read_text().strip()).exists())
