"""Library that makes file operations fail, preloaded into this program and all that it starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["LIBRARY", "failing_disk"]

LIBRARY = "campaign-eio.so"


def failing_disk(folder: Path) -> None:
    """Starts this program anew with the library in it; returns if it is, or cannot be built.

    Args:
        folder: where the library is built, `CAMPAIGN_DIR` from then on.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or LIBRARY in os.environ.get("LD_PRELOAD", ""):
        return
    source, library = Path(__file__).with_name("_eio.c"), folder / LIBRARY
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
    )
    os.environ.update(LD_PRELOAD=str(library), CAMPAIGN_DIR=str(folder))
    os.execv(sys.executable, sys.orig_argv)
