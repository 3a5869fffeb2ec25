"""Which runs may go on from each other's checkpoints: those that would train the same."""

from __future__ import annotations

from generic_trainer.run_key._key import RunKey, run_key, with_run_key

__all__ = ["RunKey", "run_key", "with_run_key"]
