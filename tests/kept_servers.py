"""Fork servers that tests share, so that not each of them imports TensorFlow.

No test calls this: a fixture of `conftest.py` has launchers and checkers take a server that an
earlier one closed, if it has imported the same in the same environment. A test whose subject is
the start, the environment or the end of a server asks for `no_kept_fork_servers`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from generic_trainer._core.cluster import TF_CONFIG
from generic_trainer._core.forkserver import ForkServer

_MOST_KEPT = 3  # each uses half a gigabyte of memory
_USERS = ("generic_trainer.launchers._local.engine", "generic_trainer.validation._checker")
# Prefixes of variables that modules read during their import. Only these must be equal in the
# server; others may differ for each child.
_READ_BY_IMPORTS = ("GOOGLE", "GRPC", "KERAS", "LD_", "OMP", "PYTHON", "TF_", "XLA")

keeps = False
_kept: list[_KeptServer] = []


class _KeptServer(ForkServer):
    """A server that another test may use after it was closed without children."""

    def __init__(self, preload: Any, **settings: Any) -> None:
        super().__init__(preload, **settings)
        self.settings = _settings(preload, **settings)
        self._running: set[str] = set()

    def start(self, name: str, *args: Any, **options: Any) -> int:
        self._running.add(name)
        return super().start(name, *args, **options)

    def next_end(self, timeout_s: float) -> tuple[str, int] | None:
        end = super().next_end(timeout_s)
        self._running.difference_update((end or ())[:1])
        return end

    def close(self) -> None:
        if not keeps or not self.is_alive or self._running:
            super().close()
        elif self not in _kept:
            _kept.append(self)
            while len(_kept) > _MOST_KEPT:
                ForkServer.close(_kept.pop(0))


@contextlib.contextmanager
def kept_fork_servers() -> Iterator[None]:
    """Lets launchers and checkers use the servers of each other within the context."""
    global keeps
    with contextlib.ExitStack() as stack:
        for user in _USERS:
            stack.enter_context(mock.patch(f"{user}.ForkServer", _server))
        keeps = True
        try:
            yield
        finally:
            keeps = False
            while _kept:
                _kept.pop().close()


def _server(preload: Any, **settings: Any) -> ForkServer:
    modules, others = _settings(preload, **settings)
    for server in reversed(_kept if keeps else []):
        if server.is_alive and server.settings[0] >= modules and server.settings[1] == others:
            _kept.remove(server)
            return server
    return _KeptServer(preload, **settings)


def _settings(
    preload: Any,
    *,
    preload_if_there: Any = (),
    environment: Mapping[str, str] | None = None,
    installed_packages: Any = None,
    output: Any = None,
) -> tuple[frozenset[str], Any]:
    """Returns the modules that a server imports, and what decides how they are imported."""
    variables = {
        name: value
        for name, value in (os.environ if environment is None else environment).items()
        if name.startswith(_READ_BY_IMPORTS) and name != TF_CONFIG
    }
    path = None if installed_packages is not None else list(sys.path)
    return frozenset((*preload, *preload_if_there)), (variables, installed_packages, path)
