"""Runs the penguin pipeline with Beam as the orchestrator, and a SQLite metadata store.

::

    python -m pipelines.run_beam --runs-dir /tmp/runs
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pipelines._command import parse_options, run_penguin


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it; returns 0 if the model was pushed, 1 if not."""
    return run_penguin(_beam_runner, parse_options("Penguin pipeline, on Beam.", argv))


def _beam_runner() -> Any:
    from tfx.orchestration.beam import beam_dag_runner

    return beam_dag_runner.BeamDagRunner()


if __name__ == "__main__":
    sys.exit(main())
