"""Messages between the fork server and its client: JSON after its length, with descriptors."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MAX_DESCRIPTORS = 8
_OWNER = struct.Struct("3i")  # process, user and group: unix(7)


def send(
    channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> None:
    """Sends one message of any size.

    Args:
        channel: a connected Unix stream socket.
        message: what JSON can hold.
        descriptors: at most eight, which the receiver gets copies of.

    Raises:
        OSError: the other end is gone.
    """
    text = json.dumps(message).encode()
    socket.send_fds(channel, [_LENGTH.pack(len(text))], descriptors)
    channel.sendall(text)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns the next message and its descriptors.

    Raises:
        ConnectionError: the other end is gone.
    """
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, _MAX_DESCRIPTORS)
    try:
        head += _exactly(channel, _LENGTH.size - len(head))
        message: dict[str, Any] = json.loads(_exactly(channel, *_LENGTH.unpack(head)))
    except ConnectionError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, list(descriptors)


def check_user(channel: socket.socket) -> None:
    """Checks that the other end belongs to the user of this process.

    Raises:
        ConnectionError: it does not.
    """
    owner = _OWNER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _OWNER.size))[1]
    if owner != os.geteuid():
        raise ConnectionError(f"the other end of the fork server's socket is of user {owner}")


def _exactly(channel: socket.socket, count: int) -> bytes:
    """Returns so many bytes; a stream socket gives them in parts."""
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(count - len(parts))
        if not part:
            raise ConnectionError("the other end of the fork server's socket is gone")
        parts += part
    return bytes(parts)
