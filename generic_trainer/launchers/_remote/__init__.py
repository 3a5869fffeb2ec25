"""Jobs that a service runs on other machines: Kubernetes, Vertex AI.

1. The job and the user's code reach the workers through a folder on the pipeline root. Workers
   write there how they ended.
2. The service starts the workers and gives each its place in the cluster. It restarts none: this
   package decides, alike for all services, which failure deserves another attempt. Each attempt is
   a new job of the service, with all workers.
3. On Kubernetes the log of the first worker is shown while it is written. The service keeps the
   others.
4. After SIGTERM the service ends the workers, which have `preemption_grace_s` to save.
5. A service that does not answer is waited for, as long as `timeout_s` allows. A job that could not
   be deleted meanwhile is deleted before the next attempt, or at the end of the run.
6. If this process is killed, the job goes on until `timeout_s`, which the service enforces too.
"""
