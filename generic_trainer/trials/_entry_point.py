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
        if function != "run_fn" or not trial_classes(module):
            return None
        from generic_trainer.trials._run_fn import run_fn_of_module

        return run_fn_of_module(module)


TRIAL = _TrialClass()


def trial_classes(module: ModuleType) -> list[type[Any]]:
    """Returns the trial classes that an imported module defines."""
    from generic_trainer.trials._trial import Trial

    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Trial)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]


def chosen_class(module: ModuleType, entrypoint: str | None) -> type[Any]:
    """Returns the trial class that `entrypoint` names, such as "model_def:MyTrial".

    Without one, or where the module has nothing of that name, it is the only one that is defined.

    Raises:
        ModuleFileError: there are several, and none is named.
    """
    found = trial_classes(module)
    name = (entrypoint or "").rpartition(":")[2].rpartition(".")[2]
    named = getattr(module, name, None) if name else None
    if named in found:
        return named  # type: ignore[no-any-return]
    if len(found) > 1:
        names = ", ".join(sorted(trial.__name__ for trial in found))
        raise ModuleFileError(
            f"Module {module.__name__!r} defines several trials ({names}) and no run_fn that says "
            f"which to run: add `run_fn = run_fn_from_trial({found[-1].__name__})`, from "
            "generic_trainer.trials, or name one as `entrypoint` of the experiment configuration: "
            f'"{module.__name__}:{found[-1].__name__}"'
        )
    return found[0]
