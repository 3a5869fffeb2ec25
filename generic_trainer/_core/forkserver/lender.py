"""Fork servers that outlive who asks for them: a process has them, and lends forks to others."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading

from generic_trainer._core.forkserver import messages
from generic_trainer._core.forkserver.client import ForkServer, Preload

_SERVE = "generic_trainer._core.forkserver.server:serve_as_child"
# How long who has called may take to say what it wants.
_ASK_TIMEOUT_S = 10.0
# How long ago what was lent may have ended without its end being told yet.
_END_TIMEOUT_S = 0.5


class Lender:
    """Fork servers of this process, from which other processes of this user have theirs forked.

    1. What was imported for one of them serves all that ask for no more.
    2. A server that was lent ends with the process that has asked for it, and all end with this
       process.
    3. Linux only: its socket has a name, and is no file.

    Attributes:
        address: where it is asked, on this machine.
    """

    def __init__(self) -> None:
        """Begins to lend, from a thread; nothing is imported yet.

        Raises:
            OSError: this is not Linux.
        """
        self.address = f"\0generic-trainer-{secrets.token_hex(16)}"
        self._servers: list[ForkServer] = []
        self._count = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen()
        threading.Thread(target=self._serve, name="fork server lender", daemon=True).start()

    def _serve(self) -> None:
        while True:
            channel, _ = self._socket.accept()
            # Who is refused imports by itself, and says what is wrong.
            with channel, contextlib.suppress(Exception):
                self._lend(channel)

    def _lend(self, channel: socket.socket) -> None:
        messages.check_user(channel)
        channel.settimeout(_ASK_TIMEOUT_S)
        request, _ = messages.receive(channel)
        channel.settimeout(None)
        environment = request["environment"]
        server = self._server(Preload(**request["imports"]), environment)
        self._count += 1
        server.start(
            f"server {self._count}",
            _SERVE,
            {},
            stdout=1,
            stderr=2,
            descriptors=[channel.fileno()],
            environment=environment,
        )

    def _server(self, imports: Preload, environment: dict[str, str]) -> ForkServer:
        for server in self._servers:
            if server.is_alive and server.imports.cover(imports):
                return server
        for server in list(self._servers):  # each holds half a gigabyte
            with contextlib.suppress(ConnectionError):
                while server.has_children and server.next_end(_END_TIMEOUT_S):
                    pass
            if not (server.is_alive and server.has_children):
                self._servers.remove(server)
                server.close()
        self._servers.append(ForkServer.of(imports, environment))
        return self._servers[-1]
