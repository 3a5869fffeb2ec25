"""Workers on a Ray cluster, started, placed and replaced by Ray Train.

1. A task on the cluster submits the job to Ray Train, so that a driver outside the cluster
   (`ray://...`) is enough. Placement, failure policy and log streaming are Ray's.
2. Each of Ray Train's workers gets its place in the cluster by `TF_CONFIG`, and trains in a child
   process, as the launcher `local` does: a crash, a hang or a lack of memory is told as what it is.
3. Ray retries every failure; here only lost workers are replaced, and other failures end the run.
"""

from __future__ import annotations

from generic_trainer.launchers.ray._run import run_on_ray

__all__ = ["run_on_ray"]
