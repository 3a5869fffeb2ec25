"""A run in a notebook: one cell that moves, and the report in its place at the end."""

from __future__ import annotations

import os
import sys
from typing import Any

from generic_trainer._core.progress import Progress
from generic_trainer._run.live.page import render, run_view
from generic_trainer._run.live.view import View


class Cell:
    """The output of the cell that runs the component."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._handle: Any = None

    @staticmethod
    def is_possible() -> bool:
        """Whether this process is the kernel of a notebook."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        return getattr(shell, "kernel", None) is not None

    def show(self, view: View, progress: Progress) -> None:
        """Shows the run in the place of what was shown of it before."""
        from IPython.display import HTML, display

        page = render("cell.html", view=view)
        if progress.phase == "published":
            page += run_view(self._run_dir)
        elif progress.phase == "failed":
            page += f"What is left of the run is in {os.path.basename(self._run_dir)}.failed"
        if self._handle is None:
            self._handle = display(HTML(page), display_id=True)
        else:
            self._handle.update(HTML(page))
