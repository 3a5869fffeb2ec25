"""Imports on first use: public names (PEP 562), and what only TFX brings."""

import contextlib
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from generic_trainer.errors import ConfigurationError

# The packages that the extra `tfx` brings.
OF_TFX: tuple[str, ...] = "tfx", "tfx_bsl", "tensorflow_transform", "tensorflow_model_analysis"
OF_TFX += "tensorflow_data_validation", "apache_beam", "ml_metadata"
TFX_EXTRA = "pip install 'generic-trainer[tfx]'"


def is_installed(distribution: str) -> bool:
    """Returns whether a distribution is installed.

    A module that can be found is no proof: any folder on `sys.path` is one, such as the `~/tfx`
    that TFX's tutorials make.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(distribution))
    return False


@contextlib.contextmanager
def needing_tfx(subject: str) -> Iterator[None]:
    """Explains that a package which comes with TFX is not installed.

    Args:
        subject: what needs it.

    Raises:
        ConfigurationError: the import of one of `OF_TFX` failed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OF_TFX:
            raise
        raise ConfigurationError(f"{subject} needs TFX ({error}): {TFX_EXTRA}") from error


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package whose names live in other modules.

    Args:
        package: the package's `__name__`. Other names of its `__all__` are modules in it.
        homes: module of the package, or absolute name of one elsewhere → the names that it defines,
            with spaces between them.
    """
    root = package.partition(".")[0]
    home_of = {
        name: home if home.startswith(f"{root}.") else f"{package}.{home}"
        for home, names in homes.items()
        for name in names.split()
    }

    def load(name: str) -> Any:
        if name in home_of:
            with needing_tfx(name):
                return getattr(importlib.import_module(home_of[name]), name)
        if name in sys.modules[package].__all__:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted({*home_of, *sys.modules[package].__all__})
