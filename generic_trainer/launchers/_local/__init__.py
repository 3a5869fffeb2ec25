"""Workers as processes of this machine.

They are forked from a server that has imported TensorFlow and TFX, and has done nothing else, so
that the first worker starts as soon as the imports are done, and all others and those of later
attempts at once.

1. A worker that crashes, is killed or hangs ends the attempt; this process goes on.
2. SIGTERM is handed on; the workers have `preemption_grace_s` to save.
3. When this process is killed, so are the workers and all that they have started.
"""
