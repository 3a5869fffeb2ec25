"""Fixtures that every room may use."""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from generic_trainer._core.lazy import OF_TFX
from tests import kept_servers
from tests.house import HAS_TFX, PACKAGE, ROOT
from tests.launchers import engines

# Files of default tests that take minutes, and whose tests may run in any process.
SHARE_NOTHING = {
    f"tests/training/resume/test_{name}.py" for name in ("other_callbacks", "resume_callbacks")
}

# Slow tests that share a cluster of Ray, or a run of the penguin pipeline, which takes a minute.
SHARED = re.compile(r"ray|test_penguin(?!.*beam)")

# Campaigns of inputs, kills and resumes.
COME_FIRST = "tests/test_campaigns.py", "tests/training/resume/test_resume_campaign.py"

# Before TensorFlow is imported: its start-up chatter would hide what a test has to say.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Workers have one processor each, or less: more threads of an op would only wait for each other.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
# What one test has parsed is not what another one reads, and nothing of it is for the user.
os.environ["GENERIC_TRAINER_CACHE_DIR"] = "off"
# Before Ray is imported: a line that two workers print counts as the line of both.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# Workers of Ray would give way to all others: beside two processes that test something else, a run
# of a minute took six.
os.environ.setdefault("RAY_worker_niceness", "0")


# What the core stage of CI does not install: TFX, and packages of extras.
OF_EXTRAS = "google.cloud", "IPython", "kubernetes", "pandas", "pyarrow", "ray"
LACKING = () if HAS_TFX else (*OF_TFX, *OF_EXTRAS)


class Lacking(importlib.abc.MetaPathFinder):
    """Skips a test, or the tests of a file, that itself imports a package which is not installed.

    What the package imports fails the test.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if any(f"{name}.".startswith(f"{lacking}.") for lacking in LACKING):
            frame = sys._getframe(1)
            while "importlib" in frame.f_code.co_filename and frame.f_back:
                frame = frame.f_back
            file = Path(frame.f_code.co_filename)
            is_installed = "site-packages" in file.parts or file.is_relative_to(PACKAGE)
            if file.is_relative_to(ROOT) and not is_installed:
                pytest.skip(f"{name} is not installed", allow_module_level=True)


if LACKING:
    sys.meta_path.append(Lacking())  # the last one: no other has found it


@pytest.fixture(scope="session", autouse=True)
def imported_once() -> Iterator[None]:
    """Has what trains and what checks import TensorFlow once, not for each test.

    Nor is Keras 2 converted by AutoGraph in each process, here as in a worker.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_servers.kept_fork_servers())
        if "tf_keras" in sys.modules:
            from generic_trainer.training import keras_2_left_alone

            stack.enter_context(keras_2_left_alone())
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Leaves out `fsync`, which matters if the power fails, and not to a process that is killed."""
    with mock.patch("os.fsync"):
        yield


@pytest.fixture(scope="session")
def penguin_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The penguin pipeline's artifacts, made once in a session."""
    from tests.pipelines.penguin_run import run_penguin

    return run_penguin(tmp_path_factory.getbasetemp() / "penguin-run")


@pytest.fixture
def no_kept_fork_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test have servers of its own, which end with what has started them."""
    monkeypatch.setattr(kept_servers, "keeps", False)


def pytest_addoption(parser: pytest.Parser) -> None:
    engines.add_options(parser)
    parser.addoption("--changed-since", metavar="COMMIT", help="only campaigns of changed rooms")
    parser.addoption("--rotate", metavar="SEED", help="campaigns in an order that differs by seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    engines.deselect(config, items)
    if commit := config.getoption("--changed-since"):
        changed = changed_rooms(commit)
        unchanged = [item for item in items if not _rooms_of(item) & changed]
        items[:] = [item for item in items if _rooms_of(item) & changed]
        config.hook.pytest_deselected(items=unchanged)
    if seed := config.getoption("--rotate"):
        rotate(items, seed)


def rotate(items: list[pytest.Item], seed: str) -> None:
    """Shuffles campaigns of which only the first ones may have the time to run.

    Those of `COME_FIRST` come first, and one of each function before its other parameters.
    """
    random.Random(seed).shuffle(items)
    turns: Counter[str] = Counter()

    def place(item: pytest.Item) -> tuple[bool, int]:
        function = item.nodeid.partition("[")[0]
        turns[function] += 1
        return not function.startswith(COME_FIRST), turns[function]

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves what has been imported out of garbage collections: it is a million objects."""
    _leave_out_of_collections()
    gc.set_threshold(50_000, 20, 20)  # tracing makes many objects, and few of them garbage


@pytest.fixture(scope="module", autouse=True)
def left_out_of_collections() -> Iterator[None]:
    """Leaves out what the tests of a file leave behind, too: graphs of a million objects.

    Else every `clear_session`, and every first step of a fit, would look at all of them again.
    """
    yield
    _leave_out_of_collections()


def _leave_out_of_collections() -> None:
    gc.collect()
    gc.freeze()


def _rooms_of(item: pytest.Item) -> set[str]:
    """Returns the rooms that a campaign names in its marker."""
    return {room for mark in item.iter_markers("campaign") for room in mark.args}


def changed_rooms(commit: str) -> set[str]:
    """Returns the rooms of the package that have files which differ from those of a commit."""
    command = ["git", "diff", "--name-only", commit, "--", "generic_trainer"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {path.split("/")[1] for path in done.stdout.splitlines()}


@pytest.hookimpl(optionalhook=True)  # pytest-xdist may be switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Says which tests stay in one process; see the Makefile.

    All slow tests of Ray do, as two clusters at once do not come up on two cores, and those that
    look at the same run of the penguin pipeline. Of default tests, those of a file do, but for
    files that take minutes and share nothing: the other processes would wait for their end. What
    `--dist loadgroup` is for does not work with pytest 9.2 and pytest-xdist 3.8.
    """
    dist = config.getoption("dist")
    if dist not in ("loadfile", "loadscope"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if dist == "loadscope":
                shared = SHARED.search(nodeid.lower())
                return shared[0] if shared else nodeid
            file = nodeid.partition("::")[0]
            return nodeid if file in SHARE_NOTHING else file

    return Scheduling(config, log)
