"""Trial classes and scripts, as one of `generic_trainer`'s trainer APIs."""

import ast
import inspect
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from generic_trainer.user_code import installed_at

_IMPORTS = (ast.Import, ast.ImportFrom)
# What starts an experiment in a script.
_STARTS = ("init", "create", "learn_runner.run")


class _TrialClass:
    """A module with a trial class in place of `run_fn`, or a script; see `TrainerApi`.

    Attributes:
        contrib: the `tf.contrib` of `generic_trainer.estimator.tf1`.
    """

    contrib = "generic_trainer.trials.experiment.contrib"

    def may_define(self, tree: ast.Module, names: Collection[str]) -> bool:
        """Whether it is a script, or a class may be a trial.

        The name of such a class, or of its base, ends with "Trial", or the base comes from another
        file of the user's; or a class of such a name does.
        """
        origins = _origins(tree)
        names = [name for name in origins.values() if _is_users(name)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.bases:
                bases = [_origin(base, origins) for base in node.bases]
                names += [node.name, *bases]
                if any(base.partition(".")[0] != base and _is_users(base) for base in bases):
                    return True
        return any(name.endswith("Trial") for name in names) or _is_script(tree)

    def run_fn(self, module: ModuleType, function: str) -> Callable[[Any], Any] | None:
        if function != "run_fn":
            return None
        from generic_trainer.trials._trial import imported_trials, refuse_incomplete, trial_classes

        is_script = _is_script(ast.parse(inspect.getsource(module) or ""))
        if trial_classes(module) or (not is_script and imported_trials(module)):
            from generic_trainer.trials._run_fn import run_fn_of_module

            return run_fn_of_module(module)
        if not is_script:
            refuse_incomplete(module)
            return None
        from generic_trainer.trials._scripts.loading import run_fn_from_script

        return run_fn_from_script(module)


TRIAL = _TrialClass()


def _is_script(tree: ast.Module) -> bool:
    """Whether a module imports from this package and calls what starts an experiment."""
    origins = _origins(tree)
    if not any(origin.startswith("generic_trainer.") for origin in origins.values()):
        return False
    calls = [_origin(node.func, origins) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(f".{call}".endswith(f".{name}") for call in calls for name in _STARTS)


def _origins(tree: ast.Module) -> dict[str, str]:
    """Returns each imported name → what it is where it comes from, with its module."""
    origins = {}
    for node in ast.walk(tree):
        for alias in getattr(node, "names", ()) if isinstance(node, _IMPORTS) else ():
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            origins[alias.asname or alias.name] = f"{module}{alias.name}"
    return origins


def _is_users(name: str) -> bool:
    """Whether a dotted name is of a module of the user's."""
    top = name.partition(".")[0]
    return top != "generic_trainer" and installed_at(top) is None


def _origin(node: ast.expr, origins: Mapping[str, str]) -> str:
    """Returns the dotted name of an expression, by its name where it comes from."""
    first, dot, rest = ast.unparse(node).partition(".")
    return f"{origins.get(first, first)}{dot}{rest}"
