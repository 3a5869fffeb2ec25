from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import run_beam
from tests.pipelines.penguin_run import run_penguin


@pytest.mark.slow
def test_beam_runs_the_same_pipeline(tmp_path: Path) -> None:
    run = run_penguin(tmp_path, run_beam.main)

    assert run.results.blessed
    assert Path(run.results.pushed_to or "", "saved_model.pb").is_file()
