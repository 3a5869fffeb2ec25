"""`trainer_fn`, of TFX's first trainer, as one of `generic_trainer`'s trainer APIs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

_NAME = "trainer_fn"


class _TrainerFn:
    """A module with `trainer_fn` in place of `run_fn`; see `TrainerApi`."""

    def may_define(self, tree: ast.Module, names: Collection[str]) -> bool:
        return _NAME in names

    def run_fn(self, module: ModuleType, function: str) -> Callable[[Any], None] | None:
        if _NAME not in vars(module):
            return None
        from generic_trainer.estimator._trainer_fn import run_fn_from_trainer_fn
        from generic_trainer.user_code import checked_function

        return run_fn_from_trainer_fn(checked_function(module, _NAME, "trainer_fn_args", "schema"))


TRAINER_FN = _TrainerFn()
