"""Processes forked from one that has imported TensorFlow already.

Importing TensorFlow and TFX takes seconds and starts nothing that a fork would miss. A server
process does it once and nothing else; a child of it is as good as a new process and there in
milliseconds. The launchers run their workers in such children, and validation its checks.

`client` is the end of the process that asks, `server` runs in the other one. They talk over a Unix
socket in messages of JSON, each after its length, with file descriptors beside them (`messages`).
When the socket closes, however the process that asked has ended, all children are killed, with all
that they have started. What is to outlive that process another one starts, and lends (`lender`).
"""

from generic_trainer._core.forkserver.client import ForkServer, fork_server, kept_fork_servers
from generic_trainer._core.forkserver.lender import Lender

__all__ = ["ForkServer", "Lender", "fork_server", "kept_fork_servers"]
