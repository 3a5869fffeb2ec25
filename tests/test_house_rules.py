"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "generic_trainer"
MAY_IMPORT_TFX = ("components", "executors")
SOURCES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields (absolute module name, line) of each import, the ones inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or "", node.lineno


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_only_the_components_and_executors_import_tfx(source: Path) -> None:
    tree = ast.parse((PACKAGE / source).read_text(encoding="utf-8"))
    tfx_imports = [
        f"line {line}: {module}"
        for module, line in imported_modules(tree)
        if module.split(".")[0] == "tfx"
    ]
    assert source.parts[0] in MAY_IMPORT_TFX or not tfx_imports


def test_every_folder_of_the_package_is_a_package() -> None:
    # A folder without __init__.py is left out of the wheel, and only an installed copy notices.
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert sorted(folder for folder in folders if not (folder / "__init__.py").exists()) == []


@pytest.mark.parametrize("room", ["components", "executors"])
def test_root_links_show_the_two_main_rooms(room: str) -> None:
    assert (ROOT / room).resolve() == PACKAGE / room
