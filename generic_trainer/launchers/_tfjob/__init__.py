"""Workers as the pods of a Kubeflow TFJob.

1. The job and the user's code go to the pods by a folder on the pipeline root, and what the workers
   have to say at their end comes back the same way.
2. The training operator makes the pods and tells each of them its place by `TF_CONFIG`. It restarts
   none: its releases differ in which exit codes they restart, so all of them are started again
   from here when one was lost.
3. The log of the first worker is shown while it is written; the others' are Kubernetes' affair.
4. SIGTERM deletes the TFJob, whose pods then have `preemption_grace_s` to save.
5. When this process is killed, the TFJob goes on: give it a `timeout_s`, which Kubernetes keeps an
   eye on as well.
6. Tested with the real `kubernetes` client against a stand-in for the API server, not yet on a real
   cluster.
"""
