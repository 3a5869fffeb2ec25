"""Where an experiment runs, in the two ways in which that was said."""

from __future__ import annotations

import enum

__all__ = ["Mode", "runs_here"]


class Mode(enum.Enum):
    """Determined 0.12 said this; from 0.13 on it is `local=True, test=True`."""

    CLUSTER = "cluster"
    LOCAL = "local"


def runs_here(mode: Mode | None, local: bool, test: bool) -> bool:
    """Whether the experiment is tested in this process, rather than submitted.

    Raises:
        NotImplementedError: a whole experiment shall run here.
    """
    if mode is not None:
        return mode is Mode.LOCAL
    if local and not test:
        raise NotImplementedError(
            "local=True without test=True is not implemented: a local run trains one batch, to see "
            "that everything fits together. Pass local=True, test=True for that, or run the "
            "experiment in a pipeline or on a cluster."
        )
    return local
