"""Facts about the user's code from the source of its bundle, without running it."""

import ast
import contextlib
import itertools

from generic_trainer.user_code._archive import UserCode, read_bundle
from generic_trainer.user_code._collect import imported_names, parse

_MODEL_ANALYSIS = "tensorflow_model_analysis"
_OF_ESTIMATORS = ("estimator", "eval_input_receiver_fn", "export_dir_base")
# Statements whose parts may or may not be executed.
_DEFINITIONS = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Lambda)
_BRANCHES = (ast.BoolOp, ast.For, ast.If, ast.IfExp, ast.Match, ast.Try, ast.While)


def defines_function(code: UserCode, name: str) -> bool:
    """Whether the module defines, at its top level, a function that takes one argument.

    False also if its source does not show that, because it has no bundle or imports the name.

    Raises:
        ModuleFileError: the bundle is missing or damaged.
    """
    if code.bundle is None:
        return False
    bundle = read_bundle(code)
    path = bundle.file_of(code.module)
    return path is not None and any(
        isinstance(node, ast.FunctionDef) and node.name == name and _takes_one(node.args)
        for node in parse(bundle.files[path], path).body
    )


def imported_packages(code: UserCode) -> set[str]:
    """Returns the top-level names that the files of a bundle import, including its own modules.

    Empty without a bundle.

    Raises:
        ModuleFileError: the bundle is missing or damaged.
    """
    if code.bundle is None:
        return set()
    names: set[str] = set()
    for path, source in read_bundle(code).files.items():
        if path.endswith(".py"):
            with contextlib.suppress(SyntaxError, ValueError):  # a template, or for another Python
                names |= imported_names(parse(source, path))
    return names


def _takes_one(arguments: ast.arguments) -> bool:
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    is_free = most >= 1 or arguments.vararg is not None
    return least <= 1 and is_free and None not in arguments.kw_defaults


def wrong_definition(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """Returns the definition of a function that cannot be called with one argument.

    None also if decorators or other statements may give the name another value.
    """
    fields = ("id", "name", "asname")
    match [node for node in ast.walk(tree) if name in [getattr(node, key, "") for key in fields]]:
        case [ast.FunctionDef(decorator_list=[]) as node] if node in tree.body:
            return None if _takes_one(node.args) else node
    return None


def removed_calls(tree: ast.Module, function: str) -> list[ast.Call]:
    """Returns the calls by a function of APIs that TensorFlow Model Analysis has removed.

    These are `tfma.export`, and `tfma.EvalSharedModel` with an estimator. Only unconditional calls
    count, in the function itself or in functions of the module that it calls.
    """
    imports = [node.names for node in ast.walk(tree) if isinstance(node, ast.Import)]
    names = {
        each.asname or each.name
        for each in itertools.chain.from_iterable(imports)
        if each.name == _MODEL_ANALYSIS
    }
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found: list[ast.Call] = []
    nodes: list[ast.AST] = list(functions.pop(function).body) if function in functions else []
    while nodes:
        node = nodes.pop()
        if isinstance(node, _DEFINITIONS + _BRANCHES):
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in functions:
            nodes.extend(functions.pop(called).body)
        module, _, name = called.partition(".")
        keywords = {keyword.arg for keyword in node.keywords}
        is_removed = name.startswith("export.") or (
            name == "EvalSharedModel" and not keywords.isdisjoint(_OF_ESTIMATORS)
        )
        if module in names and is_removed:
            found.append(node)
    return sorted(found, key=lambda call: call.lineno)
