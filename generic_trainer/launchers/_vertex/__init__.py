"""Workers as the replicas of a Vertex AI custom job; see `_remote`.

1. Worker pool 0 is the one replica that acts as the chief, pool 1 the other workers, and pool 2 the
   parameter servers, as Vertex AI has it. The job ends with the first replica.
2. A replica finds its place in `CLUSTER_SPEC`, of which its program makes `TF_CONFIG`.
3. Vertex AI describes the end of a replica in a single sentence. Workers write details into the
   folder of the job. Their logs are in Vertex AI's console, to which the log of the run has a link.
4. A new job follows one that was preempted, and goes on from the last checkpoint; Vertex AI's own
   retries are off.
5. Tested with the real client against a stand-in that speaks gRPC; not yet on Vertex AI.
"""
