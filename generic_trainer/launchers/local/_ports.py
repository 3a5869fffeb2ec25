"""Free ports of this machine, for the servers of a cluster."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["reserved_ports"]

_HOST = "127.0.0.1"


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[str]]:
    """Yields addresses that no other program is given while the context is open.

    The sockets are bound and do not listen. TensorFlow's servers can bind to the same ports
    because they ask for `SO_REUSEPORT` as well, where `TF_GRPC_REUSE_PORT` is set.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind((_HOST, 0))
        yield [f"{_HOST}:{each.getsockname()[1]}" for each in sockets]
