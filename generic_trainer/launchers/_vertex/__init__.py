"""Workers as the replicas of a Vertex AI custom job; see `_remote`.

1. Worker pool 0 is the one replica that acts as the chief, pool 1 the other workers, and pool 2 the
   parameter servers, as Vertex AI has it. When the first replica has ended, so has the job.
2. A replica finds its place in `CLUSTER_SPEC`, of which `TF_CONFIG` is made.
3. Vertex AI says in a sentence alone how a replica has ended; what the workers themselves have to
   say comes by the folder of the job, as does the log of the first one.
4. A job that was preempted is followed by a new one, which goes on from the last checkpoint; Vertex
   AI's own retries are off.
5. Tested with the real client against a stand-in that speaks gRPC, not yet on Vertex AI.
"""
