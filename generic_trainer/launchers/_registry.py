"""Launchers by name: those of this package, and those that other distributions register.

::

    # setup.py
    entry_points={"generic_trainer.launchers": ["slurm = my_package.launcher:SLURM"]}

    # my_package/launcher.py: a module that is cheap to import
    SLURM = Launcher(run=functools.partial(run_by_service, Slurm), options=SlurmOptions)

Only the launcher that a distribution names is imported, on every machine that reads that: where the
pipeline is built, where the executor runs, and in the workers.
"""

import functools
import importlib.metadata
import pkgutil
from typing import Any

from generic_trainer._core.texts import describe, did_you_mean, shown
from generic_trainer.errors import ConfigurationError

GROUP = "generic_trainer.launchers"
# A table instead of entry points: workers may run a copy of this package that is not installed.
_OWN = {
    "in_process": "_launch:IN_PROCESS",
    "local": "_launch:LOCAL",
    "ray": "_ray:RAY",
    "tfjob": "_kubernetes.operators:TFJOB",
    "trainjob": "_kubernetes.operators:TRAINJOB",
    "vertex": "_vertex:VERTEX",
}


@functools.cache
def find_launcher(name: str) -> Any:
    """Returns the `Launcher` of a name.

    Raises:
        ConfigurationError: there is none, or it cannot be loaded.
    """
    if name in _OWN:
        return _load(_OWN[name])
    others = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if name not in others:
        known = [*_OWN, *sorted(others.keys() - _OWN.keys())]
        listed = " or ".join(", ".join(map(repr, known)).rsplit(", ", 1))
        raise ConfigurationError(
            f"launcher must be {listed}, got {shown(name)}{did_you_mean(name, known)}; other "
            f"distributions that are installed here add theirs by an entry point of {GROUP!r}"
        )
    try:
        launcher = others[name].load()
        if not hasattr(launcher, "refused"):
            raise TypeError(f"expected a Launcher(...), got {describe(launcher)}")
        return launcher
    except Exception as error:  # any error of another package
        raise ConfigurationError(
            f"launcher {name!r} of {others[name].value} cannot be loaded ({type(error).__name__}: "
            f"{error}): update or uninstall the distribution that provides it"
        ) from error


def around_training(run_dir: str) -> Any:
    """Returns the context of any training, which shows its progress in a pod that asks for that."""
    return _load("_kubernetes.status:trainjob_status")(run_dir)


def _load(path: str) -> Any:
    return pkgutil.resolve_name(f"{__package__}.{path}")
