"""Syntax trees of user code: the files that a module needs, and other facts about it."""

import ast
import contextlib
import itertools
import os
import symtable
import textwrap
import warnings
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import decode_source
from pathlib import Path

from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.user_code import _archive
from generic_trainer.user_code._errors import quote_syntax_error

# Calls that import or look for the module that their first argument names: those of importlib, and
# runpy.run_module, pkgutil.resolve_name, pydoc.locate.
_IMPORTERS = frozenset(
    {"import_module", "__import__", "find_spec", "run_module", "resolve_name", "locate"}
)
# Many classes have a method of such a name: it counts in files that import its module.
_OF_MODULES = {"find_spec": "importlib", "resolve_name": "pkgutil", "locate": "pydoc"}
# And those that read files of the package: importlib.resources.files, pkgutil.get_data.
_IMPORTING_CALLS = _IMPORTERS | {"files", "get_data"}
# And those that load a file, whatever its name is: any module beside may be meant.
_LOADERS = frozenset({"spec_from_file_location", "run_path", "SourceFileLoader"})
_NOTED = ".noted"  # the folder of a bundle from which nothing is imported
_MODEL_ANALYSIS = "tensorflow_model_analysis"
# Arguments that no API of it takes any more.
_OF_ESTIMATORS = ("estimator", "eval_input_receiver_fn", "export_dir_base")
# Statements whose parts may or may not be executed.
_DEFINITIONS = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Lambda)
_BRANCHES = (ast.BoolOp, ast.For, ast.If, ast.IfExp, ast.Match, ast.Try, ast.While)


def collect(folder: str, root: str) -> dict[str, bytes]:
    """Reads the files that importing `root` may need, as bundles have them.

    1. The files that `root` imports, and what they import.
    2. If a module file, or a module beside it, composes the name of a module at run time, all
       modules beside it whose names may be meant, as in the wheel that TFX makes of the folder.
       They may be anything, such as scripts that do not parse: only needed files can have problems.
    3. For the digest alone: modules beside it that come from the folder above, `modules.utils`.

    Args:
        folder: the folder of the user's code.
        root: the entry of the folder to start from, `trainer.py` or a package's folder.

    Returns:
        Path relative to the folder, with forward slashes → contents.

    Raises:
        ModuleFileError: files cannot be read or have a syntax error; lists all of them.
        OSError: the folder cannot be listed.
    """
    collector = _Collector(folder)
    collector.follow(root)
    raise_problems(ModuleFileError, f"Cannot pack the code in {folder}", collector.problems)
    return collector.files


class _Collector:
    def __init__(self, folder: str) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []
        self._starts: set[str] = set()  # of the names of modules that are composed at run time
        self._is_guessing = False
        self._seen = _archive.NEVER_PACKED
        self._folder = folder
        self._entries = {entry.name: entry for entry in _archive.open_node(folder).iterdir()}

    def follow(self, root: str) -> None:
        entry = _archive.open_node(os.path.join(self._folder, root))
        self._seen |= {root.partition(".")[0]}
        self._follow(self._add(self._walk(root, entry) if entry.is_dir() else {root: entry}))
        if entry.is_dir() or _archive.lies_in_environment(self._folder):
            return
        self._is_guessing = True
        tried = set[str]()
        while starts := self._starts - tried:
            start = max(starts)
            tried.add(start)
            names = self._add({name: self._entries[name] for name in self._guesses(start)})
            if start:  # otherwise they may be anything, and import large packages
                self._follow(names)
        self._note_members()

    def _follow(self, names: set[str]) -> None:
        while names := names - self._seen:
            self._seen |= names
            names = set().union(*(self._add(self._find(name)) for name in sorted(names)))

    def _note_members(self) -> None:
        """Reads the modules of the folder that are imported as those of a package, and theirs."""
        noted: dict[str, _archive.Node] = {}
        members = set[str]().union(*map(self._members, self.files))
        while members:
            found = self._find(members.pop()) | self._find("__init__")
            for path in sorted(found.keys() - noted.keys()):
                # Runs may write into a package, and it may have large data: its code alone counts.
                with contextlib.suppress(OSError):
                    if path.endswith(".py"):
                        self.files[f"{_NOTED}/{path}"] = found[path].read_bytes()
                        members.update(self._members(f"{_NOTED}/{path}"))
            noted |= found

    def _members(self, path: str) -> Iterator[str]:
        source = self.files[path] if path.endswith(".py") else b""
        is_member = os.path.dirname(path) == _NOTED
        with contextlib.suppress(SyntaxError, ValueError):  # not Python, or reported already
            found = imported_members(parse(source, path), self._folder.split("/"), is_member)
            yield from (name for top, name in found if top not in _archive.NEVER_PACKED)

    def _guesses(self, start: str) -> list[str]:
        """Returns the names of files beside the module file whose modules may be meant."""
        files = {name: name.removesuffix(".py") for name in sorted(self._entries)}
        return [
            name
            for name, module in files.items()
            if module != name
            and module.startswith(start)
            and not module.startswith("__")
            and "." not in module
            and module not in self._seen
            and _archive.installed_at(module) is None  # which it would replace
            and self._entries[name].is_file()
        ]

    def _find(self, name: str) -> dict[str, _archive.Node]:
        """Looks in the order of Python's own finder: package, module, namespace package."""
        # The neighbours of a module file in site-packages are all installed packages.
        if _archive.lies_in_environment(self._folder) and _archive.installed_at(name) is not None:
            return {}
        entry = self._entries.get(name)
        folder = entry if entry is not None and entry.is_dir() else None
        if folder and folder.joinpath("__init__.py").is_file():
            return self._walk(name, folder)
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            file = self._entries.get(name + suffix)
            if file is not None and file.is_file():
                return {name + suffix: file}
        if folder is None or _archive.installed_at(name) is not None:
            return {}
        files = self._walk(name, folder)
        return files if any(path.endswith(".py") for path in files) else {}

    def _walk(self, path: str, folder: _archive.Node) -> dict[str, _archive.Node]:
        try:
            return dict(walk(path, folder, ()))
        except OSError as error:
            self._note(f"{os.path.join(self._folder, path)} cannot be listed: {error}")
            return {}

    def _note(self, problem: str) -> None:
        if not self._is_guessing:
            self.problems.append(problem)

    def _add(self, nodes: dict[str, _archive.Node]) -> set[str]:
        """Reads the files and returns the names that they import."""
        names: set[str] = set()
        for path, node in nodes.items():
            try:
                self.files[path] = node.read_bytes()
            except OSError as error:
                self._note(f"{os.path.join(self._folder, path)} cannot be read: {error}")
            else:
                names |= self._imports(path) if path.endswith(".py") else set()
        return names

    def _imports(self, path: str) -> set[str]:
        where = os.path.join(self._folder, path)
        try:
            tree = parse(self.files[path], where)
        except (SyntaxError, ValueError) as error:
            # A package may have templates and files for other Pythons, which are never imported.
            if "/" not in path:
                quoted = textwrap.indent(quote_syntax_error(error, where), "   ")
                self._note(f"{where} is not valid Python.\n{quoted}")
            return set()
        if "/" not in path:  # a package composes the names of its own modules
            self._starts |= composed_names(tree)
        return imported_names(tree)


def walk(
    path: str, folder: _archive.Node, above: tuple[str, ...]
) -> Iterator[tuple[str, _archive.Node]]:
    """Yields path and node of each file below a folder, but bytecode and hidden ones."""
    # Only a local folder can hold a link to a folder above it.
    here = str(folder.resolve()) if isinstance(folder, Path) else path
    if here in above:
        return
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from walk(f"{path}/{entry.name}", entry, (*above, here))
        elif entry.is_file() and not entry.name.endswith((".pyc", ".pyo")):
            yield f"{path}/{entry.name}", entry


def imported_names(tree: ast.AST) -> set[str]:
    """Returns the top-level names of all absolute imports, anywhere in the file.

    1. `import a.b` and `from a.b import c` give "a"; relative imports give nothing.
    2. Calls such as `importlib.import_module("a.b")` give "a"; so does a name that is composed
       at run time, if the part before its first dot is constant: `import_module(f"a.{kind}")`.
    """
    return {
        name.partition(".")[0] for node in ast.walk(tree) for name in names_of(node) if name.strip()
    }


def imported_members(tree: ast.AST, folder: list[str], is_member: bool) -> set[tuple[str, str]]:
    """Returns what a file may import from its package: ("a", "c") of `import a.b.c` in `…/a/b`."""
    found = set()
    for node in ast.walk(tree):
        names = list(names_of(node))
        if isinstance(node, ast.ImportFrom) and node.level <= is_member:
            module = ".".join(filter(None, (folder[-1] if node.level else "", node.module)))
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in (name.split(".") for name in names):
            ends = (end for end in range(1, len(name)) if name[:end] == folder[-end:])
            found |= {(name[0], name[end]) for end in ends}
    return found


def names_of(node: ast.AST) -> Iterator[str]:
    """Yields the dotted names of modules that a node imports; not those of relative imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield node.module or ""
    elif isinstance(node, ast.Call) and node.args:
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))  # of a Name
        if called in _IMPORTING_CALLS:
            start, is_whole = _start_of_module(node.args[0])
            yield start if is_whole else ""


def composed_names(tree: ast.AST) -> set[str]:
    """Returns the starts of the names of top-level modules that a file composes and imports.

    `import_module("model_" + kind)` gives "model_"; `import_module(kind)` gives "", as does any
    other use of such a function, such as `map(import_module, kinds)`, and of one that loads a file.
    """
    nodes = list(ast.walk(tree))
    imported = imported_names(tree)
    importers = _IMPORTERS - {name for name, top in _OF_MODULES.items() if top not in imported}
    starts = set()
    called = set()
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            called.add(node.func)
            start, is_whole = _start_of_module(node.args[0])
            if _name(node.func) in importers and not is_whole:
                starts.add(start)
    others = (_name(node) for node in nodes if node not in called)
    if any(name in importers for name in others) or any(_name(n) in _LOADERS for n in nodes):
        starts.add("")
    return starts


def _name(node: ast.AST) -> str:
    """Returns the name of a function, or one that is imported under another; else ""."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name, asname=str()):
            return name
    return ""


def _start_of_module(argument: ast.expr) -> tuple[str, bool]:
    """Returns the constant start of a module's name, and whether its first part is whole."""
    start, is_whole = _constant_start(argument)
    name, colon, _ = start.partition(":")  # of "module:object"
    return name, is_whole or bool(colon) or "." in name


def _constant_start(argument: ast.expr) -> tuple[str, bool]:
    """Returns the constant start of a string, and whether that is all of it."""
    match argument:
        case ast.Constant(value=str(text)):
            return text, True
        case ast.JoinedStr(values=[first, *others]):
            start, is_whole = _constant_start(first)
            return start, is_whole and not others
        case ast.BinOp(left=left, op=ast.Add()):
            return _constant_start(left)[0], False
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return text.partition("%")[0], False
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return text.partition("{")[0], False
    return "", False


def parse(source: bytes, path: str) -> ast.Module:
    """Returns the syntax tree.

    Raises:
        SyntaxError, ValueError: the source is not Python.
    """
    with _reading():
        return ast.parse(source, path)


def defined_names(source: bytes, path: str) -> set[str]:
    """Returns the names that a module assigns, defines or imports at its top level.

    Raises:
        SyntaxError, ValueError: the source is not Python.
    """
    with _reading():
        symbols = symtable.symtable(decode_source(source), path, "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Leaves the compiler's warnings to the import, and makes all errors of depth alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (RecursionError, MemoryError) as error:
            raise ValueError("it is nested deeper than Python can read") from error


def defines_function(code: _archive.UserCode, name: str) -> bool:
    """Whether the module defines, at its top level, a function that takes one argument.

    False also if its source does not show that, because it has no bundle or imports the name.

    Raises:
        ModuleFileError: the bundle is missing or damaged.
    """
    if code.bundle is None:
        return False
    bundle = _archive.read_bundle(code)
    path = bundle.file_of(code.module)
    return path is not None and any(
        isinstance(node, ast.FunctionDef) and node.name == name and _takes_one(node.args)
        for node in parse(bundle.files[path], path).body
    )


def imported_packages(code: _archive.UserCode) -> set[str]:
    """Returns the top-level names that the files of a bundle import, including its own modules.

    Without a bundle it is the installed package of the function.

    Raises:
        ModuleFileError: the bundle is missing or damaged.
    """
    if code.bundle is None:
        return {_archive.top_level(code.module)}
    names: set[str] = set()
    for path, source in _archive.read_bundle(code).files.items():
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
    naming = [
        node for node in ast.walk(tree) if any(getattr(node, key, "") == name for key in fields)
    ]
    match naming:
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
        alias.asname or alias.name
        for alias in itertools.chain.from_iterable(imports)
        if alias.name == _MODEL_ANALYSIS
    }
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    removed: list[ast.Call] = []
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
            removed.append(node)
    return sorted(removed, key=lambda call: call.lineno)
