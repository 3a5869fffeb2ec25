"""Fixtures that every room may use."""

from __future__ import annotations

import os

# Before TensorFlow is imported: its start-up chatter would hide what a test has to say.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Before Ray is imported: a line that two workers print counts as the line of both.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
