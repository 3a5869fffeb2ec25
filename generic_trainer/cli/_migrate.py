"""`generic-trainer migrate`: TFX's Trainer in a pipeline replaced, and what will be refused, told.

The source is read and never imported: a pipeline of anybody's may do anything when it is.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generic_trainer._core.keras import LEGACY_VARIABLE
from generic_trainer.cli._files import require_files
from generic_trainer.errors import ConfigurationError, ModuleFileError

# Where TFX has its Trainers → the import line that brings ours, and its name.
_OURS = ("from generic_trainer import GenericTrainer", "GenericTrainer")
_OURS_ON_VERTEX = ("from generic_trainer.vertex import Trainer", "Trainer")
_VERTEX = "extensions.google_cloud_ai_platform"
_TRAINERS = {
    "tfx.components.Trainer": _OURS,
    "tfx.v1.components.Trainer": _OURS,
    "tfx.components.trainer.component.Trainer": _OURS,
    f"tfx.{_VERTEX}.Trainer": _OURS_ON_VERTEX,
    f"tfx.v1.{_VERTEX}.Trainer": _OURS_ON_VERTEX,
    f"tfx.{_VERTEX}.trainer.component.Trainer": _OURS_ON_VERTEX,
}
_NAME_ON_VERTEX = "VertexTrainer"  # where the name `Trainer` has not been the pipeline's own
_KERAS_3 = (
    "of a Keras 3 model this writes one that only Python can load: refused by the check `session`"
)
_WAYS_OUT = (
    "training.export_model(model, fn_args) of generic_trainer, or model.export(directory), or "
    f"Keras 2 ({LEGACY_VARIABLE}=1), or contract=ServingContract(severities={{'session': 'warn'}})"
)


@dataclasses.dataclass(frozen=True)
class _Edit:
    """A piece of source, from and to (line, column), both from 0, and what takes its place."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclasses.dataclass(frozen=True)
class _Warning:
    """What will be refused or needs a hand, by line from 1."""

    line: int
    message: str
    remedy: str


def add_migrate(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "migrate",
        help="have a pipeline use GenericTrainer instead of TFX's Trainer",
        description=(
            "Shows as a diff how a pipeline comes to use GenericTrainer, and tells what of it and "
            "of its module files will be refused. Exit status 1: something will be."
        ),
    )
    parser.set_defaults(run=_migrate)
    parser.add_argument("files", metavar="FILE", nargs="+", help="pipeline and module files")
    parser.add_argument("--write", action="store_true", help="change the files")
    parser.add_argument("--json", action="store_true", help="print diffs and warnings as JSON")


def _migrate(options: argparse.Namespace) -> int:
    for file in options.files:
        require_files(FILE=file)
    read = [_Source(file) for file in options.files]
    warnings = {source.path: list(source.warnings()) for source in read}
    if not any(source.edits or source.is_user_code or source.is_migrated for source in read):
        line = "no Trainer of TFX's, and no run_fn: tfx.components.Trainer by another name?"
        warnings[read[0].path].append(_Warning(1, line, "change the import by hand"))
    if options.write:
        for source in read:
            source.write()
    if options.json:
        told = {
            source.path: {
                "diff": source.diff(),
                "warnings": [dataclasses.asdict(each) for each in warnings[source.path]],
            }
            for source in read
        }
        print(json.dumps({"written": options.write, "files": told}, indent=2))
    else:
        for source in read:
            print(source.diff() or f"{source.path}: nothing to change\n", end="")
        for path, listed in warnings.items():
            for each in listed:
                print(f"{path}:{each.line}: {each.message}\n    → {each.remedy}", file=sys.stderr)
        if not options.write and any(source.edits for source in read):
            print("Nothing is written: --write does it", file=sys.stderr)
    return int(any(warnings.values()))


class _Source:
    """A file of Python, and what is to be changed in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._text = Path(path).read_bytes().decode("utf-8")
            self._tree = ast.parse(self._text)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}", path=path) from error
        except SyntaxError as error:
            raise ModuleFileError(f"{path}:{error.lineno}: {error.msg}", path=path) from error
        self._lines = self._text.splitlines(keepends=True)
        self._names = dict(_imported(self._tree))
        self.edits = [*self._of_imports(), *self._of_uses(), *self._of_estimators()]

    @property
    def is_user_code(self) -> bool:
        """Whether the file defines what a Trainer calls."""
        names = ("run_fn", "trainer_fn")
        return any(isinstance(node, ast.FunctionDef) and node.name in names for node in self._nodes)

    @property
    def is_migrated(self) -> bool:
        """Whether the file imports this package already."""
        return any(path.startswith("generic_trainer") for path in self._names.values())

    @property
    def _nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self._tree)

    def warnings(self) -> Iterator[_Warning]:
        """Yields what the edits do not mend."""
        for node in self._nodes:
            if isinstance(node, ast.Call):
                yield from self._warnings_of_call(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = [alias.name for alias in node.names]
                module = getattr(node, "module", None) or modules[0]
                if module.split(".")[0] in ("determined", "pedl"):
                    yield _Warning(
                        node.lineno,
                        f"{module} is replaced by generic_trainer.trials",
                        "see docs/coming-from-other-trainers.md for the import line",
                    )

    def _warnings_of_call(self, node: ast.Call) -> Iterator[_Warning]:
        path = self._path_of(node.func) or ""
        if path in _TRAINERS or path.startswith("generic_trainer."):
            for keyword in node.keywords:
                if keyword.arg == "custom_executor_spec":
                    yield _Warning(
                        keyword.value.lineno,
                        "custom_executor_spec runs another executor, without any of the checks",
                        "leave it out: what GenericExecutor does, GenericTrainer does by itself",
                    )
        elif path == "tensorflow.saved_model.save" and not _is_keras_2():
            yield _Warning(node.lineno, _KERAS_3, _WAYS_OUT)
        elif path.endswith("export_eval_savedmodel"):
            yield _Warning(
                node.lineno,
                "TensorFlow Model Analysis reads no EvalSavedModel any more",
                "leave it out: the Evaluator scores the serving model",
            )
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "save"
            and "serving_model_dir" in ast.unparse(node)
            and not _is_keras_2()
        ):
            yield _Warning(
                node.lineno,
                "save() of a Keras 3 model writes no SavedModel, and takes no directory",
                _WAYS_OUT,
            )

    def _of_imports(self) -> Iterator[_Edit]:
        """`from tfx.components import Trainer`, alone or among others."""
        for node in self._nodes:
            if not isinstance(node, ast.ImportFrom):
                continue
            ours, others = [], []
            for alias in node.names:
                known = _TRAINERS.get(f"{node.module}.{alias.name}")
                if known is None:
                    others.append(ast.unparse(alias))
                    continue
                line, name = known
                kept = alias.asname or alias.name
                ours.append(line if name == kept else f"{line} as {kept}")
            if ours:
                yield self._replaced(node, _import_lines(node, others) + ours)

    def _replaced(self, node: ast.ImportFrom, lines: list[str]) -> _Edit:
        indent = " " * node.col_offset
        end = (
            (node.end_lineno or node.lineno) - 1,
            self._column(node.end_lineno, node.end_col_offset),
        )
        start = node.lineno - 1, self._column(node.lineno, node.col_offset)
        return _Edit(start, end, f"\n{indent}".join(lines))

    def _of_uses(self) -> Iterator[_Edit]:
        """`tfx.components.Trainer(...)`, and the import that this needs."""
        needed: dict[str, ast.AST] = {}
        for node in self._nodes:
            if isinstance(node, ast.Attribute) and (
                known := _TRAINERS.get(self._path_of(node) or "")
            ):
                line, name = known
                if known is _OURS_ON_VERTEX:
                    line, name = f"{line} as {_NAME_ON_VERTEX}", _NAME_ON_VERTEX
                needed[line] = self._import_of(node)
                start = node.lineno - 1, self._column(node.lineno, node.col_offset)
                end = (node.end_lineno or 1) - 1, self._column(node.end_lineno, node.end_col_offset)
                yield _Edit(start, end, name)
        for line, after in needed.items():
            place = getattr(after, "end_lineno", 1), 0
            yield _Edit(place, place, f"{' ' * getattr(after, 'col_offset', 0)}{line}\n")

    def _of_estimators(self) -> Iterator[_Edit]:
        """`import tensorflow as tf` where `tf.estimator` is used, which TensorFlow has no more."""
        uses = (self._path_of(node) for node in self._nodes if isinstance(node, ast.Attribute))
        if "tensorflow.estimator" not in uses:
            return
        for node in self._nodes:
            if isinstance(node, ast.Import) and ast.unparse(node) == "import tensorflow as tf":
                start = node.lineno - 1, node.col_offset
                end = node.lineno - 1, node.end_col_offset or 0
                yield _Edit(start, end, "from generic_trainer.estimator import tf")

    def _import_of(self, node: ast.expr) -> ast.AST:
        """Returns the import that brought the first name of a dotted path."""
        first = ast.unparse(node).split(".")[0]
        return next(
            each
            for each in self._nodes
            if isinstance(each, (ast.Import, ast.ImportFrom)) and first in dict(_imported(each))
        )

    def _path_of(self, node: ast.expr) -> str | None:
        """Returns what a dotted name is called where it comes from; None where nobody knows."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._names:
            return None
        return ".".join([self._names[node.id], *reversed(parts)])

    def _column(self, line: int | None, column: int | None) -> int:
        """Returns characters for the bytes that syntax trees count."""
        text = self._lines[(line or 1) - 1].encode("utf-8")
        return len(text[: column or 0].decode("utf-8"))

    def changed(self) -> str:
        """Returns the source with all edits made."""
        lines = [*self._lines, ""]
        for edit in sorted(self.edits, key=lambda edit: edit.start, reverse=True):
            (first, left), (last, right) = edit.start, edit.end
            lines[first : last + 1] = [lines[first][:left] + edit.text + lines[last][right:]]
        return "".join(lines)

    def diff(self) -> str:
        """Returns what the edits change, as `diff -u` has it."""
        after = self.changed().splitlines(keepends=True)
        return "".join(difflib.unified_diff(self._lines, after, self.path, self.path))

    def write(self) -> None:
        """Makes the edits in the file."""
        if self.edits:
            try:
                Path(self.path).write_bytes(self.changed().encode("utf-8"))
            except OSError as error:
                raise ConfigurationError(
                    f"{self.path} cannot be written: {error.strerror}", path=self.path
                ) from error


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields each name that imports bring, and what it is called where it comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.split(".")[0],
                    (alias.name if alias.asname else alias.name.split(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _import_lines(node: ast.ImportFrom, names: list[str]) -> list[str]:
    """Returns an import without some of its names, in as many lines as it had."""
    if not names:
        return []
    if node.lineno == node.end_lineno:
        return [f"from {node.module} import {', '.join(names)}"]
    return [f"from {node.module} import (", *(f"    {name}," for name in names), ")"]


def _is_keras_2() -> bool:
    return os.environ.get(LEGACY_VARIABLE) in ("1", "true", "True")
