"""Workers on a Ray cluster, started and placed by Ray Train.

1. An actor on the cluster directs the training, so that a driver outside the cluster (`ray://...`)
   is enough: it submits the job to Ray Train, and keeps the `Attempts`. Placement and log streaming
   are Ray's.
2. Each of Ray Train's workers gets its place in the cluster by `TF_CONFIG`, and trains in a child
   process, as the launcher `local` does: a crash, a hang or a lack of memory is told as what it is.
3. Where such a child is lost, all workers start another one each, forked from a process that has
   imported TensorFlow: Ray is told nothing. Where a worker is lost, or its node, Ray Train replaces
   all of them. Where the actor or Ray's controller is lost, the job is submitted again. Whether
   there is another attempt is decided here in each case; Ray Train would retry every failure.
4. SIGTERM stops the run; what Ray does with SIGTERM on its nodes is Ray's affair.
5. The executor's process is not the one that is connected: see `driver`.
"""
