"""Fixtures that every room may use."""

from __future__ import annotations

import os

# Before TensorFlow is imported: its start-up chatter would hide what a test has to say.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
