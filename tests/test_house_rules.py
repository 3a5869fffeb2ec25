"""The rules of the house that no linter knows; `CONTRIBUTING.md` says why."""

import ast
import graphlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from generic_trainer.user_code._loader import UNPACKED_PREFIX
from tests.house import PACKAGE, ROOT, Module, modules, own_imports, private_owner
from tests.operations import first_cells

MODULES = list(modules().values())

CLUSTER = "generic_trainer._core.cluster"
FILES = "generic_trainer._core.files"
INTERNALS = "generic_trainer._core.internals"
KERAS = "generic_trainer._core.keras"
MACHINE = "generic_trainer._core.machine"
SCRATCH = "generic_trainer._core.scratch"

MAY_IMPORT_TFX = ("components", "executors")

# From the roof to the ground: a room imports from itself and from the floors below its own. What
# `_entry_points` loads it finds by `importlib.metadata`, not by import.
FLOORS = (
    {"__main__", "kfp", "vertex"},
    {"cli", "components"},
    {"executors"},
    {"_run"},
    {"tracking", "trials"},
    {"estimator", "launchers"},
    {"_entry_points", "training", "validation"},
    {"data", "user_code"},
    {"_core"},
    {"errors"},
)


def for_each_module(rule: Callable[[Module], list[Any]]) -> Callable[[], None]:
    """Makes a test of a rule that returns what breaks it in a module."""

    def test() -> None:
        assert {module.name: found for module in MODULES if (found := rule(module))} == {}

    test.__doc__ = rule.__doc__
    return test


# ---- who may know whom ---------------------------------------------------------------------------


@for_each_module
def test_only_the_components_and_executors_import_tfx(module: Module) -> list[Any]:
    found = [one for one in module.imports if one.module.split(".")[0] == "tfx"]
    return [] if module.room in MAY_IMPORT_TFX else found


@for_each_module
def test_private_modules_are_imported_by_their_own_package_alone(module: Module) -> list[Any]:
    return [
        f"line {each.line}: {name}"
        for each, name in own_imports(module)
        if (owner := private_owner(name)) and not f"{module.name}.".startswith(f"{owner}.")
    ]


@for_each_module
def test_imports_and_names_of_modules_lead_down(module: Module) -> list[Any]:
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    if not module.room:  # the package itself hands names on, lazily
        return []
    if module.room not in floor_of:
        return [f"{module.room} has no floor: give it one in FLOORS"]
    return [
        f"line {line}: {name}"
        for line, name, room in (*_imported(module), *_named_in_strings(module))
        if room not in ("", module.room) and floor_of.get(room, -1) <= floor_of[module.room]
    ]


def _imported(module: Module) -> Iterator[tuple[int, str, str]]:
    for each, name in own_imports(module):
        if not each.only_types:
            yield each.line, name, modules()[name].room


def _named_in_strings(module: Module) -> Iterator[tuple[int, str, str]]:
    for node in module.nodes:
        text = str(node.value) if isinstance(node, ast.Constant) else ""
        found = re.fullmatch(r"generic_trainer\.(\w+)(\.\w+)*(:\w+)?", text)
        if found and any(found[1] in floor for floor in FLOORS):
            yield node.lineno, text, found[1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Lazy imports, those inside functions and those for types alone count as well."""
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        for _, name in own_imports(module):
            # A module may take a name, such as the version, from the package that it lies in.
            is_own_package = modules()[name].is_package and module.name.startswith(f"{name}.")
            if name != module.name and not is_own_package:
                edges.setdefault(module.name, set()).add(name)
    graphlib.TopologicalSorter(edges).prepare()  # raises an error that names a circle


# ---- one place for one thing ---------------------------------------------------------------------


def reads_tf_config(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        reads, key = ast.unparse(node.value) == "os.environ", node.slice
    elif isinstance(node, ast.Call) and node.args:
        reads, key = ast.unparse(node.func) in ("os.environ.get", "os.getenv"), node.args[0]
    else:
        return False
    return reads and ast.unparse(key) in ("'TF_CONFIG'", "TF_CONFIG", "cluster.TF_CONFIG")


def asks_which_keras(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return ast.unparse(node).endswith("keras.__version__")
    if isinstance(node, ast.Call):
        return bool(re.match(r"getattr\(.*keras.*__version__", ast.unparse(node)))
    return isinstance(node, ast.Constant) and node.value == "TF_USE_LEGACY_KERAS"


def names_files_of_the_machine(node: ast.AST) -> bool:
    pattern = r"/proc/(meminfo|vmstat|\d|self/status)|/sys/fs/cgroup"
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and bool(re.match(pattern, node.value))


def looks_for_a_scheme(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and ast.unparse(node.left) == "'://'"


def asserts(node: ast.AST) -> bool:
    """Python's option -O takes assertions away, and their errors say nothing."""
    return isinstance(node, ast.Assert)


def looks_at_the_callers_frame(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("_getframe", "currentframe")


def parses_the_text_of_an_error(node: ast.AST) -> bool:
    """`"..." in str(error)`, `str(error).startswith(...)`: the error's fields tell it."""
    if isinstance(node, ast.Compare):
        return any(map(_is_text_of_error, node.comparators))
    parsers = ("startswith", "endswith", "find", "index", "partition")
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in parsers and _is_text_of_error(node.func.value)


def _is_text_of_error(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("str", "repr"):
        return False
    about = ast.unparse(node.args[0]) if node.args else ""
    return bool(re.search(r"error|exception|cause|reason|failure", about))


@pytest.mark.parametrize(
    ("does_so", "home"),
    [
        (reads_tf_config, CLUSTER),
        (asks_which_keras, KERAS),
        (names_files_of_the_machine, MACHINE),
        (looks_for_a_scheme, FILES),
        (asserts, None),
        (looks_at_the_callers_frame, None),
        (parses_the_text_of_an_error, None),
    ],
)
def test_one_module_alone_or_none(does_so: Callable[[ast.AST], bool], home: str | None) -> None:
    found = [
        f"{module.name}, line {node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]
        for module in MODULES
        if module.name != home
        for node in module.nodes
        if does_so(node)
    ]
    assert found == []


@for_each_module
def test_temporary_files_are_made_in_one_place(module: Module) -> list[Any]:
    # Elsewhere they would be open to others, and stay when their process is killed.
    found = [one for one in module.imports if one.module == "tempfile"]
    return [] if module.name == SCRATCH else found


@for_each_module
def test_private_names_of_other_libraries_stand_in_one_place(module: Module) -> list[Any]:
    imports = [
        f"line {one.line}: {one.module}"
        for one in module.imports
        if not one.only_types and _is_foreign_private(one.module, one.names)
    ]
    attributes = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in module.nodes
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr)
        and node.attr not in OWN_PRIVATE_NAMES
        and node.attr not in DOCUMENTED_ALTHOUGH_UNDERSCORED
    ]
    return [] if module.name == INTERNALS else imports + attributes


INTERNAL_PACKAGES = (
    *("keras.src", "tf_keras.src", "tensorflow.python", "tensorflow_estimator.python"),
    "ray.train.v2",
)
# `os._exit` and the methods of named tuples are documented.
DOCUMENTED_ALTHOUGH_UNDERSCORED = {"_exit", "_replace", "_asdict", "_fields", "_make"}


def _own_private_names() -> Iterator[str]:
    for module in MODULES:
        yield module.name.rpartition(".")[2]
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                # Assigning to somebody else's object does not make the name ours.
                if ast.unparse(node.value) in ("self", "cls"):
                    yield node.attr
            elif isinstance(node, ast.alias):
                yield node.asname or node.name


OWN_PRIVATE_NAMES = set(_own_private_names())


def _is_foreign_private(name: str, names: tuple[str, ...]) -> bool:
    parts = name.split(".")
    if parts[0] in ("generic_trainer", "__future__"):
        return False
    if name.startswith(INTERNAL_PACKAGES):
        return True
    return any(re.match(r"_[a-z]", part) for part in (*parts, *names))


# ---- size ----------------------------------------------------------------------------------------


def test_no_file_is_too_long_to_read() -> None:
    assert {each.name: each.num_lines for each in MODULES if each.num_lines > 500} == {}


def test_every_folder_of_the_package_is_a_package() -> None:
    # A folder without __init__.py is left out of the wheel, and only an installed copy notices.
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert sorted(folder for folder in folders if not (folder / "__init__.py").exists()) == []


@pytest.mark.parametrize("name", ["components", "executors"])
def test_root_links_show_the_two_main_rooms(name: str) -> None:
    assert (ROOT / name).resolve() == PACKAGE / name


# ---- words ---------------------------------------------------------------------------------------


def test_one_name_means_one_thing() -> None:
    classes = Counter(
        node.name
        for module in MODULES
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name: count for name, count in classes.items() if count > 1} == {}


def test_operators_are_told_of_every_temporary_folder() -> None:
    made = {
        ast.unparse(node.args[0]).strip("'")
        for module in MODULES
        for node in module.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ScratchFolder"
    }
    named = first_cells("On the machine")
    made = made - {"UNPACKED_PREFIX"} | {UNPACKED_PREFIX}
    assert sorted(made) == sorted(name for name in named if not re.match("[<~]", name))


# ---- beside the package --------------------------------------------------------------------------


def test_benchmarks_use_what_users_use() -> None:
    # Campaigns may drive the stand-ins of the tests, and look at what lies inside.
    banned = re.compile(
        r"(?m)^\s*(?:from|import) (?:tests\b|generic_trainer[\w.]*(?:\.| import )_(?!_)).*"
    )
    found = {
        script.name: banned.findall(script.read_text(encoding="utf-8"))
        for script in sorted((ROOT / "benchmarks").rglob("bench_*.py"))
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
