"""Jobs on two nodes, which all tests of this folder share."""

from pathlib import Path
from typing import Any

import pytest

from tests.launchers.jobs import Run, runner


@pytest.fixture
def run(ray_nodes: Any, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source on the two nodes."""
    return runner(tmp_path, examples, "ray")
