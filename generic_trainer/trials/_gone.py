"""Public names of Determined 0.12 to 0.38 that are missing here, and what takes their place.

The same table answers for modules and for objects, so that no program ends in a bare
`AttributeError`. It is the file beside this module: a module or class, names with spaces between
them, and what takes their place.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generic_trainer.errors import ConfigurationError


@functools.cache
def _gone() -> dict[tuple[str, str], str]:
    """Returns module or class, and name → what takes its place."""
    lines = Path(__file__).with_name("gone_names.tsv").read_text("utf-8").splitlines()
    table = (line.split("\t") for line in lines)
    return {(owner, name): successor for owner, names, successor in table for name in names.split()}


def successor_of(owner: str, name: str) -> str | None:
    """Returns what takes the place of a member of a module or class; None for other names."""
    return _gone().get((owner, name))


def naming_successors(
    module: str, load: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module of the trial APIs.

    Args:
        module: the `__name__` of `generic_trainer.trials` or of a module in it.
        load: the `__getattr__` that answers for all other names.
    """
    owner = module.replace("generic_trainer.trials", "det")

    def find(name: str) -> Any:
        if successor := successor_of(owner, name):
            # An AttributeError would lose its message in `from module import name`.
            raise ConfigurationError(f"{owner}.{name} is not available here; use {successor}")
        if load is not None:
            return load(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


class NamesSuccessors:
    """A class of which users may miss members; a subclass is known by the name of its base."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            for owner in [base.__name__ for base in type(self).__mro__]:
                owner = {"TrialRun": "EnvContext"}.get(owner, owner)
                if successor := successor_of(owner, name):
                    raise AttributeError(
                        f"{owner}.{name} is not available here; use {successor}", name=name
                    )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
