"""Workers as processes of this machine.

They are forked from a nursery: a process that has imported TensorFlow and TFX, and has done
nothing else, so that the first worker starts as soon as the imports are done, and all others and
those of later attempts at once.
"""

from __future__ import annotations

from generic_trainer.launchers.local._run import run_local

__all__ = ["run_local"]
