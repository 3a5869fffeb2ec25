"""Jobs that a service runs on other machines: Kubernetes, Vertex AI.

1. The job and the user's code go to the workers by a folder on the pipeline root, and what the
   workers have to say at their end comes back the same way.
2. The service starts the workers and tells each of them its place. It restarts none: which
   failure is worth another attempt is decided here, alike for all services, and then all workers
   start again, as a new job of the service.
3. The log of the first worker is shown while it is written; the others' are the service's affair.
4. SIGTERM has the service end the workers, which then have `preemption_grace_s` to save.
5. When this process is killed, the job goes on: give it a `timeout_s`, which the service keeps an
   eye on as well.
"""
