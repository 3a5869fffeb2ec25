"""Processes forked from a server process that has imported TensorFlow already.

Importing TensorFlow and TFX takes seconds, but sets up nothing that a fork would lose: the threads
that it starts are idle. The server does nothing but these imports, so its children behave like new
processes, and start in milliseconds. The launchers run their workers in such children, and
validation runs its checks.

`client` is used in the requesting process; `server` runs in the server process. They exchange JSON
messages and file descriptors over a Unix socket. When the socket closes, even after a crash of the
requesting process, all children are killed with their descendants.
"""

from generic_trainer._core.forkserver.client import ForkServer

__all__ = ["ForkServer"]
