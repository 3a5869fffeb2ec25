"""The live run: how a run is, shown while it trains and kept in its report.

Everything here reads what `_core.progress` has written, and nobody waits for it.
"""

from generic_trainer._run.live.comparison import compared_models, run_of
from generic_trainer._run.live.display import LiveRun
from generic_trainer._run.live.page import REPORT_FILE, run_sections, run_view

__all__ = ["REPORT_FILE", "LiveRun", "compared_models", "run_of", "run_sections", "run_view"]
