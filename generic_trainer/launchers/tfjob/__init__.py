"""Workers as the pods of a Kubeflow TFJob.

1. The job and the user's code go to the pods by a folder on the pipeline root, and what the workers
   have to say at their end comes back the same way.
2. The training operator makes the pods and tells each of them its place by `TF_CONFIG`. It restarts
   none: its releases differ in which exit codes they restart, so the launcher decides, and starts
   all of them again when one was lost.
3. Tested with the real `kubernetes` client against a stand-in for the API server, not yet on a real
   cluster.
"""

from __future__ import annotations

from generic_trainer.launchers.tfjob._run import run_as_tfjob

__all__ = ["run_as_tfjob"]
