"""Trial classes, as one of `generic_trainer`'s trainer APIs."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from generic_trainer.errors import ModuleFileError


class _TrialClass:
    """A module with a trial class in place of `run_fn`; see `TrainerApi`."""

    def may_define(self, tree: ast.Module, names: Collection[str]) -> bool:
        """Whether a class, or what it derives from, is called something with "Trial"."""
        return any(
            name.endswith("Trial")
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.bases
            for name in (node.name, *map(ast.unparse, node.bases))
        )

    def run_fn(self, module: ModuleType, function: str) -> Callable[[Any], Any] | None:
        trial_class = find_trial_class(module) if function == "run_fn" else None
        if trial_class is None:
            return None
        from generic_trainer.trials import run_fn_from_trial

        return run_fn_from_trial(trial_class)


TRIAL = _TrialClass()


def find_trial_class(module: ModuleType) -> type[Any] | None:
    """Returns the trial class that an imported module defines; None if it has none.

    Raises:
        ModuleFileError: it defines several.
    """
    from generic_trainer.trials._trial import Trial

    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Trial)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
    if len(found) > 1:
        names = ", ".join(sorted(trial.__name__ for trial in found))
        raise ModuleFileError(
            f"Module {module.__name__!r} defines several trials ({names}) and no run_fn that says "
            f"which to run: add `run_fn = run_fn_from_trial({found[-1].__name__})`, from "
            "generic_trainer.trials"
        )
    return found[0] if found else None
