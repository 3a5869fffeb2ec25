"""Runs the penguin pipeline in this process, with a SQLite metadata store.

::

    python -m pipelines.run_local --module-file module_files/penguin_custom_loop.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pipelines._command import parse_options, run_penguin


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it; returns 0 if the model was pushed, 1 if not."""
    return run_penguin(_local_runner, parse_options("Penguin pipeline, locally.", argv))


def _local_runner() -> Any:
    from tfx import v1 as tfx

    return tfx.orchestration.LocalDagRunner()


if __name__ == "__main__":
    sys.exit(main())
