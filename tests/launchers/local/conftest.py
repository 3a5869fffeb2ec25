"""Jobs in child processes of this machine."""

from pathlib import Path

import pytest

from tests.launchers.jobs import Run, runner


@pytest.fixture
def run(examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in child processes."""
    return runner(tmp_path, examples, "local")
