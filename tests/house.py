"""The package: its modules, imports and names for the house rules, and Python that runs it.

`run_python` is for a test of a new process: what an import loads, what a command prints, what an
option of Python or a variable of the environment changes. `modules` and `own_imports` are for
rules about all source files.
"""

import ast
import dataclasses
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# The core stage of CI runs without TFX.
HAS_TFX = importlib.util.find_spec("tfx") is not None
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "generic_trainer"


def run_python(
    *words: object, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments; it must succeed. Returns the process with its output."""
    command = [sys.executable, *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def git(root: Path, *words: str) -> str:
    """Runs git in a repository that a test makes; it must succeed. Returns its output."""
    name = "-c", "user.name=test", "-c", "user.email=test@example.com"
    done = subprocess.run(["git", *name, *words], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclasses.dataclass(frozen=True)
class Import:
    """One import, also one inside a function.

    Attributes:
        line: where it stands.
        module: absolute name of the module.
        names: what is taken from it; empty for `import module`.
        only_types: whether it stands under `if TYPE_CHECKING:`.
    """

    line: int
    module: str
    names: tuple[str, ...] = ()
    only_types: bool = False


@dataclasses.dataclass(frozen=True)
class Module:
    """One module of the package.

    Attributes:
        path: its file.
        name: its dotted name; a package's is that of its folder.
    """

    path: Path
    name: str

    @functools.cached_property
    def text(self) -> str:
        """The source."""
        return self.path.read_text(encoding="utf-8")

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Every import."""
        return list(_imports(self.tree, only_types=False))

    @property
    def num_lines(self) -> int:
        """The number of lines."""
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        """Whether it is an `__init__.py`."""
        return self.path.name == "__init__.py"

    @property
    def room(self) -> str:
        """The room that it lies in: "data" for `generic_trainer.data._order`."""
        return self.name.split(".")[1] if "." in self.name else ""


@functools.cache
def modules() -> dict[str, Module]:
    """Returns name → module of the whole package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(path, name)
    return found


def own_imports(module: Module) -> Iterator[tuple[Import, str]]:
    """Yields each import of a module of this package, with that module's name."""
    known = modules()
    for each in module.imports:
        if each.module.split(".")[0] != "generic_trainer":
            continue
        for name in each.names or ("",):
            inner = f"{each.module}.{name}"
            yield each, inner if inner in known else each.module


def private_owner(name: str) -> str | None:
    """Returns the package that a private module belongs to; None for a public module.

    `generic_trainer._core` and `generic_trainer._run` are private to nobody inside the package.
    """
    parts = name.split(".")
    for number, part in enumerate(parts):
        if part.startswith("_") and number > 1:
            return ".".join(parts[:number])
    return None


def _imports(node: ast.AST, *, only_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(child.lineno, one.name, (), only_types) for one in child.names)
        elif isinstance(child, ast.ImportFrom):
            names = tuple(one.name for one in child.names)
            yield Import(child.lineno, child.module or "", names, only_types)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from _imports(ast.Module(child.body, []), only_types=True)
            yield from _imports(ast.Module(child.orelse, []), only_types=only_types)
        else:
            yield from _imports(child, only_types=only_types)
