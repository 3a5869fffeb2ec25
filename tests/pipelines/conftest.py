from __future__ import annotations

import pytest

from tests.pipelines.penguin_run import PenguinRun, shared_penguin_run


@pytest.fixture(scope="session")
def penguin_run(tmp_path_factory: pytest.TempPathFactory) -> PenguinRun:
    """The penguin pipeline's artifacts, made once in a session."""
    return shared_penguin_run(tmp_path_factory.getbasetemp() / "penguin-run")
