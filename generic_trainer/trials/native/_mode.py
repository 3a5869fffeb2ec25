"""Where an experiment runs, in the ways in which that was said."""

from __future__ import annotations

import enum

__all__ = ["Mode", "runs_here"]

# As the first release of 0.12 had it.
_FIRST_NAMES = {"submit": "cluster", "test": "local"}


class Mode(enum.Enum):
    """Determined 0.12 said this, first as SUBMIT and TEST; later it is `local=True, test=True`.

    ``Mode("submit")`` and ``Mode("test")`` are modes too.
    """

    CLUSTER = "cluster"
    LOCAL = "local"
    SUBMIT = "cluster"
    TEST = "local"

    @classmethod
    def _missing_(cls, value: object) -> Mode | None:
        return cls(_FIRST_NAMES[str(value)]) if value in _FIRST_NAMES else None


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
