"""Whether a module defines the function, as far as its source tells."""

from __future__ import annotations

import ast

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code._archive import Bundle
from generic_trainer.user_code._missing import explain_missing
from generic_trainer.user_code._parse import defined_names, parse
from generic_trainer.user_code._paths import join
from generic_trainer.user_code._quote import quote_syntax_error
from generic_trainer.user_code._trainer_fn import has_trainer_fn_instead
from generic_trainer.user_code._trial_class import RUN_FN, may_define_trial

__all__ = ["check_definition"]

# A module that uses one of these can define names that its source does not show.
_MAKERS_OF_NAMES = frozenset({"__getattr__", "exec", "globals", "modules", "setattr", "vars"})


def check_definition(bundle: Bundle, module: str, function: str) -> None:
    """Raises `ModuleFileError` if importing `module` can surely not give `function`.

    A pipeline would otherwise find out after the components before the trainer have run.
    """
    stem = module.replace(".", "/")
    candidates = (f"{stem}/__init__.py", f"{stem}.py")
    file = next((file for file in candidates if file in bundle.files), None)
    if file is not None:
        _check(bundle.files[file], join(bundle.origin, file), function)


def _check(source: bytes, path: str, function: str) -> None:
    try:
        tree, names = parse(source, path), defined_names(source, path)
    except (SyntaxError, ValueError) as error:
        quoted = quote_syntax_error(error, path)
        raise ModuleFileError(f"{path} is not valid Python.\n{quoted}") from error
    if function in names or has_trainer_fn_instead(function, names):
        return
    if function == RUN_FN and may_define_trial(tree):
        return
    if not any(_may_define(node, function) for node in ast.walk(tree)):
        raise ModuleFileError(explain_missing(function, path, names))


def _may_define(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.Global):
        return name in node.names
    mentioned = (
        getattr(node, "id", None),  # Name
        getattr(node, "attr", None),  # Attribute
        getattr(node, "name", None),  # FunctionDef
    )
    return not _MAKERS_OF_NAMES.isdisjoint(mentioned)
