"""Trial classes and scripts, as one of `generic_trainer`'s trainer APIs."""

import ast
import inspect
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

# What starts an experiment in a script.
_STARTS = ("init", "create", "learn_runner.run")


class _TrialClass:
    """A module with a trial class in place of `run_fn`, or a script; see `TrainerApi`.

    Attributes:
        contrib: the `tf.contrib` of `generic_trainer.estimator.tf1`.
    """

    contrib = "generic_trainer.trials.experiment.contrib"

    def may_define(self, tree: ast.Module, names: Collection[str]) -> bool:
        """Whether the name of a class or of its base ends with "Trial"."""
        return _is_script(tree) or any(
            name.endswith("Trial")
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.bases
            for name in (node.name, *map(ast.unparse, node.bases))
        )

    def run_fn(self, module: ModuleType, function: str) -> Callable[[Any], Any] | None:
        if function != "run_fn":
            return None
        from generic_trainer.trials._trial import refuse_incomplete, trial_classes

        if trial_classes(module):
            from generic_trainer.trials._run_fn import run_fn_of_module

            return run_fn_of_module(module)
        if not _is_script(ast.parse(inspect.getsource(module) or "")):
            refuse_incomplete(module)
            return None
        from generic_trainer.trials._scripts.loading import run_fn_from_script

        return run_fn_from_script(module)


TRIAL = _TrialClass()


def _is_script(tree: ast.Module) -> bool:
    """Whether a module imports from this package and calls what starts an experiment."""
    nodes = list(ast.walk(tree))
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    ]
    if not any(module.startswith("generic_trainer.") for module in modules):
        return False
    calls = [f".{ast.unparse(node.func)}" for node in nodes if isinstance(node, ast.Call)]
    return any(call.endswith(f".{name}") for call in calls for name in _STARTS)
