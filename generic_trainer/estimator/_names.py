"""The public names of tf.estimator, which load on first use."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator._importing import find_package, prepare

__all__ = ["estimator_names"]

_IMPORT = re.compile(r"^from (tensorflow_estimator\.python\S+) import (\w+)(?: as (\w+))?", re.M)
_NO_TPU = (
    "TensorFlow has removed what TPU estimators ran on. Train a Keras model under "
    "tf.distribute.TPUStrategy in run_fn instead."
)
# Start of a name → why there is none.
_GONE = {
    "BoostedTrees": (
        "TensorFlow 2.13 took boosted trees out of tf.estimator. Train those of "
        "tensorflow_decision_forests in run_fn instead."
    ),
    "TPU": _NO_TPU,
    "tpu": _NO_TPU,
}


def estimator_names(
    module: str,
    *listings: str,
    also: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a module that has tf.estimator's names.

    Args:
        module: the module's `__name__`.
        listings: folders of `tensorflow_estimator/_api`, each with a generated `__init__.py` that
            imports every public name from where it is defined. An earlier listing comes before a
            later one.
        also: further public name → "module:name" of where it is defined.
    """

    @functools.cache
    def homes() -> dict[str, str]:
        found = dict(also or {})
        for listing in reversed(listings):
            found.update(_read(listing))
        return found

    def load(name: str) -> Any:
        for start, reason in _GONE.items():
            if name.startswith(start):
                raise ConfigurationError(f"There is no {module}.{name}: {reason}")
        # Python asks for names of its own, such as __path__, which need no look at the package.
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, original = homes()[name].partition(":")
        prepare()
        return getattr(importlib.import_module(home), original)

    return load, lambda: sorted({*homes(), *getattr(sys.modules[module], "__all__", ())})


def _read(listing: str) -> dict[str, str]:
    """Returns public name → "module:name" of where it is defined."""
    source = Path(find_package(), "_api", listing, "__init__.py").read_text(encoding="utf-8")
    return {public or name: f"{home}:{name}" for home, name, public in _IMPORT.findall(source)}
