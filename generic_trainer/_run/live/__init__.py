"""The live view: progress of a run, shown while it trains and kept in its report.

It only reads the files of `_core.progress`; training never waits for it.
"""

from generic_trainer._run.live.live_run import live_run
from generic_trainer._run.live.report import REPORT_FILE, run_of, run_sections, run_view

__all__ = ["REPORT_FILE", "live_run", "run_of", "run_sections", "run_view"]
