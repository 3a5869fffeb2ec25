"""Workers as processes of this machine.

They are forked from a server that only imports TensorFlow and TFX: the first worker starts as soon
as the imports are done, all others and those of later attempts start at once.

1. A worker that crashes, is killed or hangs ends the attempt; this process goes on.
2. SIGTERM is forwarded; the workers have `preemption_grace_s` to save.
3. When this process is killed, so are the workers and their descendants.
"""
