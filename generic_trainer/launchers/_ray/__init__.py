"""Workers on a Ray cluster, started and placed by Ray Train.

1. A task on the cluster submits the job to Ray Train, so that a driver outside the cluster
   (`ray://...`) is enough. Placement and log streaming are Ray's.
2. Each of Ray Train's workers gets its place in the cluster by `TF_CONFIG`, and trains in a child
   process, as the launcher `local` does: a crash, a hang or a lack of memory is told as what it is.
3. Ray would retry every failure; it is told not to, and lost workers alone are replaced from here.
4. SIGTERM stops the run; what Ray does with SIGTERM on its nodes is Ray's affair.
5. The executor's process is not the one that is connected: see `driver`.
"""
